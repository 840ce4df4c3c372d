"""Values whose rows all have one label, and numbers that equal the label too often.

A value gives the answer away on its rows alone, however little the column predicts over all rows: a
reason code of some refunds, a measurement that was not taken after a defect. That n rows of one
value all have a label of rate r has the probability r^n by chance (without replacement less). It is
multiplied by all that is looked at: the labels, the values of every reading, and the columns
(Bonferroni).
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.stats import rankdata

from fieldwise.auditing.association import Reading
from fieldwise.auditing.cells import codes_of
from fieldwise.auditing.columns import KINDS, REMEDIES
from fieldwise.auditing.finding import Finding, Severity
from fieldwise.auditing.readings import WAYS, readings, stands_for_none
from fieldwise.auditing.table import AuditedTable
from fieldwise.evaluation.slices import share_interval

PURE = "pure-values"
LEAST_ROWS_OF_VALUE = 5
LEAST_ROWS_OF_END = 20
"""Of a value whose rows may be the end of a distribution, as those of a bin."""
PARTS_OF_NUMBERS = (4, 10)
"""Into how many parts of equal size labels of numbers are divided."""
FAMILY_WISE = 0.02
LEAST_SHARE = 0.05
"""Of all rows, in one value; smaller ones are the ends of a distribution."""
LEAST_SHARE_EMPTY = 0.01
"""Of all rows, in empty or filled cells: that a cell is empty is no end of a distribution."""
LEAST_SHARE_TOGETHER = 0.15
"""Of all rows, in values that are each no chance and together have most labels."""
MOST_ROWS_OF_VALUES = 0.95
"""From this share on, values of one label are the label; less may be a strong column, as the odour of mushrooms."""
MOST_COPIES = 0.5
"""From this share on, a number that equals the label is the label."""
RARE_LABEL = 0.1
LEAST_SHARE_OF_RARE_LABEL = 0.2
"""Of the rows of a rare label, in one value."""
LEAST_COPIES = 0.1
LEAST_COPIED_ROWS = 20
SURE = 5.0
"""Standard deviations."""


@dataclass(frozen=True)
class _Look:
    """One reading of a column beside one set of labels."""

    reading: Reading
    labels: np.ndarray
    is_exact: bool
    has_enough: np.ndarray
    """Which values have enough rows [K]."""

    @classmethod
    def of(cls, reading: Reading, labels: np.ndarray, *, is_exact: bool) -> "_Look":
        is_end = is_exact and reading.way == "value"
        least = LEAST_ROWS_OF_END if is_end else LEAST_ROWS_OF_VALUE
        return cls(reading, labels, is_exact, np.bincount(reading.codes) >= least)

    @property
    def tests(self) -> int:
        """How many values may have one of the labels alone."""
        return int(self.has_enough.sum()) * len(np.unique(self.labels))


@dataclass(frozen=True)
class _Pure:
    """Values of a reading whose rows all have one label, each too often for chance."""

    way: str
    is_exact: bool
    are_pure: np.ndarray
    are_largest: np.ndarray
    share_of_labels: float
    rate: float
    log_p: float

    @property
    def rows(self) -> int:
        """How many rows have such a value."""
        return int(self.are_pure.sum())

    @property
    def largest(self) -> int:
        """How many have the most frequent one."""
        return int(self.are_largest.sum())


def pure_values(table: AuditedTable) -> list[Finding]:
    """Findings on columns some of whose values have one label alone."""
    all_labels = _labels_of(table)
    findings = []
    for column in table.columns:
        if column in table.ids:
            continue
        looks = []
        for reading in readings(table, column):
            if reading.way != "order":
                looks += [_Look.of(reading, labels, is_exact=exact) for exact, labels in all_labels]
        tests = len(table.columns) * sum(look.tests for look in looks)
        found = []
        for look in looks:
            pure = _pure_of(look, tests)
            if pure is not None and _covers(pure, len(table)):
                found.append(pure)
        if found:
            findings.append(_finding(table, column, max(found, key=_says_more)))
    return findings


def _labels_of(table: AuditedTable) -> list[tuple[bool, np.ndarray]]:
    """The labels, and of numbers their quarters and tenths, as codes [N], and whether they are exact."""
    labels = [(True, codes_of(pl.Series(table.y)))]
    if table.task == "regression":
        quantiles = (rankdata(table.y) - 0.5) / len(table)
        labels += [(False, (quantiles * parts).astype(np.int64)) for parts in PARTS_OF_NUMBERS]
    return labels


def _says_more(pure: _Pure) -> tuple[bool, int, bool]:
    """The order of pure values of one column; an empty cell is a value too, but that it is empty says more."""
    return pure.is_exact, pure.rows, pure.way == "absence"


def _pure_of(look: _Look, tests: int) -> _Pure | None:
    """The values of one reading with one label alone, beyond chance in this number of tests."""
    codes = look.reading.codes
    rows = np.bincount(codes)
    first = np.zeros(len(rows), dtype=np.int64)
    first[codes[::-1]] = look.labels[::-1]
    differs = np.bincount(codes, weights=look.labels != first[codes], minlength=len(rows))
    rates = np.bincount(look.labels) / len(look.labels)
    log_p = rows * np.log(np.maximum(rates[first], 1 / len(look.labels))) + np.log(max(tests, 1))
    is_pure = look.has_enough & (differs == 0) & (log_p <= np.log(FAMILY_WISE))
    pure = np.flatnonzero(is_pure)
    if not len(pure):
        return None
    largest = int(pure[np.argmax(rows[pure])])
    return _Pure(
        way=look.reading.way,
        is_exact=look.is_exact,
        are_pure=np.isin(codes, pure),
        are_largest=codes == largest,
        share_of_labels=float(rates[np.unique(first[pure])].sum()),
        rate=float(rates[first[largest]]),
        log_p=float(log_p[pure].min()),
    )


def _covers(pure: _Pure, rows: int) -> bool:
    """Whether pure values have enough rows to matter."""
    least = LEAST_SHARE_EMPTY if pure.way == "absence" else LEAST_SHARE
    is_one_large = pure.largest >= least * rows
    are_most_labels = pure.share_of_labels >= 0.8 and pure.rows >= LEAST_SHARE_TOGETHER * rows
    is_rare = pure.rate <= RARE_LABEL
    least_of_rare = max(LEAST_SHARE_OF_RARE_LABEL * pure.rate * rows, LEAST_ROWS_OF_END)
    is_most_of_rare = is_rare and pure.largest >= least_of_rare
    return is_one_large or are_most_labels or is_most_of_rare


def _finding(table: AuditedTable, column: str, pure: _Pure) -> Finding:
    share = pure.rows / len(table)
    severity: Severity = "medium"
    is_absence = pure.way == "absence" and share >= LEAST_SHARE
    if pure.is_exact and (is_absence or share >= MOST_ROWS_OF_VALUES):
        severity = "high"
    return Finding(
        kind=PURE if pure.way in ("value", "usual") else KINDS[pure.way],
        severity=severity,
        what=_in_words(table, column, pure),
        remedy=REMEDIES["predicts-alone"],
        column=column,
        measure="share of rows",
        strength=share_interval(pure.are_pure),
        rows=table.shown_rows(np.flatnonzero(pure.are_largest)),
        p=float(np.exp(min(pure.log_p, 0.0))),
    )


def _in_words(table: AuditedTable, column: str, pure: _Pure) -> str:
    """Which cells have one label alone."""
    row = int(pure.are_largest.argmax())
    label = repr(table.frame.get_column(table.label)[row])
    if not pure.is_exact:
        label = f"near {label}, in one part of all labels"
    elif table.task == "binary":
        label = "positive" if table.y[row] else "negative"
    cells = table.text(column)
    if pure.way == "absence":
        state = "empty" if cells[row] is None else "filled"
        return (
            f"column {column!r} is {state} in {pure.rows:,} rows, and the label of each is {label}"
        )
    if pure.way == "usual":
        state = "empty or has" if stands_for_none(cells)[row] else "neither empty nor has"
        return (
            f"column {column!r} is {state} its most frequent value in {pure.rows:,} rows, and the label of each is "
            f"{label}"
        )
    subject = WAYS[pure.way].format(repr(column))
    return (
        f"{subject} tells the label in {pure.rows:,} rows: {pure.largest:,} of them have one value, and the label of "
        f"each is {label}"
    )


def copies_of_label(table: AuditedTable) -> list[Finding]:
    """Findings on columns of numbers that equal a label of numbers in more rows than independent values would."""
    if table.task != "regression":
        return []
    findings = []
    for column in table.columns:
        numbers = table.numbers(column)
        if numbers is None:
            continue
        both = pl.DataFrame({"cell": numbers.cast(pl.Float32), "y": table.y.astype(np.float32)})
        both = both.with_row_index("place").drop_nulls()
        is_equal = (both.get_column("cell") == both.get_column("y")).to_numpy()
        if is_equal.sum() < LEAST_COPIED_ROWS:
            continue
        expected = _expected_equal(both)
        excess = float(is_equal.mean()) - expected
        deviation = max(expected * (1 - expected) / both.height, 1e-12) ** 0.5
        if excess < max(LEAST_COPIES, SURE * deviation):
            continue
        findings.append(
            Finding(
                kind="equals-label",
                severity="high" if excess >= MOST_COPIES else "medium",
                what=(
                    f"column {column!r} equals the label in {int(is_equal.sum()):,} rows, where {expected:.1%} would "
                    "by chance"
                ),
                remedy=REMEDIES["predicts-alone"],
                column=column,
                measure="share of rows",
                strength=share_interval(is_equal),
                rows=table.shown_rows(both.get_column("place").to_numpy()[is_equal]),
            )
        )
    return findings


def _expected_equal(both: pl.DataFrame) -> float:
    """The share of rows whose cell and label would be equal if they were independent."""
    cells = both.get_column("cell").value_counts(normalize=True, name="of_cells")
    labels = both.get_column("y").value_counts(normalize=True, name="of_labels")
    joined = cells.join(labels, left_on="cell", right_on="y")
    return float((joined.get_column("of_cells") * joined.get_column("of_labels")).sum())
