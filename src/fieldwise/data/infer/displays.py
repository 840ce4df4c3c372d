"""Columns that only rename an id or another column, and so are no fields beside it."""

from collections.abc import Mapping
from hashlib import sha256

import polars as pl

from fieldwise.data.infer.entities import Entities
from fieldwise.data.infer.profile import Columns
from fieldwise.schema import Field

MANY_VALUES = 50
"""Values of a column that are worth a field once only."""
_NAMES_PER_ID = 0.95
"""A column with at least this many values per id is a name of it."""


def displays(columns: Columns, fields: Mapping[str, Field], entities: Entities) -> dict[str, str]:
    """The columns of fields that only rename an id or an earlier field of many values, each with the reason."""
    results: dict[str, str] = {}
    by_grouping: dict[bytes, str] = {}  # of the rows, the first field with many values
    for column, f in fields.items():
        if f.cell != "category":
            continue
        values = columns[column].distinct
        why = _display_of_id(columns, column, values, entities)
        if values > MANY_VALUES and not why:
            other = by_grouping.setdefault(_grouping(columns[column].cells), column)
            why = "" if other == column else f"it is one to one with {other!r}"
        if why:
            results[column] = why
    return results


def _display_of_id(columns: Columns, column: str, values: int, entities: Entities) -> str:
    """Why a column only displays another column's id, and so is no field; an empty text if it does not."""
    for side, key in entities.ids.items():
        is_one_to_one = key in entities.determined.get(column, ())
        if key != entities.key_of(column) or not is_one_to_one:
            continue
        keys = columns[key].distinct
        if keys > MANY_VALUES and values >= _NAMES_PER_ID * keys:
            return (
                f"a display name of the {side}, nearly one to one ({values:,} values for {keys:,} of {key!r}), "
                "which already has a field"
            )
    return ""


def _grouping(column: pl.Series) -> bytes:
    """A digest of which rows have the same cell: equal for two columns that are one to one.

    >>> words, copy, other = (pl.Series(list(cells)) for cells in ("abac", "xyxz", "xxyz"))
    >>> _grouping(words) == _grouping(copy), _grouping(words) == _grouping(other)
    (True, False)
    """
    rows = column.to_frame("cell").with_row_index("row")
    first_row_of_cell = rows.select(pl.col("row").first().over("cell")).to_series()
    return sha256(first_row_of_cell.to_numpy().tobytes()).digest()
