"""What a kind of field defines, and the registered kinds."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import polars as pl

from fieldwise.data.encode.portable import Cell, CellEncoder
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.data.vector_column import VectorColumn
from fieldwise.errors import DataError
from fieldwise.layout import FieldLayout
from fieldwise.schema import Field
from fieldwise.schema.fields import Column
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import MemoryBudget

F = TypeVar("F", bound=Column)
K = TypeVar("K", bound="type[Kind[Any]]")


class Fitted(Protocol):
    """What a field has learned from its column: a frozen dataclass, stored as JSON with its `kind`."""

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table; the first is that of missing values."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A field's encoded column: local row ids [N], int32, and numbers [N, K], float32, if its kind has K per cell.

    A bag has the ids of all cells, one cell after another, and the number of ids of each cell, at
    least 1, as lengths [N], int64; an empty cell has the single id `missing`. Vectors are rows of
    a matrix, which is kept once.
    """

    ids: np.ndarray
    numbers: np.ndarray | None = None
    lengths: np.ndarray | None = None
    vectors: VectorColumn | None = None


class Counted(NamedTuple):
    """How many rows of a field's column were counted, how many values they hold, and what its kind counts of these."""

    rows: int
    present: int
    values: pl.DataFrame


class Kind(ABC, Generic[F]):
    """All that differs between kinds of field. A kind has no state: a field and its fitted part are arguments.

    `cell` must encode a value as `column` encodes it in a column, and `encode.py` runs a copy of
    its source: a module's function that uses `np`, `math`, `re`, `dt` (datetime), the names of
    `fieldwise.data.encode.portable`, and `helpers`. `tests/test_kinds.py` compares the three.

    Attributes:
        forms: the classes of fitted parts.
        plain_types: the types of values, and of a list's elements, that `cell` encodes in a
            request.
        helpers: further functions whose source `encode.py` needs.
    """

    forms: ClassVar[tuple[type, ...]]
    plain_types: ClassVar[frozenset[type]]
    helpers: ClassVar[tuple[Callable[..., Any], ...]] = ()

    @abstractmethod
    def count(self, f: F, cells: pl.Series, missing: Sequence[str]) -> Counted:
        """Count a chunk of the column; `missing` has the marks of missing numbers."""

    @abstractmethod
    def fit(self, f: F, values: Iterator[pl.DataFrame], *, budget: MemoryBudget) -> Fitted:
        """Fit the field on the `values` of all chunks, in order, each of which is read once.

        All of them must be read, also where the first ones are enough: `fit_counted` counts rows
        and values while they are.
        """

    @abstractmethod
    def column(self, f: F, fitted: Any, cells: pl.Series, missing: Sequence[str]) -> Cells:
        """Encode a column; `missing` has the marks of missing numbers."""

    @staticmethod
    @abstractmethod
    def cell(encoder: CellEncoder, value: Any) -> Cell:
        """Encode the value of one cell; a TypeError, ValueError or OverflowError if the field does not take it."""

    def grow(self, f: F, fitted: Any, values: Iterator[pl.DataFrame]) -> Fitted:
        """The fitted part with the new ones of more counted values, whose rows follow the others."""
        result: Fitted = fitted
        return result

    def encodes_cell(self, value: object) -> bool:
        """Whether `cell` encodes a request's value; a row with another becomes a table, which encodes or refuses it."""
        if isinstance(value, list) and list in self.plain_types:
            return all(type(element) in self.plain_types for element in value)
        return type(value) in self.plain_types

    def layout(self, f: F, fitted: Any, layout: FieldLayout) -> FieldLayout:
        """How a network reads the field, from the layout of a field with one id per cell.

        `ordered` says whether the order of encoded ids has a meaning (a history, bins), for models;
        whether a larger value means more, for explanations, is the field's `is_ordered`.
        """
        return layout


KINDS: dict[type[Column], Kind[Any]] = {}
"""The registered kinds, by the dataclass of their fields."""


def register(*fields: type[Column]) -> Callable[[K], K]:
    """Register a kind below as that of these dataclasses of fields."""

    def add(kind: K) -> K:
        KINDS.update(dict.fromkeys(fields, kind()))
        return kind

    return add


def kind_of(f: Column) -> Kind[Any]:
    """The kind of a field."""
    return KINDS[type(f)]


def count_column(
    f: Field, column: pl.Series, *, missing: Sequence[str] = MISSING_MARKS, budget: MemoryBudget
) -> Iterator[Counted]:
    """Count a field's column, chunk by chunk; `missing` has the marks of missing numbers."""
    kind = kind_of(f)
    for chunk in budget.chunk_slices(len(column)):
        with counting_from(chunk.start):
            counted = kind.count(f, column[chunk], missing)
        yield counted


def fit_counted(f: Field, counted: Iterable[Counted], *, budget: MemoryBudget) -> Fitted:
    """Fit a field on the counted chunks of its column, which come in order."""
    rows = 0
    present = 0

    def values() -> Iterator[pl.DataFrame]:
        nonlocal rows, present
        for chunk in counted:
            rows += chunk.rows
            present += chunk.present
            yield chunk.values

    fitted = kind_of(f).fit(f, values(), budget=budget)
    if not present:
        raise DataError(
            f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null or empty in all "
            f"{rows} training rows; remove the field from the schema or fill the column"
        )
    return fitted
