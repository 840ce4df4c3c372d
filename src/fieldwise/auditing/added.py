"""What a column adds to all others, on the same held-out rows: one that adds too much is looked at.

A label of numbers counts by whether it is above its median.
"""

import numpy as np

from fieldwise.auditing.association import highest_separation
from fieldwise.auditing.columns import LEAST_LABEL_LIKE, REMEDIES
from fieldwise.auditing.finding import Finding
from fieldwise.auditing.quick_model import can_learn, held_out, scores
from fieldwise.auditing.readings import readings
from fieldwise.auditing.table import AuditedTable
from fieldwise.evaluation.interval import normal_interval
from fieldwise.evaluation.ranking import delong

ADDS = "adds-most"
MOST_ROWS = 40_000
MOST_CANDIDATES = 3
LEAST_ALONE = 0.78
LEAST_ADDED = 0.05
LEAST_OF_A_SIDE = 10
"""Held-out rows on each side of the middle."""


def columns_that_add_most(table: AuditedTable) -> list[Finding]:
    """Findings on columns that predict well alone and add much to all the others (paired, DeLong).

    Of a label of numbers the AUC is that of labels above their median.
    """
    table = table.sample(MOST_ROWS)
    target = table.main_target
    if len(table.columns) < 3:
        return []
    train, test = held_out(table)
    if not can_learn(table, train, test):
        return []
    columns = [column for column in table.columns if column not in (*table.ids, table.time)]
    candidates = _strongest(table, columns)
    if not candidates:
        return []
    positive = target.values[test]
    if not target.is_binary:
        positive = positive > np.median(positive)
    if min(positive.sum(), len(test) - positive.sum()) < LEAST_OF_A_SIDE:
        return []
    whole = scores(table, table.columns, train, test)
    findings = []
    for column, alone in candidates.items():
        others = [other for other in table.columns if other != column]
        result = delong(positive, whole, scores(table, others, train, test))
        added = normal_interval(result.difference, result.standard_error)
        if added.low < LEAST_ADDED:
            continue
        findings.append(
            Finding(
                kind=ADDS,
                severity="medium",
                what=(
                    f"column {column!r} alone has a separation of {alone:.4f}, and the others {result.second:.4f}: "
                    "it adds more than a usual column"
                ),
                remedy=REMEDIES["predicts-alone"],
                column=column,
                measure="AUC added to all others",
                strength=added,
                rows=table.shown_rows(test),
                p=min(result.p * len(columns), 1.0),
            )
        )
    return findings


def _strongest(table: AuditedTable, columns: list[str]) -> dict[str, float]:
    """The columns that predict best alone, with their separation, without those that alone are the label."""
    strong = {}
    for column in columns:
        alone = highest_separation(readings(table, column), table.main_target, table.folds)
        if LEAST_ALONE <= alone < LEAST_LABEL_LIKE:
            strong[column] = alone
    best = sorted(strong, key=lambda column: -strong[column])[:MOST_CANDIDATES]
    return {column: strong[column] for column in best}
