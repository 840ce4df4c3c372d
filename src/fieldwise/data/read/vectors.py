"""Vectors: columns of float lists of one length, and the columns of their positions, `embedding[0]` and so on."""

import re
from collections.abc import Iterable, Mapping

import polars as pl
from polars.datatypes import DataTypeClass

MOST_POSITIONS = 64
_POSITION = re.compile(r"(.+)\[(\d+)\]")
_LIBFM_COLUMNS = ["label", "ids", "values"]
"""Of libFM rows without fields, whose lists are no vectors."""


def is_position(name: str, columns: Iterable[str]) -> str | None:
    """The column of lists that a column is one position of, or None."""
    position = _POSITION.fullmatch(name)
    if position is None or position[1] not in columns:
        return None
    return position[1]


def vector_length(column: pl.Series) -> int | None:
    """The common length of the float lists in a column, else None.

    >>> vector_length(pl.Series([[0.5, 1.0], None, [2.0, 3.0]])), vector_length(pl.Series([[0.5], [1.0, 2.0]]))
    (2, None)
    """
    lengths = VectorLengths()
    lengths.add(column.to_frame())
    return lengths.common.get(column.name)


class VectorLengths:
    """The lengths of the float lists in a table's columns, found chunk by chunk; libFM's lists are no vectors."""

    def __init__(self) -> None:
        self._lengths: dict[str, set[int]] = {}

    def add(self, chunk: pl.DataFrame) -> None:
        """Take the next rows into account."""
        if chunk.columns == _LIBFM_COLUMNS:
            return
        for column in chunk.iter_columns():
            dtype = column.dtype
            if not _holds_float_lists(dtype):
                continue
            lengths = self._lengths.setdefault(column.name, set())
            if isinstance(dtype, pl.Array):
                lengths.add(dtype.size)
            elif len(lengths) < 2:
                cell_lengths = column.list.len()
                for length in (cell_lengths.min(), cell_lengths.max()):
                    if length is not None:
                        lengths.add(int(length))  # type: ignore[arg-type]

    @property
    def common(self) -> dict[str, int]:
        """The length of each column whose lists have one."""
        return {
            name: next(iter(lengths))
            for name, lengths in self._lengths.items()
            if len(lengths) == 1
        }


def _holds_float_lists(dtype: pl.DataType) -> bool:
    """Whether the cells of a type are lists of floats, of a fixed size or not."""
    if not isinstance(dtype, (pl.List, pl.Array)):
        return False
    return isinstance(dtype.inner, pl.DataType) and dtype.inner.is_float()


def position_columns(
    schema: Mapping[str, pl.DataType | DataTypeClass], lengths: Mapping[str, int]
) -> dict[str, pl.Expr]:
    """The new columns of the vectors of these lengths that are short enough, by name."""
    columns: dict[str, pl.Expr] = {}
    for name, length in lengths.items():
        if not 2 <= length <= MOST_POSITIONS:
            continue
        cells = pl.col(name)
        get = cells.list.get
        if isinstance(schema[name], pl.Array):
            get = cells.arr.get
        for k in range(length):
            position = f"{name}[{k}]"
            if position not in schema:
                columns[position] = get(k, null_on_oob=False).alias(position)
    return columns


def with_positions(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with a column for each position of its vectors, and every fixed-size list as a list.

    Lists of at least 2 and at most `MOST_POSITIONS` floats get columns; longer ones are not
    changed.

    >>> with_positions(pl.DataFrame({"v": [[0.5, 1.0], [2.0, 3.0]]})).columns
    ['v', 'v[0]', 'v[1]']
    """
    if not any(dtype.is_nested() for dtype in frame.dtypes):
        return frame
    lengths = VectorLengths()
    lengths.add(frame)
    return as_lists(frame.with_columns(position_columns(frame.schema, lengths.common).values()))


def as_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with every fixed-size list as a list."""
    fixed_size = [
        pl.col(name).arr.to_list()
        for name, dtype in frame.schema.items()
        if isinstance(dtype, pl.Array)
    ]
    if not fixed_size:
        return frame
    return frame.with_columns(fixed_size)
