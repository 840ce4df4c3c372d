"""Digests of a table's rows, equal on every machine and in every version.

A digest begins with the version of its rule, so that digests by different rules are never equal.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import numpy as np
import polars as pl

from fieldwise.storage.threads import each

__all__ = ["ROWS_VERSION", "digest_rows", "first_rows_digest"]

ROWS_VERSION = "rows2:"
SLICE_ROWS = 1 << 18
Slices = Callable[[], Iterator[pl.Series]]  # a column, slice by slice, as often as it is called


def digest_rows(frame: pl.DataFrame) -> str:
    """SHA-256 over a table's columns: their names, kinds of values, and values in order.

    Integer and float widths do not matter, nor whether text is stored as categories.

    >>> rows = pl.DataFrame({"user": ["a", None], "age": [3, 4]})
    >>> digest_rows(rows) == digest_rows(rows.cast({"age": pl.Int8}))
    True
    >>> digest_rows(rows) == digest_rows(rows[::-1])
    False
    """
    whole = hashlib.sha256(f"{frame.height} rows".encode())
    for column, digest in zip(frame, each(_column_digest, frame.get_columns(), rows=frame.height), strict=True):
        name = column.name.encode()
        whole.update(len(name).to_bytes(8, "little") + name + digest)
    return ROWS_VERSION + whole.hexdigest()


def first_rows_digest(frame: pl.DataFrame) -> str:
    """The digest used up to version 0.1, found in older bundles: SHA-256 of the table as JSON lines."""
    digest = hashlib.sha256()
    for rows in frame.iter_slices(SLICE_ROWS):
        digest.update(rows.write_ndjson().encode())
    return digest.hexdigest()


def _column_digest(column: pl.Series) -> bytes:
    def slices() -> Iterator[pl.Series]:
        return (column.slice(start, SLICE_ROWS) for start in range(0, len(column), SLICE_ROWS))

    digest = hashlib.sha256()
    for part in _parts(column.dtype, slices):
        digest.update(part)
    return digest.digest()


def _parts(kind: pl.DataType, slices: Slices) -> Iterator[bytes | memoryview]:
    """The bytes of a column: its kind, which cells are null, the values of the others.

    It is read slice by slice, so that a column of a table mapped from disk is never copied as a whole.
    """
    if any(one.null_count() for one in slices()):
        yield from _bits(one.is_null().to_numpy() for one in slices())
    else:
        yield b"none absent"

    def present() -> Iterator[pl.Series]:
        return (one.drop_nulls() for one in slices())

    if kind == pl.Boolean:
        yield b"truth"
        yield from (_little(one.cast(pl.UInt8).to_numpy(), "u1") for one in present())
    elif kind.is_integer() and kind not in (pl.UInt64, pl.Int128, pl.UInt128):
        yield b"whole"
        yield from (_little(one.cast(pl.Int64).to_numpy(), "<i8") for one in present())
    elif kind.is_float():
        yield b"number"
        yield from (_little(one.cast(pl.Float64).to_numpy(), "<f8") for one in present())
    elif isinstance(kind, (pl.List, pl.Array)):
        inner, cells = pl.List(kind.inner), cast(pl.DataType, kind.inner)
        yield b"list"
        yield from (_little(one.cast(inner).list.len().to_numpy(), "<i8") for one in present())
        yield from _parts(cells, lambda: map(_exploded, present()))
    elif kind in (pl.String, pl.Categorical, pl.Enum) or kind.is_decimal() or kind.is_integer():
        yield b"text"
        yield from (_little(one.cast(pl.String).str.len_bytes().to_numpy(), "<i8") for one in present())
        yield from (_text(one.cast(pl.String)) for one in present() if len(one))
    else:
        yield b"other"  # dates, times, structs: rare, and well defined this way
        yield from (one.to_frame().write_ndjson().encode() for one in present())


def _bits(absent: Iterable[np.ndarray]) -> Iterator[bytes]:
    """Flags packed eight to a byte, across the borders of slices."""
    rest = np.zeros(0, np.bool_)
    for some in absent:
        flags = np.concatenate([rest, some])
        whole = len(flags) // 8 * 8
        rest = flags[whole:]
        yield np.packbits(flags[:whole]).tobytes()
    yield np.packbits(rest).tobytes()


def _exploded(column: pl.Series) -> pl.Series:
    assert isinstance(column.dtype, (pl.List, pl.Array))
    return column.cast(pl.List(column.dtype.inner)).list.explode(empty_as_null=False, keep_nulls=True)


def _text(column: pl.Series) -> bytes:
    joined: bytes = column.str.join("").cast(pl.Binary).item()
    return joined


def _little(values: np.ndarray, kind: str) -> memoryview:
    return memoryview(np.ascontiguousarray(values, dtype=kind).view(np.uint8).data)
