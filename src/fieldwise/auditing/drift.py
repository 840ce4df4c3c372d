"""Adversarial validation by column: whether a column tells test rows from training rows."""

import numpy as np

from fieldwise.auditing.association import Scorer, Target, separations
from fieldwise.auditing.columns import MOST_ROWS, telling_rows
from fieldwise.auditing.finding import Finding, Severity
from fieldwise.auditing.readings import WAYS, readings
from fieldwise.auditing.table import TEST, TRAIN, AuditedTable
from fieldwise.data.prepare.settings import LeaveLastOutSplit, RandomSplit, TimeSplit

FAMILY_WISE = 0.01
PERMUTATIONS = 199
LEAST = {RandomSplit: 0.55, TimeSplit: 0.7, LeaveLastOutSplit: 0.7}
LEAST_OF_COLUMN_SPLIT = 0.65


def columns_that_tell_the_part(table: AuditedTable) -> list[Finding]:
    """Findings on columns whose values differ between training and test rows beyond chance."""
    if table.split is None:
        return []
    both = np.sort(np.concatenate([table.rows_of(TRAIN), table.rows_of(TEST)]))
    used = table.take(both).sample(MOST_ROWS)
    assert used.part is not None
    is_test = used.part == TEST
    if not 20 <= is_test.sum() <= len(used) - 20:
        return []
    columns = [c for c in table.columns if c not in (table.time, *table.ids)]
    all_readings = [reading for column in columns for reading in readings(used, column)]
    if not all_readings:
        return []
    scorers = [Scorer(reading, used.folds) for reading in all_readings]
    target = Target(is_test, binary=True)
    least = LEAST.get(type(table.split), LEAST_OF_COLUMN_SPLIT)
    if max(scorer.separation(target.values, target) for scorer in scorers) < least:
        return []
    result = separations(scorers, target, permutations=PERMUTATIONS, seed=used.seed, strata=None)
    follows_time = isinstance(table.split, (TimeSplit, LeaveLastOutSplit))
    severity: Severity = "low" if follows_time else "medium"
    findings: dict[str, Finding] = {}
    for k in np.argsort(-result.values):
        reading = all_readings[k]
        is_weak = result.values[k] < least or result.p_family[k] > FAMILY_WISE
        if is_weak or reading.column in findings:
            continue
        findings[reading.column] = Finding(
            kind="tells-the-part",
            severity=severity,
            what=f"{WAYS[reading.way].format(repr(reading.column))} tells test rows from training rows",
            remedy=(
                "find out why it changes: a new scale or meaning, another way of filling gaps, or an id that grows; a "
                "model cannot use what does not last"
            ),
            column=reading.column,
            measure="AUC",
            strength=target.interval(float(result.values[k])),
            rows=used.shown_rows(telling_rows(reading, target, used.folds)),
            p=float(result.p_family[k]),
        )
    return list(findings.values())
