"""Numbers with decimal commas or thousands separators: detecting the format, and conversion to plain text."""

from typing import get_args

import polars as pl

from fieldwise.schema.label import NumberFormat

__all__ = ["number_formats", "plain_numbers"]

_MARKS: dict[NumberFormat, tuple[str, str]] = {  # thousands separator, as a pattern, and decimal mark
    "1,234.5": (",", "."),
    "1.234,5": (r"\.", ","),
    "1 234,5": (r"[ \x{a0}\x{202f}\x{2009}]", ","),
    "1'234.5": (r"['\x{2019}]", "."),
}


def number_formats(text: pl.Series) -> list[NumberFormat]:
    """The formats that fit every present cell; empty if there is none or if a cell is a plain number.

    >>> number_formats(pl.Series(["1.234,5", "7"])), number_formats(pl.Series(["1,234"]))
    (['1.234,5'], ['1,234.5', '1.234,5', '1 234,5'])
    """
    cells = text.drop_nulls().str.strip_chars()
    if not len(cells) or not cells.cast(pl.Float64, strict=False).null_count():
        return []
    sample = cells.head(1000)
    return [form for form in get_args(NumberFormat) if _fits(sample, form).all() and _fits(cells, form).all()]


def plain_numbers(text: pl.Series, form: NumberFormat) -> pl.Series:
    """Cells as plain numbers; those that do not fit the format become a text that is not a number.

    >>> plain_numbers(pl.Series(["1.234,5", "12", "1.5"]), "1.234,5").to_list()
    ['1234.5', '12', '?']
    """
    between, mark = _MARKS[form]
    plain = text.str.replace_all(between, "").str.replace(mark, ".", literal=True)
    return plain.zip_with(_fits(text, form), pl.Series(["?"])).zip_with(text.is_not_null(), text)


def _fits(text: pl.Series, form: NumberFormat) -> pl.Series:
    between, mark = _MARKS[form]
    pattern = rf"^[+-]?(?:\d{{1,3}}(?:{between}\d{{3}})+|\d+)(?:{'[.]' if mark == '.' else ','}\d+)?$"
    return text.str.contains(pattern).fill_null(True)
