"""pyarrow, which the extra `large` installs, and decimals of more than 38 digits, which it reads and polars cannot."""

import warnings
from typing import Any

import polars as pl

from fieldwise.errors import MissingExtraError

MOST_DIGITS = 38
"""Of a decimal of polars."""


def arrow_library() -> Any:
    """The module `pyarrow`."""
    try:
        import pyarrow.ipc
    except ImportError as e:
        raise MissingExtraError(
            "a table larger than its share of memory is read through pyarrow, which is not installed: "
            "pip install 'fieldwise[large]'"
        ) from e
    return pyarrow


def with_narrow_decimals(table: Any, where: str) -> Any:
    """A pyarrow table whose decimals of 256 bits, which polars cannot read, are Float64; a warning names a column."""
    narrowed = []
    for index, field in enumerate(table.schema):
        if holds_wide(field.type):
            narrowed.append(field.name)
            cells = table.column(index).cast(_narrow_type(field.type))
            table = table.set_column(index, field.name, cells)
    if narrowed:
        warnings.warn(
            f"column {narrowed[0]!r} of {where} has decimals of more than 38 digits, and is read as Float64",
            UserWarning,
            stacklevel=2,
        )
    return table


def has_decimals(dtype: Any) -> bool:
    """Whether a polars type has decimals; polars does not tell those of 256 bits from others."""
    if isinstance(dtype, pl.Struct):
        return any(has_decimals(part.dtype) for part in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return has_decimals(dtype.inner)
    return isinstance(dtype, pl.Decimal)


def is_wide(dtype: Any) -> bool:
    """Whether a polars type has decimals of more than 38 digits."""
    if isinstance(dtype, pl.Decimal):
        return dtype.precision > MOST_DIGITS
    if isinstance(dtype, pl.Struct):
        return any(is_wide(part.dtype) for part in dtype.fields)
    return isinstance(dtype, pl.List | pl.Array) and is_wide(dtype.inner)


def holds_wide(dtype: Any) -> bool:
    """Whether a pyarrow type has decimals of 256 bits."""
    if arrow_library().types.is_decimal256(dtype):
        return True
    return any(holds_wide(dtype.field(k).type) for k in range(dtype.num_fields))


def _narrow_type(dtype: Any) -> Any:
    """A pyarrow type with Float64 in the place of decimals of 256 bits."""
    arrow = arrow_library()
    if arrow.types.is_decimal256(dtype):
        return arrow.float64()
    if arrow.types.is_fixed_size_list(dtype):
        return arrow.list_(_narrow_type(dtype.value_type), dtype.list_size)
    if arrow.types.is_list(dtype):
        return arrow.list_(_narrow_type(dtype.value_type))
    if arrow.types.is_large_list(dtype):
        return arrow.large_list(_narrow_type(dtype.value_type))
    if arrow.types.is_struct(dtype):
        parts = [dtype.field(k) for k in range(dtype.num_fields)]
        return arrow.struct([(part.name, _narrow_type(part.type)) for part in parts])
    return dtype
