"""Vectors in a table's cells: lists of equal length become a column per position, `embedding[0]` and so on."""

import re
from collections.abc import Iterable, Mapping

import polars as pl
from polars.datatypes import DataTypeClass

MOST_POSITIONS = 64
_POSITION = re.compile(r"(.+)\[(\d+)\]")


def is_position(name: str, columns: Iterable[str]) -> str | None:
    """The column of lists that a column is one position of, or None."""
    found = _POSITION.fullmatch(name)
    return found[1] if found is not None and found[1] in columns else None


def vector_length(column: pl.Series) -> int | None:
    """The common length of the float lists in a column, else None.

    >>> vector_length(pl.Series([[0.5, 1.0], None, [2.0, 3.0]])), vector_length(pl.Series([[0.5], [1.0, 2.0]]))
    (2, None)
    """
    lengths = VectorLengths()
    lengths.add(column.to_frame())
    return lengths.common.get(column.name)


class VectorLengths:
    """The common lengths of the float lists in a table's columns, found piece by piece; see `vector_length`."""

    def __init__(self) -> None:
        self._found: dict[str, set[int]] = {}

    def add(self, piece: pl.DataFrame) -> None:
        """Take the next rows into account."""
        for column in piece.iter_columns():
            kind = column.dtype
            if not (isinstance(kind, (pl.List, pl.Array)) and isinstance(kind.inner, pl.DataType)):
                continue
            if not kind.inner.is_float():
                continue
            found = self._found.setdefault(column.name, set())
            if isinstance(kind, pl.Array):
                found.add(kind.size)
            elif len(found) < 2:
                lengths = column.list.len()
                found |= {int(n) for n in (lengths.min(), lengths.max()) if n is not None}  # type: ignore[arg-type]

    @property
    def common(self) -> dict[str, int]:
        """The length of each column whose lists have one."""
        return {name: next(iter(found)) for name, found in self._found.items() if len(found) == 1}


def position_columns(
    schema: Mapping[str, pl.DataType | DataTypeClass], lengths: Mapping[str, int]
) -> dict[str, pl.Expr]:
    """The new columns of the vectors of these lengths that are short enough, by name."""
    made = {}
    for name, length in lengths.items():
        cells = pl.col(name)
        get = cells.arr.get if isinstance(schema[name], pl.Array) else cells.list.get
        for k in range(length if 2 <= length <= MOST_POSITIONS else 0):
            if f"{name}[{k}]" not in schema:
                made[f"{name}[{k}]"] = get(k, null_on_oob=False).alias(f"{name}[{k}]")
    return made


def with_positions(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with a column for each position of its vectors, and every fixed-size list as a list.

    Lists of at least 2 and at most `MOST_POSITIONS` floats get columns; longer ones are not changed.

    >>> with_positions(pl.DataFrame({"v": [[0.5, 1.0], [2.0, 3.0]]})).columns
    ['v', 'v[0]', 'v[1]']
    """
    if not has_vectors(frame.schema):
        return frame
    lengths = VectorLengths()
    lengths.add(frame)
    made = position_columns(frame.schema, lengths.common)
    return as_lists(frame.with_columns(made.values()))


def has_vectors(schema: Mapping[str, pl.DataType | DataTypeClass]) -> bool:
    """Whether a table may have vectors; libFM's lists are none."""
    return any(kind.is_nested() for kind in schema.values()) and list(schema) != ["label", "ids", "values"]


def as_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with every fixed-size list as a list."""
    fixed = [pl.col(name).arr.to_list() for name, kind in frame.schema.items() if isinstance(kind, pl.Array)]
    return frame.with_columns(fixed) if fixed else frame
