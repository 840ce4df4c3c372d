"""The section on whether the score is real: what the quick detectors of `fieldwise audit` find."""

from fieldwise.auditing.detectors import QUICK_DETECTORS, audit_rows
from fieldwise.auditing.table import of_prepared
from fieldwise.display import Table
from fieldwise.report.page import Block, Caution, Section
from fieldwise.report.reported_run import ReportedRun

CLOSER = "`fieldwise audit RECIPE` looks closer: permutations, the split, what a cut by time costs."


def audit_section(run: ReportedRun) -> Section:
    """A section on what tells labels that the model will not have when it is used."""
    table = of_prepared(run.prepared, run.recipe.schema, run.recipe.split)
    report = audit_rows(table, QUICK_DETECTORS)
    if not report.findings:
        return Section("Is the score real?", [f"The quick checks found nothing. {CLOSER}"])
    rows = [
        [finding.severity, finding.column or "", finding.sentence, finding.remedy]
        for finding in report.findings
    ]
    blocks: list[Block] = [
        Table(["severity", "column", "what was found", "what to do"], rows, words=(1, 2, 3))
    ]
    if report.failing("high"):
        blocks.insert(0, Caution("The score is not real unless what is found here is explained."))
    return Section("Is the score real?", [*blocks, CLOSER])
