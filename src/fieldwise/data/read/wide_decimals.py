"""Decimals of more than 38 digits, which polars cannot read, as Float64."""

import warnings
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.data.read.arrow_library import arrow_library
from fieldwise.data.read.file_listing import kind_of
from fieldwise.errors import MissingExtraError

MOST_DIGITS = 38
"""Of a decimal of polars."""


def is_stream(path: Path) -> bool:
    """Whether a file is an Arrow stream, rather than the format with an index."""
    if kind_of(path) != "Arrow IPC":
        return False
    with path.open("rb") as file:
        return file.read(6) != b"ARROW1"


def wide_decimals(path: Path) -> list[str]:
    """The columns of a Parquet or Arrow file with decimals that polars cannot read, also within lists and structs."""
    if kind_of(path) == "Parquet":
        schema = pl.scan_parquet(path, glob=False).collect_schema()
        return [name for name, dtype in schema.items() if _is_wide(dtype)]
    if not is_stream(path):
        schema = pl.scan_ipc(path, glob=False).collect_schema()
        if not any(_has_decimals(dtype) for dtype in schema.dtypes()):
            return []
    try:
        arrow = arrow_library()
    except MissingExtraError:  # polars says what it cannot read
        return []
    try:
        with arrow.OSFile(str(path)) as file:
            reader = _arrow_reader(file, path)
            return [field.name for field in reader.schema if _holds_wide(field.type)]
    except arrow.ArrowException:  # polars says what is wrong with the file
        return []


def read_narrow(path: Path, columns: list[str]) -> pl.DataFrame:
    """The rows of a Parquet or Arrow file, read now, with decimals of more than 38 digits as Float64."""
    try:
        arrow = arrow_library()
    except MissingExtraError as e:
        raise MissingExtraError(
            f"column {columns[0]!r} of {path} has decimals of more than 38 digits, which are read through pyarrow, and "
            "it is not installed: pip install 'fieldwise[large]'"
        ) from e
    if kind_of(path) == "Parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path, partitioning=None)
    else:
        with arrow.OSFile(str(path)) as file:
            table = _arrow_reader(file, path).read_all()
    return pl.DataFrame(with_narrow_decimals(table, str(path)))


def with_narrow_decimals(table: Any, where: str) -> Any:
    """A pyarrow table whose decimals of 256 bits, which polars cannot read, are Float64; a warning names a column."""
    narrowed = []
    for index, field in enumerate(table.schema):
        if _holds_wide(field.type):
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


def _arrow_reader(file: Any, path: Path) -> Any:
    """The reader of an opened Arrow file."""
    ipc = arrow_library().ipc
    return ipc.open_stream(file) if is_stream(path) else ipc.open_file(file)


def _has_decimals(dtype: Any) -> bool:
    """Whether a polars type has decimals; polars does not tell those of 256 bits from others."""
    if isinstance(dtype, pl.Struct):
        return any(_has_decimals(part.dtype) for part in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _has_decimals(dtype.inner)
    return isinstance(dtype, pl.Decimal)


def _is_wide(dtype: Any) -> bool:
    """Whether a polars type has decimals of more than 38 digits."""
    if isinstance(dtype, pl.Decimal):
        return dtype.precision > MOST_DIGITS
    if isinstance(dtype, pl.Struct):
        return any(_is_wide(part.dtype) for part in dtype.fields)
    return isinstance(dtype, pl.List | pl.Array) and _is_wide(dtype.inner)


def _holds_wide(dtype: Any) -> bool:
    """Whether a pyarrow type has decimals of 256 bits."""
    if arrow_library().types.is_decimal256(dtype):
        return True
    return any(_holds_wide(dtype.field(k).type) for k in range(dtype.num_fields))


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
