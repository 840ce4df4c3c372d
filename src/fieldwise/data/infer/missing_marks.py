"""Marks of missing values, such as N/A, in the cells of a table that a schema is inferred from."""

from collections.abc import Mapping

import polars as pl

from fieldwise.data.encode.numbers import is_mark, mark_test, marks_in, number_formats, plain_floats
from fieldwise.data.infer.profile import looks_like_dates
from fieldwise.data.read.text_types import TextTypes
from fieldwise.display import counted
from fieldwise.schema import Field
from fieldwise.schema.number_format import MISSING_MARKS


def marks_as_null(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, dict[str, int]]]:
    """The table with null for marks of missing values among numbers or times, and the marks by column.

    Such a column of text gets the type that it would have without them.
    """
    texts = frame.select(pl.col(pl.String))
    is_blank_or_mark = (pl.all().str.strip_chars() == "") | mark_test(pl.all(), MISSING_MARKS)
    has_marks = texts.select(is_blank_or_mark.any()).row(0) if texts.width else ()
    cleaned: list[pl.Series] = []
    marks: dict[str, dict[str, int]] = {}
    for column, has_some in zip(texts.iter_columns(), has_marks, strict=True):
        if not has_some:
            continue
        is_blank = (column != "") & (column.str.strip_chars() == "")
        is_missing = is_blank | is_mark(column, MISSING_MARKS)
        found = marks_in(column, MISSING_MARKS)
        if is_blank.any():
            found[" "] = int(is_blank.sum())
        cells = column.set(is_missing.fill_null(value=False), None)
        if found and _are_numbers_or_times(cells):
            cleaned.append(cells)
            marks[column.name] = found
    typed = TextTypes().add(pl.DataFrame(cleaned)) if cleaned else pl.DataFrame()
    return frame.with_columns(typed.iter_columns()), marks


def _are_numbers_or_times(column: pl.Series) -> bool:
    """Whether the cells that are not null are numbers, all but a few, or dates."""
    cells = column.drop_nulls().str.strip_chars()
    if not len(cells):
        return False
    numbers = len(cells) - plain_floats(cells).null_count()
    return numbers >= 0.99 * len(cells) or bool(number_formats(cells)) or looks_like_dates(cells)


def reads_marks(f: Field | None) -> bool:
    """Whether marks of missing values become missing cells: not in a field of categories."""
    return f is None or f.cell == "number"


def marks_note(marks: Mapping[str, int], f: Field | None) -> str:
    """What is made of the marks of missing values in a column."""
    shown = ", ".join(f"{mark!r} ({counted(many, 'cell')})" for mark, many in marks.items())
    return f"{shown} read as missing" if reads_marks(f) else f"{shown} a category of its own"
