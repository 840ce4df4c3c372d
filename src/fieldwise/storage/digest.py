"""Digests of a table's rows, equal on every machine and in every version.

A digest begins with the version of its rule, so that digests by different rules are never equal.
"""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from fieldwise.storage.threads import each

__all__ = ["ROWS_VERSION", "digest_rows", "first_rows_digest"]

ROWS_VERSION = "rows2:"
_CHUNK = 1 << 22


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
    return hashlib.sha256(frame.write_ndjson().encode()).hexdigest()


def _column_digest(column: pl.Series) -> bytes:
    digest = hashlib.sha256()
    for part in _parts(column):
        digest.update(part)
    return digest.digest()


def _parts(column: pl.Series) -> Iterator[bytes | memoryview]:
    """The bytes of a column: its kind, which cells are null, the values of the others."""
    kind = column.dtype
    absent = column.is_null()
    yield np.packbits(absent.to_numpy()).tobytes() if column.null_count() else b"none absent"
    column = column.drop_nulls()
    if kind == pl.Boolean:
        yield from (b"truth", _little(column.cast(pl.UInt8).to_numpy(), "u1"))
    elif kind.is_integer() and kind not in (pl.UInt64, pl.Int128, pl.UInt128):
        yield from (b"whole", _little(column.cast(pl.Int64).to_numpy(), "<i8"))
    elif kind.is_float():
        yield from (b"number", _little(column.cast(pl.Float64).to_numpy(), "<f8"))
    elif isinstance(kind, (pl.List, pl.Array)):
        lists = column.cast(pl.List(kind.inner))
        yield from (b"list", _little(lists.list.len().to_numpy(), "<i8"))
        yield from _parts(lists.list.explode(empty_as_null=False, keep_nulls=True))
    elif kind in (pl.String, pl.Categorical, pl.Enum) or kind.is_decimal() or kind.is_integer():
        text = column.cast(pl.String)
        yield from (b"text", _little(text.str.len_bytes().to_numpy(), "<i8"))
        yield from _texts(text)
    else:
        lines = column.to_frame().write_ndjson()  # dates, times, structs: rare, and well defined this way
        yield from (b"other", lines.encode())


def _texts(text: pl.Series) -> Iterable[bytes]:
    for start in range(0, len(text), _CHUNK):
        joined: bytes = text.slice(start, _CHUNK).str.join("").cast(pl.Binary).item()
        yield joined


def _little(values: np.ndarray, kind: str) -> memoryview:
    return memoryview(np.ascontiguousarray(values, dtype=kind).view(np.uint8).data)
