"""Whether a score is real: what in a table tells labels that a model will not have when it is used."""

from fieldwise.auditing.finding import SEVERITIES, AuditReport, Finding, Severity
from fieldwise.auditing.run import audit

__all__ = ["SEVERITIES", "AuditReport", "Finding", "Severity", "audit"]
