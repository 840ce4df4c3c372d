"""Values whose rows all have one label, and numbers that equal the label too often.

A value gives the answer away on its rows alone, however little the column predicts over all rows: a
reason code of some refunds, a measurement that was not taken after a defect. That n rows of one
value all have a label of rate r has the probability r^n by chance (without replacement less).
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.auditing.columns import KINDS
from fieldwise.auditing.finding import Finding, Severity
from fieldwise.auditing.readings import WAYS, numbers_of, readings
from fieldwise.auditing.table import AuditedTable, codes_of
from fieldwise.evaluation.calibration import wilson
from fieldwise.evaluation.interval import Interval, normal_interval

PURE = "pure-values"
LEAST_ROWS_OF_VALUE = 20
FAMILY_WISE = 0.01
LEAST_SHARE = 0.05
"""Of all rows, in one value; smaller ones are the ends of a distribution."""
LEAST_SHARE_EMPTY = 0.01
"""Of all rows, in empty or filled cells: that a cell is empty is no end of a distribution."""
LEAST_SHARE_TOGETHER = 0.15
"""Of all rows, in values that are each no chance and together have most labels."""
MOST_OF_ROWS = 0.5
"""From this share on, a column that is no more than suspicious tells the label."""
LEAST_COPIES = 0.1
SURE = 5.0
"""Standard deviations."""
REMEDY = "find out when these values are set: if at or after the outcome, leave the column out"


@dataclass(frozen=True)
class _Pure:
    """Values of a reading whose rows all have one label, each too often for chance."""

    way: str
    rows: int
    largest: int
    share_of_labels: float
    log_p: float
    example: np.ndarray


def pure_values(table: AuditedTable) -> list[Finding]:
    """Findings on columns some of whose values have one label alone."""
    labels = codes_of(pl.Series(table.y))
    findings = []
    for column in table.columns:
        if column in table.ids:
            continue
        found = [
            _pure_of(reading.way, reading.codes, labels, len(table.columns))
            for reading in readings(table, column)
            if not reading.is_ordered
        ]
        known = [one for one in found if one is not None]
        # An empty cell is a value too; that it is empty says more.
        pure = max(known, key=lambda one: (one.rows, one.way != "value"), default=None)
        if pure is not None and _covers(pure, len(table)):
            findings.append(_finding(table, column, pure))
    return findings


def _pure_of(way: str, codes: np.ndarray, labels: np.ndarray, columns: int) -> _Pure | None:
    """The values of one reading with one label alone, beyond chance over all values and columns."""
    rows = np.bincount(codes)
    first = np.zeros(len(rows), dtype=np.int64)
    first[codes[::-1]] = labels[::-1]
    differs = np.bincount(codes, weights=labels != first[codes], minlength=len(rows))
    rates = np.bincount(labels) / len(labels)
    enough = rows >= LEAST_ROWS_OF_VALUE
    log_p = rows * np.log(np.maximum(rates[first], 1 / len(labels)))
    limit = np.log(FAMILY_WISE / max(int(enough.sum()) * columns, 1))
    pure = np.flatnonzero(enough & (differs == 0) & (log_p <= limit))
    if not len(pure):
        return None
    largest = int(pure[np.argmax(rows[pure])])
    return _Pure(
        way=way,
        rows=int(rows[pure].sum()),
        largest=int(rows[largest]),
        share_of_labels=float(rates[np.unique(first[pure])].sum()),
        log_p=float(log_p[pure].min() - limit + np.log(FAMILY_WISE)),
        example=np.flatnonzero(codes == largest)[:5],
    )


def _covers(pure: _Pure, rows: int) -> bool:
    """Whether pure values have enough rows to matter."""
    least = LEAST_SHARE_EMPTY if pure.way == "absence" else LEAST_SHARE
    is_one_large = pure.largest >= least * rows
    are_most_labels = pure.share_of_labels >= 0.8 and pure.rows >= LEAST_SHARE_TOGETHER * rows
    return is_one_large or are_most_labels


def _finding(table: AuditedTable, column: str, pure: _Pure) -> Finding:
    share = pure.rows / len(table)
    severity: Severity = "medium"
    is_absence = pure.way == "absence" and share >= LEAST_SHARE
    if is_absence or share >= MOST_OF_ROWS:
        severity = "high"
    subject = WAYS[pure.way].format(repr(column))
    low, high = wilson(pure.rows, len(table))
    return Finding(
        kind=PURE if pure.way == "value" else KINDS[pure.way],
        severity=severity,
        column=column,
        what=f"{subject} has values whose rows all have one label: {pure.rows:,} rows, of which {pure.largest:,} have "
        "the same value",
        measure="share of rows",
        strength=Interval(value=share, low=float(low), high=float(high)),
        rows=tuple(table.rows[pure.example].tolist()),
        p=float(np.exp(min(pure.log_p, 0.0))),
        remedy=REMEDY,
    )


def copies_of_label(table: AuditedTable) -> list[Finding]:
    """Findings on columns of numbers that equal a label of numbers in more rows than independent values would."""
    if table.task != "regression":
        return []
    findings = []
    for column in table.columns:
        numbers = numbers_of(table.frame.get_column(column))
        if numbers is None:
            continue
        both = pl.DataFrame({"cell": numbers.cast(pl.Float32), "y": table.y.astype(np.float32)})
        both = both.with_row_index("row").drop_nulls()
        equal = both.filter(pl.col("cell") == pl.col("y"))
        if equal.height < LEAST_ROWS_OF_VALUE:
            continue
        expected = _expected_equal(both)
        share = equal.height / both.height
        deviation = max(expected * (1 - expected) / both.height, 1e-12) ** 0.5
        if share - expected < LEAST_COPIES or share - expected < SURE * deviation:
            continue
        error = (share * (1 - share) / both.height) ** 0.5
        findings.append(
            Finding(
                kind="equals-label",
                severity="high" if share - expected >= MOST_OF_ROWS else "medium",
                column=column,
                what=f"column {column!r} equals the label in {equal.height:,} rows, where {expected:.1%} would by "
                "chance",
                measure="share of rows",
                strength=normal_interval(share, error, least=0, most=1),
                rows=tuple(table.rows[equal.get_column("row").head(5).to_numpy()].tolist()),
                remedy=REMEDY,
            )
        )
    return findings


def _expected_equal(both: pl.DataFrame) -> float:
    """The share of rows whose cell and label would be equal if they were independent."""
    cells = both.get_column("cell").value_counts(normalize=True, name="of_cells")
    labels = both.get_column("y").value_counts(normalize=True, name="of_labels")
    joined = cells.join(labels, left_on="cell", right_on="y")
    return float((joined.get_column("of_cells") * joined.get_column("of_labels")).sum())
