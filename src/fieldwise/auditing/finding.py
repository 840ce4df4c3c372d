"""What an audit finds, and the report of all findings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fieldwise.config import nearest
from fieldwise.display import Table
from fieldwise.errors import ConfigError
from fieldwise.evaluation.interval import Interval

Severity = Literal["high", "medium", "low"]
"""high: the score is not real unless this is explained; medium: to be looked at; low: to be known."""
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")
SHOWN_ROWS = 5
LEAST_P = 1e-9
"""Smaller probabilities are not told apart."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding of an audit.

    Args:
        kind: what was found, such as `predicts-alone`, `absence`, `own-label`, `equal-rows`.
        severity: how bad it is.
        column: the column concerned; None for the whole table.
        what: the finding in words.
        measure: what the strength measures, such as AUC; empty if nothing was measured.
        strength: the value of that measure, with its 95 % interval if it has one.
        rows: numbers of some of the table's rows to look at, from 0.
        p: probability that a table of this shape without the fault shows as much, over all columns
            compared; None if no chance is involved.
        remedy: what to do about it.
    """

    kind: str
    severity: Severity
    column: str | None = None
    what: str
    measure: str = ""
    strength: Interval | float | None = None
    rows: tuple[int, ...] = ()
    p: float | None = None
    remedy: str

    @property
    def value(self) -> float:
        """The strength without its interval; 0 if nothing was measured."""
        return self.strength.value if isinstance(self.strength, Interval) else self.strength or 0.0

    @property
    def sentence(self) -> str:
        """The finding with its strength and how sure it is."""
        text = self.what
        if isinstance(self.strength, Interval):
            text += f" ({self.measure} {self.strength.text()})"
        elif self.strength is not None:
            text += f" ({self.measure} {self.strength:.4f})"
        if self.p is not None:
            text += f"; by chance with probability {max(self.p, LEAST_P):.2g} at most"
        return text

    def to_plain(self) -> dict[str, Any]:
        """The finding as plain values for JSON."""
        plain = dict(vars(self))
        plain["rows"] = list(self.rows)
        if isinstance(self.strength, Interval):
            plain["strength"] = dict(vars(self.strength))
        elif self.strength is not None:
            plain["strength"] = {"value": self.strength, "low": None, "high": None}
        return plain


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """All findings of an audit, the worst first, and what was looked at.

    Args:
        findings: the findings.
        facts: what was audited: rows, columns, split, seed, samples.
    """

    findings: Sequence[Finding]
    facts: Mapping[str, Any]

    def failing(self, severity: str = "high") -> list[Finding]:
        """The findings that are at least this bad.

        >>> AuditReport(findings=[], facts={}).failing("medium")
        []
        """
        if severity not in SEVERITIES:
            raise ConfigError(
                f"a severity must be {', '.join(SEVERITIES)}, found {severity!r}: {nearest(severity, SEVERITIES)}"
            )
        limit = SEVERITIES.index(severity)
        return [f for f in self.findings if SEVERITIES.index(f.severity) <= limit]

    def table(self) -> Table:
        """The findings as a table, for a notebook, a report or a terminal."""
        rows = []
        for finding in self.findings:
            looked_at = ", ".join(map(str, finding.rows))
            cells = [finding.severity, finding.kind, finding.column or ""]
            rows.append([*cells, finding.sentence, looked_at, finding.remedy])
        heads = ["severity", "kind", "column", "what was found", "rows", "what to do"]
        return Table(heads, rows, title="Audit", words=range(1, len(heads)), note=self.note)

    @property
    def note(self) -> str:
        """What was looked at, in words."""
        facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.facts.items())
        return f"Audited: {facts}."

    def to_plain(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        findings = [finding.to_plain() for finding in self.findings]
        return {"findings": findings, "facts": dict(self.facts)}

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_plain(), indent=2)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """The findings by severity, and of one severity the strongest first."""

    def order(finding: Finding) -> tuple[int, float]:
        return SEVERITIES.index(finding.severity), -finding.value

    return sorted(findings, key=order)
