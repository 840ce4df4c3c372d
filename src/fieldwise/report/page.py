"""What a page consists of, chapters, sections, figures and table cells, and its rendering into one HTML file.

The page escapes text but not drawings.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from fieldwise.charts import Chart, chart_style
from fieldwise.display import Table, number
from fieldwise.evaluation.interval import Interval
from fieldwise.version import __version__

FOLDER = Path(__file__).parent


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


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A chapter of the page, a run or the comparison of all runs, with the name, value and more of its key figures."""

    title: str
    sections: Sequence[Section]
    about: str = ""
    facts: Sequence[tuple[str, str, str]] = ()


def count(value: float) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.1f} %"


def interval_text(interval: Interval, sign: str = "") -> str:
    """The ends of a value's interval."""
    return f"{number(interval.low, sign)} to {number(interval.high, sign)}"


def measured(interval: Interval, sign: str = "") -> Markup:
    """A table cell with a value and its interval."""
    value = number(interval.value, sign)
    return Markup("{}<small>{}</small>").format(value, interval_text(interval, sign))


CELL_START = '<svg class="cell" viewBox="0 0 100 18" aria-hidden="true">'
"""Hidden from screen readers, because its number is in the cell before."""


def interval_cell(
    interval: Interval, span: tuple[float, float], *, rule: float | None = None
) -> Markup:
    """A table cell with a dot and its interval on a scale shared by all rows, with an optional reference line."""

    def x_of(value: float) -> str:
        return f"{float(np.interp(value, span, (4, 96))):.1f}"

    low = x_of(interval.low)
    high = x_of(interval.high)

    line = ""
    if rule is not None:
        line = f'<path class="rule" d="M{x_of(rule)} 0V18"/>'
    reach = ""
    if low != high:
        reach = f'<path class="reach c0" d="M{low} 9H{high}"/>'
    dot = f'<circle class="dot c0" cx="{x_of(interval.value)}" cy="9" r="3.5"/>'
    return Markup(f"{CELL_START}{line}{reach}{dot}</svg>")


def share_cell(share: float) -> Markup:
    """A table cell with a bar for a share within 0 and 1."""
    width = float(np.clip(100 * share, 1, 100))
    bar = f'<rect class="bar c0" y="4" width="{width:.1f}" height="10" rx="1.5"/>'
    return Markup(f"{CELL_START}{bar}</svg>")


def render(title: str, chapters: Sequence[Chapter]) -> str:
    """The page's HTML; the same chapters give the same bytes."""
    style = chart_style() + (FOLDER / "style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["words"] = _words
    environment.globals["kind"] = lambda block: type(block).__name__
    template = environment.from_string((FOLDER / "page.html").read_text("utf-8"))
    return template.render(
        title=title,
        chapters=chapters,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        version=__version__,
    )


def _words(text: str) -> Markup:
    """Escaped text, with parts between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)

    words = Markup("")
    for number_of_part, part in enumerate(parts):
        if number_of_part % 2 == 1:
            words += Markup("<code>{}</code>").format(part)
        else:
            words += escape(part)
    return words
