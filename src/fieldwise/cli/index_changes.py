"""The catalogue of an index after the changes of `fieldwise index --changes` and `--remove`."""

import polars as pl
from polars.exceptions import PolarsError

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.errors import DataError

__all__ = ["merged"]


def merged(
    old: pl.DataFrame, changed: pl.DataFrame | None, gone: pl.DataFrame | None, given: pl.DataFrame | None, column: str
) -> pl.DataFrame:
    """The catalogue after some changes: `changed` rows replace old ones or are appended, ids in `gone` are removed."""
    base = old if changed is not None or given is None else given
    for table, name in ((changed, "--items"), (gone, "--remove")):
        if table is not None and column not in table.columns:
            raise DataError(
                f"the table of {name} must have the column {column!r} of ids: {nearest(column, table.columns)}"
            )
    if changed is not None:
        if sorted(changed.columns) != sorted(old.columns):
            raise DataError(
                f"changed items must have the columns of the index: {', '.join(old.columns)}; found "
                f"{', '.join(changed.columns)}"
            )
        new = as_text(changed.get_column(column)).implode()
        base = base.filter(~as_text(base.get_column(column)).is_in(new))
        base = pl.concat(
            [base, pl.DataFrame([_as(changed.get_column(c), base.get_column(c).dtype) for c in base.columns])]
        )
    if gone is None:
        return base
    ids = as_text(gone.get_column(column))
    unknown = ids.filter(~ids.is_in(as_text(base.get_column(column)).implode()))
    if len(unknown):
        raise DataError(f"--remove must name items of the index, found {unknown[0]!r}, which is not in it")
    return base.filter(~as_text(base.get_column(column)).is_in(ids.implode()))


def _as(column: pl.Series, kind: pl.DataType) -> pl.Series:
    """A column cast to the index's type, if the cast changes no value."""
    try:
        cast = column.cast(kind)
        same = cast.cast(column.dtype).eq_missing(column)
    except PolarsError:
        cast = column.cast(kind, strict=False)
        same = cast.is_null() == column.is_null()
    if not same.all():
        row = int((~same).arg_max() or 0)
        raise DataError(
            f"changed items must have the types of the index: column {column.name!r} is {kind} there, found "
            f"{column[row]!r} in row {row} (counting from 0); build the index from the whole catalogue instead"
        )
    return cast
