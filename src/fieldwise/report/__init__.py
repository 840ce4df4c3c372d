"""A page about runs: one HTML file that needs no network (extra `report`)."""

from fieldwise.errors import MissingExtraError

try:
    import jinja2  # noqa: F401 (is it there?)
except ImportError:
    raise MissingExtraError("a report needs Jinja: pip install 'fieldwise[report]'") from None

from fieldwise.report.build import ReportSettings, chapters_of
from fieldwise.report.page import render, write_report
from fieldwise.report.runs import ReportedRun, open_run, prepared_of, rows_of

__all__ = [
    "ReportSettings",
    "ReportedRun",
    "chapters_of",
    "open_run",
    "prepared_of",
    "render",
    "rows_of",
    "write_report",
]
