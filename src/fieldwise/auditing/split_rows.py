"""Rows, sessions and identities on both sides of a split."""

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from fieldwise.auditing.association import Target, highest_separation
from fieldwise.auditing.finding import Finding, Severity
from fieldwise.auditing.readings import readings
from fieldwise.auditing.table import TEST, TRAIN, AuditedTable
from fieldwise.evaluation.interval import Interval
from fieldwise.evaluation.slices import share_interval

MOST_COLUMNS = 60
"""More columns are not compared all but one."""
RARE_BY_CHANCE = 0.01
"""Equal training rows that a test row would have by chance, were columns independent."""
LEAST_SHARE = 0.05
LEAST_NEAR = 0.05
"""Near-equal rows across parts, beyond those within the training rows."""
SESSIONS = re.compile(
    r"(?i)(session|visit|basket|impression|request|query|search)(_?(id|no|number|key))?$"
)
LEAST_LEVELS = 20
LEAST_ROWS_PER_LEVEL = 3
LEAST_IDENTITY = 0.65
LEAST_BEYOND_ORDER = 0.15
APART = "remove copies before the split, or split by what repeats (the user, the session) and measure again"


def equal_rows(table: AuditedTable) -> list[Finding]:
    """Findings on test rows that equal a training row, in all columns or in all but one."""
    train = table.rows_of(TRAIN)
    test = table.rows_of(TEST)
    if not len(train) or not len(test) or len(table.columns) < 2:
        return []
    columns = list(dict.fromkeys([*table.columns, *table.ids]))
    if table.time is not None and table.time not in columns:
        columns.append(table.time)
    hashes = _column_hashes(table, columns)
    whole = hashes.sum(1)
    equal = np.isin(whole[test], whole[train])
    findings = []
    if equal.any():
        findings.append(_equal(table, test, equal, by_chance=_by_chance(table, columns, train)))
    if 4 <= hashes.shape[1] <= MOST_COLUMNS:
        near = _near(whole, hashes, test, train) & ~equal
        within = _near_within(whole, hashes, train)
        if float(near.mean()) - within >= LEAST_NEAR:
            findings.append(_near_equal(table, test, near, within))
    return findings


def _column_hashes(table: AuditedTable, columns: Sequence[str]) -> np.ndarray:
    """A hash of each cell [N, C] uint64; the sum over columns is that of the row."""
    hashed = [
        table.frame.select(pl.lit(k), pl.col(column)).hash_rows(seed=k).to_numpy()
        for k, column in enumerate(columns)
    ]
    return np.column_stack(hashed)


def _by_chance(table: AuditedTable, columns: Sequence[str], train: np.ndarray) -> float:
    """How many equal training rows a row would have by chance, were columns independent."""
    log_matches = np.log(len(train))
    for column in columns:
        shares = np.bincount(table.codes(column)[train]) / len(train)
        log_matches += np.log(np.square(shares).sum())
    return float(np.exp(log_matches))


def _near(
    whole: np.ndarray, hashes: np.ndarray, rows: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """Which rows equal one of the others in all columns but one."""
    near = np.zeros(len(rows), dtype=bool)
    for k in range(hashes.shape[1]):
        without = whole - hashes[:, k]
        near |= np.isin(without[rows], without[others])
    return near


def _near_within(whole: np.ndarray, hashes: np.ndarray, train: np.ndarray) -> float:
    """The share of training rows that equal another one in all columns but one, in two random halves."""
    halves = np.random.default_rng(0).permutation(train)
    middle = len(train) // 2
    if not middle:
        return 1.0
    return float(_near(whole, hashes, halves[:middle], halves[middle:]).mean())


def _equal(
    table: AuditedTable, test: np.ndarray, equal: np.ndarray, *, by_chance: float
) -> Finding:
    severity: Severity = "medium"
    note = ""
    if by_chance > RARE_BY_CHANCE:
        severity = "low"
        note = ", as rows of so few values do"
    elif equal.mean() >= LEAST_SHARE:
        severity = "high"
    return table.finding(
        "equal-rows",
        severity,
        f"{int(equal.sum()):,} of {len(test):,} test rows equal a training row in every column{note}",
        APART,
        measure="share of test rows",
        strength=share_interval(equal),
        at=test[equal],
    )


def _near_equal(table: AuditedTable, test: np.ndarray, near: np.ndarray, within: float) -> Finding:
    return table.finding(
        "near-equal-rows",
        "medium",
        f"{int(near.sum()):,} of {len(test):,} test rows equal a training row in all columns but one, where "
        f"{within:.1%} of the training rows have such a neighbour among the others",
        APART,
        measure="share of test rows",
        strength=share_interval(near),
        at=test[near],
    )


def sessions_on_both_sides(table: AuditedTable) -> list[Finding]:
    """Findings on sessions, or what their name says is one, with rows in training and test."""
    train = table.rows_of(TRAIN)
    test = table.rows_of(TEST)
    findings = []
    for column in table.frame.columns:
        if not SESSIONS.search(column) or column in table.ids:
            continue
        codes = table.codes(column)
        both = np.isin(codes[test], codes[train])
        if not both.any():
            continue
        findings.append(
            table.finding(
                "sessions-apart",
                "medium" if both.mean() >= LEAST_SHARE else "low",
                f"{int(both.sum()):,} test rows belong to a value of {column!r} that has training rows",
                "split whole sessions: the labels of rows of one session depend on each other",
                column=column,
                measure="share of test rows",
                strength=share_interval(both),
                at=test[both],
            )
        )
    return findings


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
        is_known = any(column == key or table.describes(column, key) for key in table.ids)
        order = _order(table, column)
        if interval.value < LEAST_IDENTITY or interval.value - order < LEAST_BEYOND_ORDER:
            continue
        known = float(np.isin(codes[test], codes[train]).mean())
        findings.append(
            table.finding(
                "identity",
                "low" if is_known else "medium",
                f"which value of {column!r} a row has, as a name alone, predicts the test labels, and {known:.0%} of "
                "the test rows have one of the training rows",
                "split by this column if new values come in use; else know that the score is of known ones",
                column=column,
                measure=table.measure,
                strength=interval,
                at=test,
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
    target = Target(values, binary=whole.is_binary)
    ranks = pl.Series(rates[codes[test]]).rank("average").to_numpy()
    return target.interval(target.separation(float(ranks @ target.values), float(ranks.std())))


def _order(table: AuditedTable, column: str) -> float:
    """How well the order of a column's numbers predicts; .5 if it has none."""
    ordered = [reading for reading in readings(table, column) if reading.is_ordered]
    return highest_separation(ordered, table.main_target, table.folds)
