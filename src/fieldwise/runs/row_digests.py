"""Digests of a run's rows, by which the same rows are known again."""

import hashlib
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import polars as pl

from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.storage.machine import each


def rows_digest(frame: pl.DataFrame, schema: Schema) -> str:
    """SHA-256 over the columns that a schema reads of a table's rows, in order."""
    label_columns = [label.column for label in schema.labels]
    columns = dict.fromkeys(
        [*schema.row_keys, *schema.columns, *label_columns, *schema.weight_columns]
    )
    return digest_rows(frame.select([c for c in columns if c in frame.columns]))


def scored_rows_digest(frame: pl.DataFrame, recipe: Recipe) -> str:
    """A digest that identifies rows independently of a recipe's fields: by keys and labels, or all raw columns."""
    schema = recipe.schema
    derived_columns: set[str] = set()
    if recipe.history is not None:
        derived_columns.add(recipe.history.column)
    for feature in recipe.features:
        derived_columns.update(feature.columns)
    if recipe.target_encoding is not None:
        derived_columns.update(recipe.target_encoding.made)

    candidates = frame.columns
    if schema.row_keys:
        label_columns = [label.column for label in schema.labels]
        candidates = [*schema.row_keys, *label_columns, *schema.weight_columns]
    raw_columns = [
        column
        for column in dict.fromkeys(candidates)
        if column in frame.columns and column not in derived_columns
    ]
    digest = digest_rows(frame.select(raw_columns))
    samples = [label.sampled for label in schema.labels if label.sampled is not None]
    for sampled in samples:  # whose rows have other weights
        digest += f" {sampled.positives:g} {sampled.negatives:g}"
    return digest


ROWS_VERSION = "rows2:"
DIGEST_ROWS = 1 << 18
Slices = Callable[[], Iterator[pl.Series]]
"""A column, slice by slice, as often as it is called."""


def digest_rows(frame: pl.DataFrame) -> str:
    """SHA-256 over a table's columns: their names, kinds of values, and values in order.

    Integer and float widths do not matter, nor whether text is stored as categories.
    """

    def digest_of(column: pl.Series) -> bytes:
        rows = column.to_frame()
        digest = hashlib.sha256()

        def slices() -> Iterator[pl.Series]:
            return (chunk.to_series() for chunk in rows.iter_slices(DIGEST_ROWS))

        for part in _column_bytes(column.dtype, slices):
            digest.update(part)
        return digest.digest()

    whole = hashlib.sha256(f"{frame.height} rows".encode())
    for column, digest in zip(
        frame, each(digest_of, frame.get_columns(), rows=frame.height), strict=True
    ):
        name = column.name.encode()
        whole.update(len(name).to_bytes(8, "little") + name + digest)
    return ROWS_VERSION + whole.hexdigest()


def _column_bytes(dtype: pl.DataType, slices: Slices) -> Iterator[bytes]:
    """The bytes of a column: which cells are null, its kind, the values of the others.

    It is read slice by slice, so that a column of a table mapped from disk is never copied as a
    whole.
    """
    yield from _null_bytes(slices)

    def present() -> Iterator[pl.Series]:
        return (cells.drop_nulls() for cells in slices())

    kind = _kind_of(dtype)
    yield kind.encode()
    if isinstance(dtype, (pl.List, pl.Array)):
        yield from _list_bytes(cast(pl.DataType, dtype.inner), present)
    elif kind == "text":
        yield from _text_bytes(present)
    elif kind == "other":
        for cells in present():
            yield cells.to_frame().write_ndjson().encode()
    else:
        for cells in present():
            yield cells.to_numpy().astype(_NUMPY_TYPES[kind]).tobytes()


_NUMPY_TYPES = {"truth": "?", "whole": "<i8", "number": "<f8"}


def _kind_of(dtype: pl.DataType) -> str:
    """What a column's cells are in a digest; dates, times and structs are rare, and well defined as "other"."""
    if dtype == pl.Boolean:
        return "truth"
    if dtype.is_float():
        return "number"
    if dtype.is_integer():
        return "text" if dtype in (pl.UInt64, pl.Int128, pl.UInt128) else "whole"
    if dtype in (pl.String, pl.Categorical, pl.Enum) or dtype.is_decimal():
        return "text"
    return "list" if isinstance(dtype, (pl.List, pl.Array)) else "other"


def _null_bytes(slices: Slices) -> Iterator[bytes]:
    """Which cells of a column are null, eight to a byte."""
    if not any(cells.null_count() for cells in slices()):
        yield b"none absent"
        return
    rest = np.empty(0, bool)
    for cells in slices():
        is_null = np.concatenate([rest, cells.is_null().to_numpy()])
        whole_bytes = len(is_null) // 8 * 8
        yield np.packbits(is_null[:whole_bytes]).tobytes()
        rest = is_null[whole_bytes:]
    yield np.packbits(rest).tobytes()


def _list_bytes(inner: pl.DataType, slices: Slices) -> Iterator[bytes]:
    """The lengths of lists, and the bytes of their values."""

    def lists() -> Iterator[pl.Series]:
        return (cells.cast(pl.List(inner)) for cells in slices())

    def values() -> Iterator[pl.Series]:
        return (cells.list.explode(empty_as_null=False, keep_nulls=True) for cells in lists())

    for cells in lists():
        yield cells.list.len().to_numpy().astype("<i8").tobytes()
    yield from _column_bytes(inner, values)


def _text_bytes(slices: Slices) -> Iterator[bytes]:
    """The lengths of texts, and their bytes."""
    for cells in slices():
        yield cells.cast(pl.String).str.len_bytes().to_numpy().astype("<i8").tobytes()
    for cells in slices():
        # an empty slice has no text
        if len(cells):
            yield cells.cast(pl.String).str.join("").cast(pl.Binary).item()
