"""The building blocks of sections, and their rendering into one HTML file; the page escapes text but not drawings."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from fieldwise.charts import Chart, chart_style
from fieldwise.display import Table, number
from fieldwise.evaluation.bootstrap import Estimate
from fieldwise.evaluation.slices import Interval
from fieldwise.version import __version__


@dataclass(frozen=True)
class Figure:
    """A figure with its data."""

    title: str
    drawing: Chart
    table: Table
    note: str = ""


class Caution(str):
    """A paragraph that warns."""


@dataclass(frozen=True)
class Code:
    """Preformatted text, collapsed under its title."""

    title: str
    text: str


Block = str | Table | Figure | Code | Mapping[str, str]
"""A paragraph, a table, a figure, a collapsed text, or names of metrics with a sentence that explains each."""


class Section(NamedTuple):
    """A part of the page with a heading."""

    title: str
    blocks: Sequence[Block]


def measured(found: Interval | Estimate, sign: str = "") -> Markup:
    """A table cell with a value and its interval."""
    ends = f"{number(found.low, sign)} to {number(found.high, sign)}"
    return Markup("{}<small>{}</small>").format(number(found.value, sign), ends)


def count(value: float) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * share:.1f} %"


FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A chapter of the page: a run, or the comparison of all runs.

    Args:
        facts: the key figures at the top: name, value and further text.
    """

    title: str
    sections: Sequence[Section]
    about: str = ""
    facts: Sequence[tuple[str, str, str]] = ()


def render(title: str, chapters: Sequence[Chapter]) -> str:
    """The page's HTML; the same chapters give the same bytes."""
    style = chart_style() + (FOLDER / "style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = _environment().from_string((FOLDER / "page.html").read_text("utf-8"))
    return template.render(
        title=title,
        chapters=chapters,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        version=__version__,
    )


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["words"] = _words
    environment.globals["kind"] = lambda block: type(block).__name__
    return environment


def _words(text: str) -> Markup:
    """Escaped text, with parts between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if k % 2 else escape(p) for k, p in enumerate(parts))
