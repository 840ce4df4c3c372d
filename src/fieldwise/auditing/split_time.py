"""What a split that does not follow time hides: training rows that are later than test rows, and what that is worth."""

import numpy as np

from fieldwise.auditing.finding import Finding, Severity
from fieldwise.auditing.quick_model import can_learn, separation
from fieldwise.auditing.table import TEST, TRAIN, AuditedTable
from fieldwise.data.prepare.settings import LeaveLastOutSplit
from fieldwise.evaluation.interval import NORMAL_975, Interval, normal_interval

LEAST_LATER = 0.05
"""Test rows with later training rows, from which on the split does not follow time."""


def split_against_time(table: AuditedTable) -> list[Finding]:
    """A finding on a split whose training rows are later than test rows, with what a cut by time costs."""
    train = table.rows_of(TRAIN)
    test = table.rows_of(TEST)
    if table.times is None or not len(train) or not len(test):
        return []
    later = table.times[test] < table.times[train].max()
    share = float(later.mean())
    if share < LEAST_LATER:
        return []
    cost = cost_of_time(table, train, test)
    severity: Severity = "medium"
    what = f"{share:.0%} of the test rows are earlier than some training rows: the model learns from their future"
    remedy = "split by time (kind = 'time'), and report that score"
    if isinstance(table.split, LeaveLastOutSplit):
        severity = "low"
        what = f"leave-last-out lets the past of one user see the future of others: {what}"
        remedy = "report a split by time beside it"
    if cost is not None:
        what += "; what a quick model loses when the test rows are the latest"
    return [
        Finding(
            kind="split-against-time",
            severity=severity,
            what=what,
            remedy=remedy,
            column=table.time,
            measure="loss of AUC" if table.main_target.is_binary else "loss of .5 + rho/2",
            strength=cost,
            rows=table.shown_rows(test[later]),
        )
    ]


def cost_of_time(table: AuditedTable, train: np.ndarray, test: np.ndarray) -> Interval | None:
    """What a quick model's separation loses if the latest rows are the test rows, as many as now.

    Both are of different test rows, so that the interval is that of two independent values.
    """
    assert table.times is not None
    used = np.sort(np.concatenate([train, test]))
    by_time = used[np.argsort(table.times[used], kind="stable")]
    cut_train = by_time[: len(train)]
    cut_test = by_time[len(train) :]
    columns = [column for column in table.columns if column != table.time]
    if not columns or not can_learn(table, train, test, cut_train, cut_test):
        return None
    now = separation(table, columns, train, test)
    cut = separation(table, columns, cut_train, cut_test)
    error = float(np.hypot(now.high - now.low, cut.high - cut.low)) / (2 * NORMAL_975)
    return normal_interval(now.value - cut.value, error)
