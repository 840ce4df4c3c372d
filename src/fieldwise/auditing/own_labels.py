"""Numbers that were made from labels which a row must not know: its own, later ones, those of the test rows.

A mean of labels over the rows of one key (a user, an item, a category) is recognised by its
equation c = (S + a m) / (n + a), where S and n are the sum and number of the labels that went into
it, and a rows with the mean m may have smoothed it. Whose labels these are, is told by which sums
fit to the last digit. Without the equation: within the rows of one key the number is a function of
the row's own label.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fieldwise.auditing.finding import Finding
from fieldwise.auditing.table import TEST, TRAIN, AuditedTable

LEAST_FIT = 0.9995
"""Share of a column's variance that an equation must explain."""
MOST_UNEXPLAINED_WITHIN = 0.5
"""Of the variance within a key, if there is any: a mean out of fold is near that of all, and differs within a key."""
BETTER_THAN_HONEST = 5.0
"""How many times less it must leave unexplained than labels that a row may know."""
LEAST_WITHIN = 1e-9
"""Of the variance; less is rounding."""
LEAST_VALUES = 8
"""Of a column that an equation explains: it has two free numbers, with which few values fit anything."""
LEAST_ROWS = 100
MOST_ROWS = 200_000
MOST_KEYS = 12
MOST_VALUES_OF_PAIR = 200
LEAST_ROWS_OF_MIXED_KEY = 4
LEAST_MIXED_KEYS = 10
LEAST_TOLD = 0.95
"""Share of rows of keys with both labels whose number tells the own label."""
REMEDY = "make the column again from labels known strictly before the row: of training rows out of fold, or of the past"


@dataclass(frozen=True, eq=False)
class _Labels:
    """Labels of a key that may have gone into a number: their sums and counts, row by row [N].

    Args:
        whose: whose labels, in words.
        honest: whether a row may know them.
        used: the rows whose numbers were made so [N].
    """

    whose: str
    honest: bool
    sums: np.ndarray
    counts: np.ndarray
    used: np.ndarray


def own_labels(table: AuditedTable) -> list[Finding]:
    """Findings on columns of numbers made from the row's own label, or from later or test labels."""
    if len(table) < LEAST_ROWS:
        return []
    findings: dict[str, Finding] = {}
    for target_table in table.sample_keys(MOST_ROWS).of_one_target():
        findings = _own_labels(target_table) | findings
    return list(findings.values())


def _own_labels(table: AuditedTable) -> dict[str, Finding]:
    """The findings by column, on one target."""
    columns = {}
    for column in table.columns:
        cells = table.numbers(column)
        is_known = column in (*table.ids, *table.trusted, table.time)
        if not is_known and cells is not None and cells.n_unique() > 2:
            columns[column] = cells.fill_null(float("nan")).to_numpy()
    findings: dict[str, Finding] = {}
    keys = {key: table.codes(key) for key in table.repeating_columns()[:MOST_KEYS]}
    for key, codes in {**keys, **_pairs(keys)}.items():
        candidates = [*_labels_of(table, codes)]
        for column, values in columns.items():
            if column in key.split(", ") or column in findings:
                continue
            finding = _by_equation(table, key, column, codes, values, candidates)
            if finding is None and table.task == "binary":
                finding = _told_within(table, key, column, codes, values)
            if finding is not None:
                findings[column] = finding
    return findings


