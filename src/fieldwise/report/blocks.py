"""The building blocks of sections; the page escapes text but not drawings."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

__all__ = ["Block", "Code", "Figure", "Note", "Section", "Table", "Words", "count", "measured", "number", "percent"]

Cell = str | Markup


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Args:
        columns: headings.
        rows: the cells of each row, one per column.
        title: text above; may be empty.
        note: text below.
        words: text columns, which are left-aligned; the first always is.
        folded: whether it is collapsed under its title.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""
    words: Sequence[int] = ()
    folded: bool = False
    kind: str = field(default="table", init=False)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure with its data.

    Args:
        title: text above.
        drawing: SVG.
        table: the data shown.
        note: text below.
    """

    title: str
    drawing: Markup
    table: Table
    note: str = ""
    kind: str = field(default="figure", init=False)


@dataclass(frozen=True, kw_only=True)
class Note:
    """A paragraph.

    Args:
        warns: whether it is a warning.
    """

    text: str
    warns: bool = False
    kind: str = field(default="note", init=False)


@dataclass(frozen=True, kw_only=True)
class Words:
    """Metrics, each with a sentence that explains it."""

    rows: Sequence[tuple[str, str]]
    kind: str = field(default="words", init=False)


@dataclass(frozen=True, kw_only=True)
class Code:
    """Preformatted text, collapsed under its title."""

    title: str
    text: str
    kind: str = field(default="code", init=False)


Block = Table | Figure | Note | Code | Words


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page with a heading."""

    title: str
    blocks: Sequence[Block]


def number(value: float, sign: str = "") -> str:
    """A number with four decimals, or with four digits if it is large.

    >>> number(0.83941), number(-0.00001), number(123456.0)
    ('0.8394', '0.0000', '123456')
    """
    decimals = 4 if abs(value) < 100 else (2 if abs(value) < 10_000 else 0)
    text = f"{value:{sign}.{decimals}f}"
    return text.replace("-", sign, 1) if text.strip("-+0.") == "" and text.startswith("-") else text


def measured(value: float, low: float, high: float, sign: str = "") -> Markup:
    """A table cell with a value and its interval."""
    ends = f"{number(low, sign)} to {number(high, sign)}"
    return Markup("{}<small>{}</small>").format(number(value, sign), ends)


def count(value: float) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * share:.1f} %"
