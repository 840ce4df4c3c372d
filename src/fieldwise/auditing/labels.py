"""What the labels allow: contradictions, groups of one class, and differences too small to be seen."""

import numpy as np
import polars as pl

from fieldwise.auditing.finding import Finding
from fieldwise.auditing.quick_model import (
    MOST_SCORED_ROWS,
    MOST_TRAINED_ROWS,
    can_learn,
    drawn,
    main_target,
    scores,
)
from fieldwise.auditing.table import TEST, TRAIN, AuditedTable
from fieldwise.evaluation.calibration import wilson
from fieldwise.evaluation.interval import Interval
from fieldwise.evaluation.ranking import delong

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
    rows = pl.DataFrame({"hash": hashes, "y": table.y, "row": table.rows})
    differs = rows.filter(pl.col("y").n_unique().over("hash") > 1).sort("hash")
    share = differs.height / max(len(table), 1)
    if share < LEAST_CONTRADICTED:
        return []
    low, high = wilson(differs.height, len(table))
    return [
        Finding(
            kind="contradictions",
            severity="low",
            what=f"{differs.height:,} rows equal another row in all columns and differ in the label",
            measure="share of rows",
            strength=Interval(value=share, low=float(low), high=float(high)),
            rows=tuple(differs.get_column("row").head(5).to_list()),
            remedy="know that no model can tell them apart, or add the column that does",
        )
    ]


def groups_of_one_class(table: AuditedTable) -> list[Finding]:
    """A finding on users whose labels are all the same, among the test rows where there are some."""
    if table.task != "binary" or table.user is None:
        return []
    used = table if table.part is None else table.of_part(TEST)
    if not len(used):
        return []
    rows = pl.DataFrame({"user": used.codes(table.user), "y": used.y, "row": used.rows})
    users = rows.group_by("user").agg(pl.col("y").n_unique(), pl.len(), pl.col("row").first())
    one_class = users.filter(pl.col("y") == 1)
    share = float(one_class.get_column("len").sum()) / len(used)
    if share < MOST_ONE_CLASS:
        return []
    low, high = wilson(share * len(used), len(used))
    return [
        Finding(
            kind="one-class-groups",
            severity="low",
            column=table.user,
            what=f"{one_class.height:,} of {users.height:,} values of {table.user!r} have rows of one label alone: "
            "group AUC leaves them out, and a model that knows the user knows the label",
            measure="share of rows",
            strength=Interval(value=share, low=float(low), high=float(high)),
            rows=tuple(one_class.get_column("row").head(5).to_list()),
            remedy="report AUC beside group AUC, and say how many groups count",
        )
    ]


def smallest_difference(table: AuditedTable) -> list[Finding]:
    """A finding on test rows that are too few to see the differences that models usually have.

    Two quick models are compared on them, one of all columns and one of half of the columns: the
    standard error of their paired difference (DeLong) is that of a usual comparison.
    """
    if table.part is None or len(table.columns) < 2:
        return []
    train = drawn(np.flatnonzero(table.part == TRAIN), MOST_TRAINED_ROWS, table.seed)
    test = drawn(np.flatnonzero(table.part == TEST), MOST_SCORED_ROWS, table.seed)
    target = main_target(table)
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
            what=f"on {len(test):,} test rows an AUC must be higher by {excess:.4f} to be seen as higher in four of "
            "five comparisons",
            measure="smallest difference of AUC",
            strength=Interval(value=excess, low=excess, high=excess),
            remedy="use more test rows or several seeds before you call a smaller difference an improvement",
        )
    ]