def _pairs(keys: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The pairs of keys of few values, by both names."""
    few = {key: codes for key, codes in keys.items() if codes.max() < MOST_VALUES_OF_PAIR}
    pairs = {}
    for first, second in list(combinations(few, 2))[:MOST_KEYS]:
        joined = few[first] * MOST_VALUES_OF_PAIR + few[second]
        pairs[f"{first}, {second}"] = np.unique(joined, return_inverse=True)[1]
    return pairs


def _labels_of(table: AuditedTable, codes: np.ndarray) -> Iterator[_Labels]:
    """The labels of a key that may have gone into a number, row by row."""
    y = table.y.astype(np.float64)
    size = int(codes.max()) + 1
    everywhere = np.ones(len(y), dtype=bool)

    def of_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sums = np.bincount(codes[rows], weights=y[rows], minlength=size)
        return sums[codes], np.bincount(codes[rows], minlength=size)[codes].astype(np.float64)

    sums, counts = of_rows(everywhere)
    yield _Labels("all rows but its own", False, sums - y, counts - 1, everywhere)
    whose = "all rows, its own among them"
    if table.part is not None:
        in_train = table.part == TRAIN
        in_test = table.part == TEST
        whose = "all rows, its own and those of the test among them"
        of_train = of_rows(in_train)
        yield _Labels("training rows, its own among them", False, *of_train, in_train)
        own_left_out = (of_train[0] - y, of_train[1] - 1)
        yield _Labels("the other training rows", False, *own_left_out, in_train)
        yield _Labels("test rows", False, *of_rows(in_test), in_test)
        yield _Labels("training rows", True, *of_train, in_test)
    yield _Labels(whose, False, sums, counts, everywhere)
    if table.times is not None:
        past_sums, past_counts = running_labels(codes, table.times, y)
        yield _Labels("earlier rows and its own", False, past_sums, past_counts, everywhere)
        yield _Labels("later rows", False, sums - past_sums, counts - past_counts, everywhere)
        yield _Labels("earlier rows", True, past_sums - y, past_counts - 1, everywhere)


def running_labels(
    codes: np.ndarray, times: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts of the labels of each row's key up to and with the row [N]."""
    order = np.lexsort((times, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    first = np.repeat(starts, np.diff(starts, append=len(order)))
    running = np.cumsum(y[order])
    sums = np.empty(len(y))
    sums[order] = running - (running - y[order])[first]
    counts = np.empty(len(y))
    counts[order] = np.arange(len(order)) - first + 1
    return sums, counts


def _by_equation(
    table: AuditedTable,
    key: str,
    column: str,
    codes: np.ndarray,
    values: np.ndarray,
    candidates: Sequence[_Labels],
) -> Finding | None:
    """The finding that a column is a mean or a sum of labels that a row must not know."""
    fits = []
    for labels in candidates:
        rows = labels.used & (labels.counts > 0) & np.isfinite(values)
        if rows.sum() < LEAST_ROWS or len(np.unique(values[rows])) < LEAST_VALUES:
            continue
        fit = _fit(values[rows], labels.sums[rows], labels.counts[rows], codes[rows])
        fits.append((fit, labels, rows))
    honest = max((fit for fit, labels, _ in fits if labels.honest), default=0.0)
    others = [one for one in fits if not one[1].honest]
    if not others:
        return None
    fit, labels, rows = max(others, key=lambda one: one[0])
    if fit < LEAST_FIT or (1 - honest) < BETTER_THAN_HONEST * (1 - fit):
        return None
    return Finding(
        kind="own-label",
        severity="high",
        what=f"column {column!r} is made from labels of {labels.whose}, over the rows of one {key!r}",
        remedy=REMEDY,
        column=column,
        measure="variance explained by that",
        strength=fit,
        rows=table.shown_rows(np.flatnonzero(rows)),
    )


def _fit(values: np.ndarray, sums: np.ndarray, counts: np.ndarray, codes: np.ndarray) -> float:
    """The share of the variance of values that (S + b) / (n + a) explains, or S itself, whichever is more.

    a and b solve values - S / n = (b - a values) / n in least squares, so that a key of many rows, of which a few are
    lost from the table, weighs no more than its rows.
    """
    variance = float(values.var())
    if variance == 0 or float(sums.var()) == 0:
        return 0.0
    design = np.column_stack([-values / counts, 1 / counts])
    prior, *_ = np.linalg.lstsq(design, values - sums / counts, rcond=None)
    rows = max(float(prior[0]), 0.0)
    smoothed = (sums + (float(prior[1]) if rows else 0.0)) / (counts + rows)
    unexplained = float(np.square(values - smoothed).mean())
    rows_of_key = np.maximum(np.bincount(codes), 1)
    within = float(
        np.square(values - (np.bincount(codes, weights=values) / rows_of_key)[codes]).mean()
    )
    if within > LEAST_WITHIN * variance and unexplained > MOST_UNEXPLAINED_WITHIN * within:
        return 0.0
    of_mean = 1 - unexplained / variance
    of_sum = 0.0
    are_counts = float(counts.var()) == 0 or float(np.corrcoef(sums, counts)[0, 1]) ** 2 > 0.99
    if not are_counts:
        of_sum = float(np.corrcoef(values, sums)[0, 1]) ** 2
    return max(of_mean, of_sum)


def _told_within(
    table: AuditedTable, key: str, column: str, codes: np.ndarray, values: np.ndarray
) -> Finding | None:
    """The finding that within the rows of one key a column has one value for each label."""
    cells = np.nan_to_num(values, nan=-np.inf)
    size = int(codes.max()) + 1
    pairs = 2 * codes + (table.y > 0.5)
    first = np.full(2 * size, np.nan)
    first[pairs[::-1]] = cells[::-1]
    rows = np.bincount(pairs, minlength=2 * size).reshape(size, 2)
    others = np.bincount(pairs, weights=cells != first[pairs], minlength=2 * size)
    is_mixed = (rows > 0).all(1) & (rows.sum(1) >= LEAST_ROWS_OF_MIXED_KEY)
    is_told = is_mixed & (others.reshape(size, 2).sum(1) == 0) & (first[::2] != first[1::2])
    total = int(rows[is_mixed].sum())
    if total < LEAST_ROWS or is_mixed.sum() < LEAST_MIXED_KEYS:
        return None
    share = float(rows[is_told].sum()) / total
    if share < LEAST_TOLD:
        return None
    return Finding(
        kind="own-label",
        severity="high",
        what=(
            f"within the rows of one {key!r}, column {column!r} has one value where the label is 0 and another where "
            "it is 1"
        ),
        remedy=REMEDY,
        column=column,
        measure="share of rows of mixed keys",
        strength=share,
        rows=table.shown_rows(np.flatnonzero(is_told[codes])),
    )
