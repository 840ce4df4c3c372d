"""All detectors in their order, and what they find in the audited rows."""

from collections.abc import Callable, Sequence
from typing import Any

from fieldwise.auditing.added import ADDS, columns_that_add_most
from fieldwise.auditing.columns import (
    MOST_ROWS,
    columns_alone,
    columns_alone_quickly,
    filled_cells_alone,
)
from fieldwise.auditing.drift import columns_that_tell_the_part
from fieldwise.auditing.finding import AuditReport, Finding, worst_first
from fieldwise.auditing.future import changed_copies, knows_later_labels, later_times
from fieldwise.auditing.labels import contradicting_labels, groups_of_one_class, smallest_difference
from fieldwise.auditing.negatives import context_of_drawn_negatives, drawn_told_from_seen
from fieldwise.auditing.own_labels import own_labels
from fieldwise.auditing.prepared_elsewhere import learned_on_all_rows
from fieldwise.auditing.purity import PURE, copies_of_label, pure_values
from fieldwise.auditing.split_rows import equal_rows, groups_on_both_sides, identity_alone
from fieldwise.auditing.split_time import split_against_time
from fieldwise.auditing.table import AuditedTable

Detector = Callable[[AuditedTable], list[Finding]]
DETECTORS: tuple[Detector, ...] = (
    columns_alone,
    filled_cells_alone,
    pure_values,
    copies_of_label,
    columns_that_add_most,
    own_labels,
    later_times,
    changed_copies,
    knows_later_labels,
    equal_rows,
    groups_on_both_sides,
    identity_alone,
    split_against_time,
    columns_that_tell_the_part,
    learned_on_all_rows,
    context_of_drawn_negatives,
    drawn_told_from_seen,
    contradicting_labels,
    groups_of_one_class,
    smallest_difference,
)
"""Functions from the audited rows to findings."""
QUICK_DETECTORS: tuple[Detector, ...] = (
    columns_alone_quickly,
    own_labels,
    later_times,
    context_of_drawn_negatives,
)
"""Those without models and permutations, for commands that do something else."""


def strong_findings(table: AuditedTable) -> list[Finding]:
    """The high findings of the quick detectors."""
    return audit_rows(table, QUICK_DETECTORS).failing("high")


def audit_rows(table: AuditedTable, detectors: Sequence[Detector] = DETECTORS) -> AuditReport:
    """The findings of detectors, the worst first."""
    findings: list[Finding] = []
    for detector in detectors:
        findings += detector(table)
    facts: dict[str, Any] = {
        "rows": len(table),
        "columns": len(table.columns),
        "label": table.label,
        "seed": table.seed,
    }
    if table.dropped:
        facts["rows_without_label"] = table.dropped
    if table.left_out:
        facts["columns_left_out"] = table.left_out
    if table.split is not None:
        facts["split"] = table.split.kind
    if len(table) > MOST_ROWS:
        facts["rows_sampled_for_columns"] = MOST_ROWS
    return AuditReport(findings=_without_repeats(findings), facts=facts)


def _without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, the worst first, without others of the kind on a column or weaker words on a label-like one."""
    weaker = (PURE, ADDS)
    telling = {f.column for f in findings if f.severity == "high" and f.kind not in weaker}
    results: dict[tuple[str, str | int], Finding] = {}
    for position, finding in enumerate(worst_first(findings)):
        if finding.kind in weaker and finding.column in telling:
            continue
        results.setdefault((finding.kind, finding.column or position), finding)
    return list(results.values())
