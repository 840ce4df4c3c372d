"""Checks of the tables that an encoder is fitted on or encodes."""

from collections.abc import Collection
from itertools import chain

import polars as pl

from fieldwise.data.encode.cells import bag_cells
from fieldwise.data.encode.columns import as_number
from fieldwise.data.encode.fitted import MISSING, UNKNOWN, Fitted, Hashing, Vocabulary
from fieldwise.errors import DataError
from fieldwise.schema import Field, Schema
from fieldwise.schema.fields import ListField
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["check_rows", "check_shared_values", "check_table", "column_of"]

PROBE_ROWS = 10_000


def check_table(
    frame: pl.DataFrame, schema: Schema, *, made_later: Collection[str] = (), scratch: Scratch = IN_MEMORY
) -> None:
    """Check that a table has every column of the schema's fields, with numbers in numeric ones.

    Args:
        frame: the table.
        schema: its schema.
        made_later: columns to ignore, since they are made from the table later.
        scratch: how many rows are processed at once.

    Errors:
        DataError: names the column and, for a bad value, the row.
    """
    for f in schema.fields:
        if f.column in made_later:
            continue
        column = column_of(frame, f)
        if f.cell == "number":
            what = f"column {f.column!r} (field {f.name!r})"
            for at in scratch.pieces(len(column)):
                as_number(column[at], what, first_row=at.start, form=f.number_format)


def check_shared_values(f: ListField, fitted: Fitted, column: pl.Series, scratch: Scratch) -> None:
    """Check that some value of a history is one of the shared field's, which else would go unnoticed."""
    assert isinstance(fitted, (Vocabulary, Hashing)), "only a Categorical field's rows are shared"
    known = UNKNOWN + 1 if isinstance(fitted, Vocabulary) else MISSING + 1
    # The first rows are nearly always sufficient, and a whole column of histories is long.
    pieces = (column[at] for at in scratch.pieces(len(column)))
    if not any((bag_cells(f, fitted, rows).ids >= known).any() for rows in chain([column.head(PROBE_ROWS)], pieces)):
        raise DataError(
            f"a field that shares rows needs values of the shared field: no training row's column {f.column!r} (field "
            f"{f.name!r}) holds a value of field {f.shares!r}; check the column and its separator {f.separator!r}"
        )


def column_of(frame: pl.DataFrame, f: Field) -> pl.Series:
    """A field's column.

    Errors:
        DataError: the table does not have it.
    """
    if f.column not in frame.columns:
        raise DataError(
            f"the table must hold every column of the schema: {f.column!r} (field {f.name!r}) is missing among "
            f"{', '.join(frame.columns)}"
        )
    return frame.get_column(f.column)


def check_rows(train: pl.DataFrame) -> None:
    """Check that there are rows to learn from."""
    if train.height == 0:
        raise DataError("an encoder needs training rows, found none")
