"""The fitted part of a field whose vectors are in a table by id.

Local row ids of a field: 0 missing, 1 an id without a vector that no training row had, 2 the vector
that is added to the projection of a present one, 3.. the ids of training rows without a vector.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl

from fieldwise.config import LOCAL
from fieldwise.data.encode.portable import PRESENT_BY_ID, UNKNOWN, VectorsById
from fieldwise.data.encode.vector_cells import scale_of
from fieldwise.data.encode.vector_files import VectorFile
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.vector_column import NONE, VectorColumn

ROWS_AT_ONCE = 4_096


@dataclass(frozen=True, kw_only=True)
class VectorTable(VectorsById):
    """The vectors of a field by id, in one matrix, which is no part of the JSON.

    Args:
        values: the ids with a vector; the k-th has row k of the matrix.
        learned: the ids of training rows that have none, each of which has a learned vector.
        width: numbers of a vector.
        scale: 1 over the root mean square of the vectors' Euclidean lengths.
        digest: SHA-256 of the matrix.
        matrix: [ids, width] float16 or float32, in memory or mapped.
    """

    values: tuple[str, ...]
    learned: tuple[str, ...]
    width: int
    scale: float
    digest: str
    matrix: Any = field(default=None, compare=False, repr=False, metadata=LOCAL)
    kind: Literal["vector_table"] = "vector_table"

    @classmethod
    def of(cls, file: VectorFile, texts: Sequence[str]) -> "VectorTable":
        """The vectors of a file, for training rows with these ids."""
        table = cls(values=tuple(file.ids), learned=(), width=0, scale=1.0, digest="")
        is_learned = table.vocabulary.ids(pl.Series(texts, dtype=pl.String)) == UNKNOWN
        learned = tuple(pl.Series(texts, dtype=pl.String).filter(pl.Series(is_learned)))
        return replace(table, learned=learned).with_vectors(file)

    @property
    def whole_digest(self) -> str:
        """SHA-256 of the ids and of the matrix."""
        ids_and_matrix = json.dumps([*self.values, self.digest])
        return hashlib.sha256(ids_and_matrix.encode()).hexdigest()

    def with_vectors(self, file: VectorFile) -> "VectorTable":
        """The vectors of another file, for the same network."""
        squares = 0.0
        digest = hashlib.sha256()
        for first in range(0, len(file.matrix), ROWS_AT_ONCE):
            block = np.ascontiguousarray(file.matrix[first : first + ROWS_AT_ONCE])
            squares += float(np.square(block, dtype=np.float64).sum())
            digest.update(block.view(np.uint8).data)
        scale = self.scale if self.width else scale_of(len(file.matrix), squares)
        return replace(
            self,
            values=tuple(file.ids),
            width=file.matrix.shape[1],
            scale=scale,
            digest=digest.hexdigest(),
            matrix=file.matrix,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "VectorTable":
        """Itself: it never changes, and a copy would read the whole matrix into memory."""
        return self

    first_learned: ClassVar[int] = PRESENT_BY_ID + 1
    """The row of the first id with a learned vector."""

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return self.first_learned + len(self.learned)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The ids with a vector."""
        return Vocabulary(values=self.values)

    @cached_property
    def learned_vocabulary(self) -> Vocabulary:
        """The ids with a learned vector."""
        return Vocabulary(values=self.learned)

    def find(self, cells: pl.Series) -> tuple[np.ndarray, VectorColumn]:
        """Local row ids [N] of texts, or of integers as their decimal texts, and their vectors."""
        ids = self.vocabulary.ids(cells)
        has_vector = ids > UNKNOWN
        rows = np.where(has_vector, ids - np.int32(UNKNOWN + 1), np.int32(NONE))
        local = np.where(has_vector, np.int32(PRESENT_BY_ID), ids)
        is_unknown = ids == UNKNOWN
        if is_unknown.any():
            learned = self.learned_vocabulary.ids(cells.filter(pl.Series(is_unknown)))
            local[is_unknown] = np.where(learned > UNKNOWN, learned + np.int32(1), learned)
        matrix = self.matrix
        assert matrix is not None, "the matrix was attached"
        return local, VectorColumn(rows, matrix)
