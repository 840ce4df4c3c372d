"""What sections are made of; words are escaped by the page, drawings are not."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

__all__ = ["Block", "Code", "Figure", "Note", "Section", "Table", "Words", "count", "measured", "number", "percent"]

Cell = str | Markup


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells.

    Args:
        columns: headings.
        rows: as many cells each.
        title: above; none, where empty.
        note: below.
        words: columns that hold words, and stand to the left; the first always does.
        folded: whether it stands behind its title, to be opened.
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
    """A drawing with the numbers behind it.

    Args:
        title: above.
        drawing: SVG.
        table: what it shows, to be read or copied.
        note: below.
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
        warns: whether a reader must not miss it.
    """

    text: str
    warns: bool = False
    kind: str = field(default="note", init=False)


@dataclass(frozen=True, kw_only=True)
class Words:
    """Figures, each with the sentence that says what it means."""

    rows: Sequence[tuple[str, str]]
    kind: str = field(default="words", init=False)


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text as it is, behind a line to open it."""

    title: str
    text: str
    kind: str = field(default="code", init=False)


Block = Table | Figure | Note | Code | Words


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page under a heading."""

    title: str
    blocks: Sequence[Block]


def number(value: float, sign: str = "") -> str:
    """Four decimals, or four digits where it is large.

    >>> number(0.83941), number(-0.00001), number(123456.0)
    ('0.8394', '0.0000', '123456')
    """
    decimals = 4 if abs(value) < 100 else (2 if abs(value) < 10_000 else 0)
    text = f"{value:{sign}.{decimals}f}"
    return text.replace("-", sign, 1) if text.strip("-+0.") == "" and text.startswith("-") else text


def measured(value: float, low: float, high: float, sign: str = "") -> Markup:
    """A figure over its interval, for a cell of a table."""
    ends = f"{number(low, sign)} to {number(high, sign)}"
    return Markup("{}<small>{}</small>").format(number(value, sign), ends)


def count(value: float) -> str:
    """A whole number with its thousands parted."""
    return f"{value:,.0f}"


def percent(share: float) -> str:
    """A share in per cent.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * share:.1f} %"
