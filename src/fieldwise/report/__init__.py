"""HTML reports about runs: one file that works offline (extra `report`)."""

from fieldwise.errors import MissingExtraError

try:
    import jinja2  # noqa: F401
except ImportError:
    raise MissingExtraError("a report needs Jinja: pip install 'fieldwise[report]'") from None

from fieldwise.report.build import ReportSettings, report

__all__ = ["ReportSettings", "report"]
