"""A page about runs: one HTML file that needs no network."""

from fieldwise.report.build import ReportSettings, chapters_of
from fieldwise.report.page import write_report
from fieldwise.report.runs import ReportedRun, open_run, rows_of

__all__ = ["ReportSettings", "ReportedRun", "chapters_of", "open_run", "rows_of", "write_report"]
