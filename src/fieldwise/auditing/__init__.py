"""Whether a score is real: what in a table tells labels that a model will not have when it is used.

The audit itself is `fieldwise.audit`.
"""

from fieldwise.auditing.finding import SEVERITIES, AuditReport, Finding, Severity

__all__ = ["SEVERITIES", "AuditReport", "Finding", "Severity"]
