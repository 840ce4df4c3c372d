"""Rows, sessions and identities on both sides of a split."""

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from fieldwise.auditing.association import highest_separation
from fieldwise.auditing.finding import Finding, Severity
from fieldwise.auditing.readings import readings
from fieldwise.auditing.table import TEST, TRAIN, AuditedTable
from fieldwise.evaluation.interval import Interval
from fieldwise.evaluation.slices import share_interval

LEAST_COLUMNS = 4
MOST_COLUMNS = 60
"""More columns are not compared all but one."""
RARE_BY_CHANCE = 0.01
"""Equal training rows that a test row would have by chance, were columns independent."""
MOST_AGREEING = 0.98
"""Share of equal rows with one label, from which on they are copies if training rows are equal among themselves too."""
BINS = 64
"""Of numbers, for rows that are equal but for noise."""
LEAST_SHARE = 0.05
LEAST_NEAR = 0.05
"""Near-equal rows across parts, beyond those within the training rows."""
SESSIONS = re.compile(
    r"(?i)(session|visit|basket|impression|request|query|search)(_?(id|no|number|key))?$"
)
GROUPS = re.compile(
    r"(?i)(^|[_\W])(id|key|uuid|user|customer|client|member|patient|person|subject|account|device|household|group)s?"
    r"([_\W]?(id|no|number|key|code))?$|(?-i:[a-z]Id)$"
)
MOST_ROWS_OF_GROUP = 50
"""On average, of values by which rows may have been split."""
MOST_APART = 0.3
"""Rows on another side, of as many as rows split one by one would have, up to which they were split by groups."""
FAMILY_WISE = 0.01
LEAST_LEVELS = 20
LEAST_ROWS_PER_LEVEL = 3
LEAST_IDENTITY = 0.65
LEAST_BEYOND_ORDER = 0.15
APART = "remove copies before the split, or split by what repeats (the user, the session) and measure again"


def equal_rows(table: AuditedTable) -> list[Finding]:
    """Findings on test rows that equal a training row, in all columns, in all but one, or but for noise."""
    train = table.rows_of(TRAIN)
    test = table.rows_of(TEST)
    if not len(train) or not len(test) or len(table.columns) < 2:
        return []
    columns = list(dict.fromkeys([*table.columns, *table.ids]))
    if table.time is not None and table.time not in columns:
        columns.append(table.time)
    hashes = _column_hashes(table.frame, columns)
    whole = hashes.sum(1)
    equal = np.isin(whole[test], whole[train])
    findings = []
    if equal.any():
        by_chance = _by_chance(table, columns, train)
        are_values = _are_values_alone(table, whole, train, test[equal])
        are_usual = by_chance > RARE_BY_CHANCE or are_values
        findings.append(_equal(table, test, equal, are_usual=are_usual))
    if len(columns) < LEAST_COLUMNS:
        return findings
    ways = {"but for small differences": _binned(table, columns)}
    if len(columns) <= MOST_COLUMNS:
        ways = {"in all columns but one": hashes, **ways}
    half, other_half = np.array_split(np.random.default_rng(table.seed).permutation(train), 2)
    for how, hashes_of_way in ways.items():
        but_one = hashes_of_way is hashes
        near = _near(hashes_of_way, test, half, but_one=but_one) & ~equal
        within = float(_near(hashes_of_way, other_half, half, but_one=but_one).mean())
        if float(near.mean()) - within >= LEAST_NEAR:
            findings.append(_near_equal(table, test, near, how, within))
            break
    return findings


