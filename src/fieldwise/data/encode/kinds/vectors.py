"""Vectors: a cell is a list of numbers of one length, or the id of one in a table; a network projects it.

Local row ids of a field of lists: 0 missing, 1 the vector that is added to the projection of a
present one; of a field of ids: `fieldwise.data.encode.vector_table`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.encode.kinds.base import Cells, Counted, Kind, register
from fieldwise.data.encode.kinds.texts import counts_of_texts
from fieldwise.data.encode.portable import MISSING, Cell, CellEncoder, any_text, vector_numbers
from fieldwise.data.encode.text_counts import frequent_texts
from fieldwise.data.encode.vector_cells import read_vectors, scale_of
from fieldwise.data.encode.vector_files import read_vector_file
from fieldwise.data.encode.vector_table import VectorTable
from fieldwise.data.encode.vocabulary import INTEGERS
from fieldwise.data.vector_column import VectorColumn
from fieldwise.errors import DataError
from fieldwise.layout import FieldLayout
from fieldwise.schema import Vector
from fieldwise.storage.scratch import MemoryBudget

PRESENT = 1
"""The row of a cell with a vector."""


@dataclass(frozen=True, kw_only=True)
class VectorLength:
    """The length of a field's vectors, and what they are multiplied by.

    Args:
        width: numbers of a vector.
        scale: 1 over the root mean square of the vectors' Euclidean lengths in the training rows.
    """

    width: int
    scale: float = 1.0
    kind: Literal["vector_length"] = "vector_length"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return 2


def vector_cell(encoder: CellEncoder, value: Any) -> Cell:
    """The row of a present vector, and its numbers; zeros for a missing one."""
    if encoder.field.vectors:
        found: Cell = encoder.fitted.cell(any_text(value))
        return found
    width = encoder.fitted.width
    if value is None or len(value) == 0:
        return [MISSING], [0.0] * width
    numbers = vector_numbers(value)
    if len(numbers) != width:
        raise ValueError(f"a list of {width} numbers is needed, as in training")
    return [1], numbers


@register(Vector)
class VectorKind(Kind[Vector]):
    """A list of numbers per cell, or an id of a table of vectors.

    The counted values of lists are, by chunk, the length of its vectors (`width`), how many there
    are (`n`) and the sum of their squares (`squares`); of ids those of `TextKind`.
    """

    forms = (VectorLength, VectorTable)
    plain_types = frozenset({type(None), str, bool, int, float, list})
    cell = staticmethod(vector_cell)

    def count(self, f: Vector, cells: pl.Series, missing: Sequence[str]) -> Counted:
        """Check a chunk's vectors, and sum their squares; or count the ids."""
        if f.vectors:
            counts = counts_of_texts(cells)
            return Counted(len(cells), int(counts.get_column("n").sum()), counts)
        vectors, is_missing = read_vectors(cells, what_of(f))
        values = pl.DataFrame(schema={"width": pl.Int64, "n": pl.Int64, "squares": pl.Float64})
        if len(vectors):
            squares = float(np.einsum("nk,nk->", vectors, vectors, dtype=np.float64))
            row = [(vectors.shape[1], len(vectors), squares)]
            values = pl.DataFrame(row, schema=values.schema, orient="row")
        return Counted(len(is_missing), len(vectors), values)

    def fit(
        self, f: Vector, values: Iterator[pl.DataFrame], *, budget: MemoryBudget
    ) -> VectorLength | VectorTable:
        """The length that all vectors have, and their scale; or the table of vectors, and the ids that it lacks."""
        if f.vectors:
            texts, _ = frequent_texts(values, 1, budget=budget)
            table = VectorTable.of(read_vector_file(Path(f.vectors)), texts)
            _check_some_vector(f, table, texts)
            return table
        width = 0
        n = 0
        squares = 0.0
        for chunk in values:
            for chunk_width, chunk_n, chunk_squares in chunk.iter_rows():
                if width and chunk_width != width:
                    raise DataError(
                        f"vectors must have one length: column {f.column!r} (field {f.name!r}) has cells of {width} "
                        f"and of {chunk_width} numbers; make them with one model"
                    )
                width = chunk_width
                n += chunk_n
                squares += chunk_squares
        return VectorLength(width=width, scale=scale_of(n, squares))

    def column(
        self,
        f: Vector,
        fitted: VectorLength | VectorTable,
        cells: pl.Series,
        missing: Sequence[str],
    ) -> Cells:
        """The vectors, equal ones once; or those of ids."""
        if isinstance(fitted, VectorTable):
            ids, column = fitted.find(cells if cells.dtype in INTEGERS else as_text(cells))
            return Cells(ids, vectors=column)
        vectors, is_missing = read_vectors(cells, what_of(f), width=fitted.width)
        ids = np.where(is_missing, np.int32(MISSING), np.int32(PRESENT))
        return Cells(ids, vectors=VectorColumn.of(vectors, is_missing))

    def layout(
        self, f: Vector, fitted: VectorLength | VectorTable, layout: FieldLayout
    ) -> FieldLayout:
        """A vector, which is projected."""
        return replace(
            layout,
            kind="vector",
            width=fitted.width,
            scale=fitted.scale,
            projection=f.projection,
            normalise=f.normalise,
            by_id=bool(f.vectors),
            unknown=bool(f.vectors),
        )


def _check_some_vector(f: Vector, table: VectorTable, texts: Sequence[str]) -> None:
    """Check that some id of the training rows has a vector, by which the projection is learned."""
    if not texts or len(table.learned) < len(texts):
        return
    raise DataError(
        f"some id of the training rows must have a vector: {what_of(f)} has ids such as {texts[0]!r}, and "
        f"{f.vectors} such as {table.values[0]!r}; write both in the same way"
    )


def what_of(f: Vector) -> str:
    """The column of a field in errors."""
    return f"column {f.column!r} (field {f.name!r})"
