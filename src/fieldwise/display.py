"""Tables for notebooks, reports and terminals, and pandas frames (extra `pandas`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from fieldwise.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

SHOWN_ROWS = 20
LONGEST = 80  # characters of a cell
LISTED = 5
"""Texts that a sentence lists."""


@dataclass(frozen=True)
class Table:
    """A table of values or texts, for a notebook, a report or a terminal.

    Args:
        columns: headings.
        rows: the cells of each row, one per column.
        title: text above; may be empty.
        note: text below.
        words: in a report, text columns, which are left-aligned; the first always is.
        folded: in a report, whether it is collapsed under its title.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    note: str = ""
    words: Sequence[int] = ()
    folded: bool = False

    def _repr_html_(self) -> str:
        """The table for a notebook, with numbers right-aligned.

        >>> Table(title="a < b", columns=["n"], rows=[[1]])._repr_html_()[:22]
        '<p><b>a &lt; b</b></p>'
        """
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        above = f"<p><b>{escape(self.title)}</b></p>"
        below = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"{above}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def counted(number: float, singular: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "epoch"), counted(0.25, "epoch"), counted(1200, "entry", "entries")
    ('1 epoch', '0.25 epochs', '1,200 entries')
    """
    shown = f"{number:,}" if isinstance(number, int) else f"{number:.4g}"
    return f"{shown} {singular if number == 1 else plural or f'{singular}s'}"


def listed(texts: Sequence[str], rest: str = ", ...") -> str:
    """Texts in quotes, the first five of many; `rest` stands for the others.

    >>> listed("ab"), listed("abcdef", " and 1 more")
    ("'a', 'b'", "'a', 'b', 'c', 'd', 'e' and 1 more")
    """
    shown = ", ".join(map(repr, texts[:LISTED]))
    return shown + rest if len(texts) > LISTED else shown


def number(value: float, sign: str = "") -> str:
    """A number with four decimals, or with four digits if it is large.

    >>> number(0.83941), number(-0.00001), number(123456.0)
    ('0.8394', '0.0000', '123456')
    """
    decimals = 0
    if abs(value) < 10_000:
        decimals = 2
    if abs(value) < 100:
        decimals = 4
    text = f"{value:{sign}.{decimals}f}"
    is_zero = text.strip("-+0.") == ""
    return text.replace("-", sign, 1) if is_zero else text


def _cell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        text = {True: "yes", False: "", None: ""}[value]
        side = "left"
    elif isinstance(value, int | float):
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
        side = "right"
    else:
        text = str(value)
        side = "left"
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f'<td style="text-align:{side}">{escape(cut)}</td>'


def pandas_frame(data: Any, types: Mapping[str, Any] | None = None) -> "pd.DataFrame":
    """A pandas frame of rows or columns.

    Args:
        data: what `polars.DataFrame` takes: a mapping per row, or values by column.
        types: Polars types of columns that may have no value.

    Errors:
        MissingExtraError: pandas or pyarrow is missing.
    """
    import polars as pl

    try:
        return pl.DataFrame(data, schema_overrides=types, infer_schema_length=None).to_pandas()
    except ImportError:
        raise MissingExtraError(
            "to_pandas needs pandas and pyarrow: pip install 'fieldwise[pandas]'"
        ) from None