def _column_hashes(frame: pl.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """A hash of each cell [N, C] uint64; the sum over columns is that of the row."""
    hashed = [
        frame.select(pl.lit(k), pl.col(column)).hash_rows(seed=k).to_numpy()
        for k, column in enumerate(columns)
    ]
    return np.column_stack(hashed)


def _binned(table: AuditedTable, columns: Sequence[str]) -> np.ndarray:
    """The hashes of cells, of many different numbers those of their quantiles."""
    binned = {}
    for column in columns:
        numbers = table.numbers(column)
        if numbers is not None and numbers.n_unique() > BINS:
            binned[column] = (numbers.rank("average") * BINS / len(numbers)).floor()
    return _column_hashes(table.frame.with_columns(**binned), columns)


def _by_chance(table: AuditedTable, columns: Sequence[str], train: np.ndarray) -> float:
    """How many equal training rows a row would have by chance, were columns independent."""
    log_matches = np.log(len(train))
    for column in columns:
        shares = np.bincount(table.codes(column)[train]) / len(train)
        log_matches += np.log(np.square(shares).sum())
    return float(np.exp(log_matches))


def _are_values_alone(
    table: AuditedTable, whole: np.ndarray, train: np.ndarray, equal: np.ndarray
) -> bool:
    """Whether equal rows are no copies: training rows are equal as often, and equal rows differ in their labels."""
    counts = np.unique(whole[train], return_counts=True)[1]
    repeated = counts[counts > 1].sum() / len(train)
    test_rows = len(table.rows_of(TEST))
    rows = pl.DataFrame({"hash": whole, "y": table.y})
    labels = rows.select(pl.col("y").n_unique().over("hash")).to_series().to_numpy()
    agreeing = float((labels[equal] == 1).mean())
    return bool(2 * repeated >= len(equal) / test_rows and agreeing < MOST_AGREEING)


def _near(hashes: np.ndarray, rows: np.ndarray, others: np.ndarray, *, but_one: bool) -> np.ndarray:
    """Which rows equal one of the others in all columns, or in all but one."""
    whole = hashes.sum(1)
    if not but_one:
        return np.isin(whole[rows], whole[others])
    near = np.zeros(len(rows), dtype=bool)
    for k in range(hashes.shape[1]):
        without = whole - hashes[:, k]
        near |= np.isin(without[rows], without[others])
    return near


def _equal(table: AuditedTable, test: np.ndarray, equal: np.ndarray, *, are_usual: bool) -> Finding:
    severity: Severity = "medium"
    note = ""
    if are_usual:
        severity = "low"
        note = ", as rows of so few values do"
    elif equal.mean() >= LEAST_SHARE:
        severity = "high"
    return Finding(
        kind="equal-rows",
        severity=severity,
        what=f"{int(equal.sum()):,} of {len(test):,} test rows equal a training row in every column{note}",
        remedy=APART,
        measure="share of test rows",
        strength=share_interval(equal),
        rows=table.shown_rows(test[equal]),
    )


def _near_equal(
    table: AuditedTable, test: np.ndarray, near: np.ndarray, how: str, within: float
) -> Finding:
    return Finding(
        kind="near-equal-rows",
        severity="medium",
        what=(
            f"{int(near.sum()):,} of {len(test):,} test rows equal one of a half of the training rows {how}, and "
            f"{within:.1%} of the other half do"
        ),
        remedy=APART,
        measure="share of test rows",
        strength=share_interval(near),
        rows=table.shown_rows(test[near]),
    )


def groups_on_both_sides(table: AuditedTable) -> list[Finding]:
    """Findings on groups with rows in training and test that should be in one of them.

    These are sessions, or what a name says is one, and what nearly all rows were split by, as users
    of whom few are on both sides.
    """
    train = table.rows_of(TRAIN)
    test = table.rows_of(TEST)
    if not len(train) or not len(test):
        return []
    follows_time = table.times is not None and table.times[test].min() >= table.times[train].max()
    findings = []
    for column in table.frame.columns:
        is_session = SESSIONS.search(column) is not None and column not in table.ids
        is_group = GROUPS.search(column) is not None and not follows_time
        if not is_session and not is_group:
            continue
        codes = table.codes(column)
        both = np.isin(codes[test], codes[train])
        if not both.any() or not (is_session or _was_split_by(table, codes)):
            continue
        findings.append(
            Finding(
                kind="groups-apart",
                severity="medium" if both.mean() >= LEAST_SHARE or not is_session else "low",
                what=f"{int(both.sum()):,} test rows belong to a value of {column!r} that has training rows",
                remedy="split whole groups: the labels of rows of one session or user depend on each other",
                column=column,
                measure="share of test rows",
                strength=share_interval(both),
                rows=table.shown_rows(test[both]),
            )
        )
    return findings


def _was_split_by(table: AuditedTable, codes: np.ndarray) -> bool:
    """Whether few rows of a value are on another side than most of them, where of rows split one by one many are."""
    assert table.part is not None
    levels = len(np.unique(codes))
    if not levels < len(codes) <= MOST_ROWS_OF_GROUP * levels:
        return False
    by_chance = np.random.default_rng(table.seed).permutation(table.part)
    return _on_other_side(codes, table.part) <= MOST_APART * _on_other_side(codes, by_chance)


def _on_other_side(codes: np.ndarray, part: np.ndarray) -> int:
    """How many training or test rows are on another side than most of the rows of their value."""
    in_train = np.bincount(codes, weights=part == TRAIN)
    in_test = np.bincount(codes, weights=part == TEST)
    return int(np.minimum(in_train, in_test).sum())


def identity_alone(table: AuditedTable) -> list[Finding]:
    """Findings on columns that predict the test labels as names, and not by any order of their values."""
    train = table.rows_of(TRAIN)
    test = table.rows_of(TEST)
    findings = []
    for column in table.columns:
        codes = table.codes(column)
        levels = len(np.unique(codes[train]))
        if levels < LEAST_LEVELS or levels * LEAST_ROWS_PER_LEVEL > len(train):
            continue
        interval = _identity(table, codes, train, test)
        if interval is None or interval.low < LEAST_IDENTITY - LEAST_BEYOND_ORDER / 3:
            continue
        target = table.main_target.of_rows(test)
        p = min(target.p_by_chance(interval.value) * len(table.columns), 1.0)
        if p > FAMILY_WISE:
            continue
        is_known = any(column == key or table.describes(column, key) for key in table.ids)
        order = _order(table, column)
        if interval.value < LEAST_IDENTITY or interval.value - order < LEAST_BEYOND_ORDER:
            continue
        known = float(np.isin(codes[test], codes[train]).mean())
        findings.append(
            Finding(
                kind="identity",
                severity="low" if is_known else "medium",
                what=(
                    f"which value of {column!r} a row has, as a name alone, predicts the test labels, and {known:.0%} "
                    "of the test rows have one of the training rows"
                ),
                remedy="split by this column if new values come in use; else know that the score is of known ones",
                column=column,
                measure="AUC" if target.is_binary else table.measure,
                strength=interval,
                rows=table.shown_rows(test),
                p=p,
            )
        )
    return findings


def _identity(
    table: AuditedTable, codes: np.ndarray, train: np.ndarray, test: np.ndarray
) -> Interval | None:
    """How well the mean training label of each value predicts the test labels."""
    whole = table.main_target
    values = whole.values[test]
    if len(test) < LEAST_LEVELS or values.min() == values.max():
        return None
    size = int(codes.max()) + 1
    sums = np.bincount(codes[train], weights=whole.values[train], minlength=size)
    rows = np.bincount(codes[train], minlength=size)
    rates = (sums + whole.mean) / (rows + 1)
    return whole.of_rows(test).of_scores(rates[codes[test]])


def _order(table: AuditedTable, column: str) -> float:
    """How well the order of a column's numbers predicts; .5 if it has none."""
    ordered = [reading for reading in readings(table, column) if reading.is_ordered]
    return highest_separation(ordered, table.main_target, table.folds)
