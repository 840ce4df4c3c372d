"""Negatives that were drawn, not seen: what tells them from positives is how they were made.

A context that is constant for an item among positives, and arbitrary among drawn negatives, gives
the label away (Frappe's `cost`): a tuple of item and context that no positive has is a negative.
"""

import numpy as np

from fieldwise.auditing.association import Target
from fieldwise.auditing.finding import Finding, Severity
from fieldwise.auditing.quick_model import can_learn, held_out, separation
from fieldwise.auditing.table import TEST, AuditedTable
from fieldwise.evaluation.interval import Interval

LEAST_CONSTANT = 0.95
"""Share of held-out positives whose context is the one of the other positives of their item."""
MOST_COMMON = 0.99
"""A context with one value in more rows is constant without an item."""
LEAST_DIFFERENCE = 0.05
NEARLY_ALWAYS = 0.995
"""From this share on, any other pair is a negative."""
LEAST_ROWS = 50
MOST_ROWS = 100_000
LEAST_TOLD = 0.6
LEAST_TOLD_HIGH = 0.9


def context_of_drawn_negatives(table: AuditedTable) -> list[Finding]:
    """Findings on columns that one item or user has constant among positives, and not among negatives."""
    if table.task != "binary":
        return []
    findings = []
    for key in table.ids:
        keys = table.codes(key)
        for column in table.columns:
            if column in table.ids or column == table.time:
                continue
            finding = _tuples(table, key, keys, column)
            if finding is not None:
                findings.append(finding)
    return findings


def drawn_told_from_seen(table: AuditedTable) -> list[Finding]:
    """A finding on negatives drawn by a recipe that a quick model tells from what was seen, without users and items."""
    if not table.drawn_negatives:
        return []
    table = table.sample(MOST_ROWS)
    columns = []
    for column in table.columns:
        describes = any(column == key or table.describes(column, key) for key in table.ids)
        if not describes and column != table.time:
            columns.append(column)
    train, test = held_out(table)
    if not columns or not can_learn(table, train, test):
        return []
    told = separation(table, columns, train, test)
    if told.low < LEAST_TOLD:
        return []
    return [
        Finding(
            kind="drawn-told-from-seen",
            severity="high" if told.low >= LEAST_TOLD_HIGH else "medium",
            what=(
                f"a quick model tells drawn negatives from what was seen by {', '.join(columns)}, which describe no "
                "user and no item"
            ),
            remedy="give drawn negatives the context of the positive that they are drawn for",
            measure="AUC",
            strength=told,
            rows=table.shown_rows(test),
        )
    ]


def _tuples(table: AuditedTable, key: str, keys: np.ndarray, column: str) -> Finding | None:
    """Whether the pair of a key and a column tells positives, as pairs that positives have."""
    codes = table.codes(column)
    if codes.max() > len(table) // 20 and table.numbers(column) is not None:
        return None
    positive = table.y > 0.5
    if not LEAST_ROWS <= positive.sum() <= len(table) - LEAST_ROWS:
        return None
    if np.bincount(codes[positive]).max() > MOST_COMMON * positive.sum():
        return None
    fitted, held = _halves(table)
    usual = _usual_value(keys, codes, positive & fitted)
    known = usual[keys] >= 0
    same = usual[keys] == codes
    held_positive = positive & held & known
    held_negative = ~positive & held & known
    if min(held_positive.sum(), held_negative.sum()) < LEAST_ROWS:
        return None
    of_positives = float(same[held_positive].mean())
    of_negatives = float(same[held_negative].mean())
    difference = of_positives - of_negatives
    if of_positives < LEAST_CONSTANT or difference < LEAST_DIFFERENCE:
        return None
    severity: Severity = "high" if of_positives >= NEARLY_ALWAYS else "medium"
    rows = np.flatnonzero(held_negative & ~same)
    return Finding(
        kind="drawn-negatives",
        severity=severity,
        what=(
            f"{of_positives:.1%} of the positives have the value of {column!r} that other positives of their {key!r} "
            f"have, and {of_negatives:.1%} of the negatives: pairs that no positive has tell which rows were drawn"
        ),
        remedy=(
            f"give drawn negatives the value that {column!r} had for the drawn {key!r} ([negatives] item_columns), or "
            "leave the column out"
        ),
        column=column,
        measure="AUC",
        strength=_auc(same, held_positive, held_negative),
        rows=table.shown_rows(rows),
    )


def _halves(table: AuditedTable) -> tuple[np.ndarray, np.ndarray]:
    """The rows to learn usual values from, and those to measure on: test rows, else a random half."""
    held = np.random.default_rng(table.seed).random(len(table)) < 0.5
    test = table.rows_of(TEST)
    if len(test) >= 4 * LEAST_ROWS:
        held[:] = False
        held[test] = True
    return ~held, held


def _usual_value(keys: np.ndarray, codes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The most frequent code of each key among some rows, -1 without one."""
    pairs, counts = np.unique(np.stack([keys[rows], codes[rows]]), axis=1, return_counts=True)
    order = np.argsort(counts, kind="stable")
    usual = np.full(int(keys.max()) + 1, -1)
    usual[pairs[0][order]] = pairs[1][order]
    return usual


def _auc(same: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> Interval:
    """The AUC of having the usual value, for positives against negatives."""
    value = 0.5 + (float(same[positives].mean()) - float(same[negatives].mean())) / 2
    labels = np.concatenate([np.ones(positives.sum()), np.zeros(negatives.sum())])
    return Target(labels, binary=True).interval(value)
