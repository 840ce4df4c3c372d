"""What the labels allow: contradictions, groups of one class, and differences too small to be seen."""

import numpy as np
import polars as pl

from fieldwise.auditing.finding import Finding
from fieldwise.auditing.quick_model import (
    MOST_SCORED_ROWS,
    MOST_TRAINED_ROWS,
    can_learn,
    drawn,
    scores,
)
from fieldwise.auditing.table import TEST, TRAIN, AuditedTable
from fieldwise.evaluation.ranking import delong
from fieldwise.evaluation.slices import share_interval

LEAST_CONTRADICTED = 0.05
MOST_ONE_CLASS = 0.5
POWER = 2.8
"""Standard errors of a difference that is seen with 80 % power at the 5 % level (1.96 + .84)."""
LEAST_EXCESS = 0.005
"""Of AUC; smaller differences than this are rarely asked about."""


def contradicting_labels(table: AuditedTable) -> list[Finding]:
    """A finding on rows that are equal in all columns and differ in the label."""
    if table.task == "regression" or len(table.columns) < 2:
        return []
    hashes = table.frame.select(table.columns).hash_rows(seed=0)
    rows = pl.DataFrame({"hash": hashes, "y": table.y})
    differs = rows.select(pl.col("y").n_unique().over("hash") > 1).to_series().to_numpy()
    if not len(differs) or differs.mean() < LEAST_CONTRADICTED:
        return []
    places = np.flatnonzero(differs)
    return [
        Finding(
            kind="contradictions",
            severity="low",
            what=f"{len(places):,} rows equal another row in all columns and differ in the label",
            remedy="know that no model can tell them apart, or add the column that does",
            measure="share of rows",
            strength=share_interval(differs),
            rows=table.shown_rows(places[np.argsort(hashes.to_numpy()[places], kind="stable")]),
        )
    ]


def groups_of_one_class(table: AuditedTable) -> list[Finding]:
    """A finding on users whose labels are all the same, among the test rows where there are some."""
    if table.task != "binary" or table.user is None:
        return []
    used = table if table.part is None else table.take(table.rows_of(TEST))
    if not len(used):
        return []
    users = used.codes(table.user)
    rows = np.bincount(users)
    positives = np.bincount(users, weights=used.y > 0.5)
    is_one_class = (rows > 0) & ((positives == 0) | (positives == rows))
    of_one_class = is_one_class[users]
    if of_one_class.mean() < MOST_ONE_CLASS:
        return []
    return [
        Finding(
            kind="one-class-groups",
            severity="low",
            what=(
                f"{int(is_one_class.sum()):,} of {int((rows > 0).sum()):,} values of {table.user!r} have rows of one "
                "label alone: group AUC leaves them out, and a model that knows the user knows the label"
            ),
            remedy="report AUC beside group AUC, and say how many groups count",
            column=table.user,
            measure="share of rows",
            strength=share_interval(of_one_class),
            rows=used.shown_rows(np.flatnonzero(of_one_class)),
        )
    ]


def smallest_difference(table: AuditedTable) -> list[Finding]:
    """A finding on test rows that are too few to see the differences that models usually have.

    Two quick models are compared on them, one of all columns and one of half of the columns: the
    standard error of their paired difference (DeLong) is that of a usual comparison.
    """
    if len(table.columns) < 2:
        return []
    train = drawn(table.rows_of(TRAIN), MOST_TRAINED_ROWS, table.seed)
    test = drawn(table.rows_of(TEST), MOST_SCORED_ROWS, table.seed)
    target = table.main_target
    if not target.is_binary or not can_learn(table, train, test):
        return []
    columns = list(table.columns)
    whole = scores(table, columns, train, test)
    half = scores(table, columns[::2], train, test)
    result = delong(target.values[test], whole, half)
    excess = POWER * result.standard_error
    if excess < LEAST_EXCESS:
        return []
    return [
        Finding(
            kind="underpowered",
            severity="low",
            what=(
                f"on {len(test):,} test rows an AUC must be higher by {excess:.4f} to be seen as higher in four of "
                "five comparisons"
            ),
            remedy="use more test rows or several seeds before you call a smaller difference an improvement",
            measure="smallest difference of AUC",
            strength=excess,
        )
    ]
