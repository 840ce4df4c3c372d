"""Encoded rows as arrays, in memory or mapped from disk, and batches of them.

On disk a table is a folder (`fieldwise.storage.artifact`): `table.json` (rows, layout) and one
`.npy` file per array: `ids` [N, S] int32, `values` [N, V] float32, `bag_ids` [M] int32,
`bag_offsets` [N * G + 1] int64, and `y` [N] float32, or [N, T] for several labels, if there are
targets, `weight` [N] float32, if rows have weights, and `vector_rows` [N, fields of vectors] int32,
with the matrices of vectors that are no table's in `matrices.safetensors`. Row ids include their
field's offset.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fieldwise.config import parse, to_plain
from fieldwise.data.encode.portable import map_matrices
from fieldwise.data.vector_column import NONE, VectorColumn
from fieldwise.errors import DataError
from fieldwise.layout import Bags, Batch, FieldLayout, Layout
from fieldwise.storage.arrays import (
    map_array,
    mapped_array,
    write_array,
    write_header,
    write_matrix_parts,
    write_values,
)
from fieldwise.storage.artifact import Artifact, ArtifactKind, Writer, writing
from fieldwise.storage.files import Written
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

SLICE_ROWS = 1 << 21


def row_slices(rows: int) -> Iterator[slice]:
    """Slices of at most 2,097,152 rows."""
    return (slice(start, min(start + SLICE_ROWS, rows)) for start in range(0, rows, SLICE_ROWS))


def mean_target(y: np.ndarray, weight: np.ndarray | None = None, *, scale: float = 1.0) -> float:
    """The weighted mean of targets [N] over their scale, in float64."""
    weighted_sum = 0.0
    weight_sum = 0.0
    for rows in row_slices(len(y)):
        values = np.asarray(y[rows], np.float64) / scale
        weights = _weights_of(weight, rows, len(values))
        weighted_sum += float((values * weights).sum())
        weight_sum += float(weights.sum())
    return weighted_sum / weight_sum


def _weights_of(weight: np.ndarray | None, rows: slice, count: int) -> np.ndarray:
    """The weights of some rows, float64; 1 for each without them."""
    return np.ones(count) if weight is None else weight[rows].astype(np.float64)


def deviations(y: np.ndarray, weight: np.ndarray | None = None) -> tuple[float, ...]:
    """The weighted standard deviation of each label's targets [N, T].

    >>> deviations(np.array([[1.0], [4.0]]), np.array([2.0, 1.0])) == deviations(np.array([[1.0], [1.0], [4.0]]))
    True
    """
    if weight is None and len(y) <= SLICE_ROWS:
        return tuple(np.asarray(y, np.float64).std(axis=0).tolist())
    means = [mean_target(column, weight) for column in y.T]
    squares = np.zeros(len(means))
    weight_sum = 0.0
    for rows in row_slices(len(y)):
        squares_of_rows = np.square(np.asarray(y[rows], np.float64) - means)
        weights = _weights_of(weight, rows, len(squares_of_rows))
        squares += weights @ squares_of_rows
        weight_sum += float(weights.sum())
    return tuple(np.sqrt(squares / weight_sum).tolist())


ROWS_PER_GATHER = 32_768
"""Rows of several batches are gathered at once, so that each batch is a view."""
ARRAYS = ("ids", "values", "bag_ids", "bag_offsets")
OPTIONAL = ("y", "weight")
VECTOR_ROWS = "vector_rows"
MATRICES = "matrices"
"""The matrices of vectors, by field; those of keyed tables are the encoder's."""
TABLE = ArtifactKind(
    name="encoded table",
    manifest="table.json",
    format=2,
    oldest=2,
    parts={**dict.fromkeys((*ARRAYS, *OPTIONAL, VECTOR_ROWS), "npy"), MATRICES: "safetensors"},
    damage=DataError,
    remedy="encode the data again",
    origin="give a folder that an encoded table was saved to",
    fast=True,
)


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """N encoded rows.

    Args:
        layout: the fields and their positions in the shared embedding table.
        ids: [N, S] int32, single-valued fields.
        values: [N, V] float32, numeric fields (0 if missing).
        bag_ids: [M] int32, all bags, row by row and within a row field by field.
        bag_offsets: [N * G + 1] int64, the start of each bag.
        y: float32 targets, [N] of one label and [N, T] of several, or None; [N, 1] becomes [N].
        weight: [N] float32, row weights for loss and metrics, or None.
        vectors: the vectors of each vector field, in the layout's order.

    It is a map-style dataset of PyTorch: `table[i]` is one row and its targets, `table[2:5]` and
    `table[[4, 0]]` are batches of rows, which networks read. A table without targets gives rows
    alone.

    >>> layout = Layout.of_sizes([3, 4])
    >>> ids = np.array([[0, 3], [2, 6], [1, 5]], np.int32)
    >>> none = np.empty(0, np.int32), np.zeros(1, np.int64)
    >>> table = EncodedTable(layout, ids, np.empty((3, 0), np.float32), *none, y=np.float32([0, 1, 1]))
    >>> batch, y = table[[2, 0]]
    >>> batch.ids.tolist(), y.tolist()
    ([[1, 5], [0, 3]], [1.0, 0.0])
    """

    layout: Layout
    ids: np.ndarray
    values: np.ndarray
    bag_ids: np.ndarray
    bag_offsets: np.ndarray
    y: np.ndarray | None = None
    weight: np.ndarray | None = None
    vectors: tuple[VectorColumn, ...] = ()

    def __post_init__(self) -> None:
        if self.y is not None and self.y.ndim == 2 and self.y.shape[1] == 1:
            object.__setattr__(self, "y", self.y.reshape(-1))

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def __getitem__(
        self, rows: int | slice | Sequence[int] | np.ndarray | Tensor
    ) -> "tuple[Batch, Tensor] | Batch":
        """Rows and their targets by number, a slice, an array of numbers or one of truth values.

        One row by its number has no dimension of rows (ids [S], values [V], targets of no dimension
        or [T]).
        """
        numbers = self._row_numbers(rows)
        batch, y = self.batch(torch.from_numpy(numbers.reshape(-1)))
        is_one_row = numbers.ndim == 0
        if is_one_row:
            batch = batch._replace(ids=batch.ids[0], values=batch.values[0])
        if y is None:
            return batch
        return batch, y[0] if is_one_row else y

    def _row_numbers(self, rows: int | slice | Sequence[int] | np.ndarray | Tensor) -> np.ndarray:
        """The numbers from 0 of the rows that an index means, int64; of no dimension for a single number."""
        numbers = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)

        if numbers.dtype == np.bool_:
            if numbers.shape != (len(self),):
                raise IndexError(
                    f"a mask must have a value for each of the table's {len(self)} rows"
                )
            numbers = np.flatnonzero(numbers)
        if not np.issubdtype(numbers.dtype, np.integer) and numbers.size:
            raise TypeError(f"rows must be whole numbers, a slice or a mask, found {rows!r}")

        is_outside = (numbers < -len(self)) | (numbers >= len(self))
        if is_outside.any():
            raise IndexError(
                f"a row must be one of the table's {len(self)}, found {numbers[is_outside].flat[0]}"
            )
        return np.asarray(numbers.astype(np.int64) % max(len(self), 1))

    def __getitems__(self, rows: list[int]) -> "list[tuple[Batch, Tensor] | Batch]":
        """Rows one by one, which a DataLoader stacks; a DataError for a table with bags, whose lengths differ."""
        if self.bags_per_row:
            raise DataError(
                "rows with bags have different lengths and cannot be stacked: let the DataLoader fetch whole batches, "
                "DataLoader(table, sampler=BatchSampler(RandomSampler(table), 256, drop_last=False), batch_size=None)"
            )
        return [self[row] for row in rows]

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays but targets and weights, by the names of `array_names`."""
        arrays: dict[str, np.ndarray] = {name: getattr(self, name) for name in ARRAYS}
        for number, (f, column) in enumerate(zip(self.vector_fields, self.vectors, strict=True)):
            arrays[f"rows{number}"] = column.rows
            if not f.by_id:
                arrays[f"matrix{number}"] = column.matrix
        return arrays

    @classmethod
    def of_arrays(cls, layout: Layout, arrays: Mapping[str, np.ndarray]) -> "EncodedTable":
        """The inverse of `arrays`, but for the matrices of vectors by id (`with_matrices`)."""
        vectors = []
        for number, f in enumerate(vector_fields(layout)):
            matrix = arrays.get(f"matrix{number}", np.empty((0, f.width), np.float32))
            vectors.append(VectorColumn(arrays[f"rows{number}"], matrix))
        return cls(layout, **{name: arrays[name] for name in ARRAYS}, vectors=tuple(vectors))

    @property
    def vector_fields(self) -> list[FieldLayout]:
        """The fields of `vectors`."""
        return vector_fields(self.layout)

    def with_matrices(self, matrices: Mapping[str, np.ndarray]) -> "EncodedTable":
        """The table with the encoder's matrices of the fields with vectors by id (`Encoder.matrices`)."""
        if not matrices:
            return self
        vectors = [
            replace(column, matrix=matrices.get(f.name, column.matrix))
            for f, column in zip(self.vector_fields, self.vectors, strict=True)
        ]
        return replace(self, vectors=tuple(vectors))

    @property
    def targets(self) -> np.ndarray:
        """The targets with a column per label [N, T]; the table must have some."""
        assert self.y is not None, "rows have targets"
        return self.y.reshape(len(self), -1)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays but the matrices of vectors."""
        arrays = [getattr(self, name) for name in (*ARRAYS, *OPTIONAL)]
        arrays += [column.rows for column in self.vectors]
        return sum(array.nbytes for array in arrays if array is not None)

    @cached_property
    def mean_weight(self) -> np.float64 | None:
        """What the rows' weights are divided by in a loss; None if all are equal."""
        weight = self.weight
        if weight is None:
            return None
        if all((weight[rows] == weight[0]).all() for rows in row_slices(len(weight))):
            return None
        mean: np.float64 = weight.mean(dtype=np.float64)
        return mean

    def batches(
        self, batch_size: int, *, order: Tensor | None = None
    ) -> Iterator[tuple[Batch, Tensor | None]]:
        """Batches of rows and their targets: in the table's order, or in `order` (row numbers, int64).

        A last batch of one row is merged into the one before, since batch normalization cannot
        train on one row.
        """
        rows = len(self) if order is None else int(order.shape[0])
        starts = batch_starts(rows, batch_size)
        batches_per_gather = max(1, ROWS_PER_GATHER // batch_size)

        for k in range(0, len(starts), batches_per_gather):
            borders = list(starts[k : k + batches_per_gather + 1])
            if len(borders) <= batches_per_gather:
                borders.append(rows)
            first = borders[0]
            gathered = slice(first, borders[-1])
            ids, values, y = self._gathered(gathered if order is None else order[gathered])

            for start, end in pairwise(borders):
                batch_rows = slice(start, end) if order is None else order[start:end]
                in_gathered = slice(start - first, end - first)
                numbers = self._with_vectors(values[in_gathered], batch_rows)
                batch = Batch(ids[in_gathered], numbers, *self._bags(batch_rows))
                yield batch, None if y is None else y[in_gathered]

    def batch(self, rows: slice | Tensor) -> tuple[Batch, Tensor | None]:
        """One batch, gathered by row numbers (a slice is only a view)."""
        ids, values, y = self._gathered(rows)
        return Batch(ids, self._with_vectors(values, rows), *self._bags(rows)), y

    def take(self, rows: np.ndarray) -> "EncodedTable":
        """The table of some rows, by number, copied into memory."""
        bags = self.bags.rows(torch.from_numpy(rows), self.bags_per_row)
        return replace(
            self,
            ids=self.ids[rows],
            values=self.values[rows],
            bag_ids=bags.ids.numpy(),
            bag_offsets=bags.offsets.numpy(),
            y=None if self.y is None else self.y[rows],
            weight=None if self.weight is None else self.weight[rows],
            vectors=tuple(column.take(rows) for column in self.vectors),
        )

    def _with_vectors(self, values: Tensor, rows: slice | Tensor) -> Tensor:
        """A batch's numbers: those of some rows [n, V], and between them their vectors, in the layout's order."""
        if not self.vectors:
            return values
        vectors = iter(self.vectors)
        parts = []
        column = 0
        for f in self.layout.fields:
            if f.kind == "vector":
                parts.append(next(vectors).numbers(rows))
            elif f.numbers:
                parts.append(values[:, column : column + f.numbers])
                column += f.numbers
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _gathered(self, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Ids, values and targets of some rows."""
        y = None if self.y is None else _gathered(self.y, rows)
        return _gathered(self.ids, rows), _gathered(self.values, rows), y

    @property
    def bags_per_row(self) -> int:
        """G."""
        return len(self._pooled_by_mean)

    @cached_property
    def bags(self) -> Bags:
        """The bags of all rows."""
        return Bags(torch.from_numpy(self.bag_ids), torch.from_numpy(self.bag_offsets))

    def bag(self, position: int) -> Bags:
        """One bag per row, of the field at this position among the layout's bags."""
        return self.bags.take(position + self.bags_per_row * torch.arange(len(self)))

    @cached_property
    def _pooled_by_mean(self) -> Tensor:
        """Which bags are pooled by mean [G]."""
        return torch.tensor([f.pooling == "mean" for f in self.layout.bag_fields])

    def _bags(self, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The ids in bags of some rows, the bag of each id, and its weight."""
        if self.bags_per_row == 0:
            return _NO_IDS, _NO_SEGMENTS, _NO_WEIGHTS
        bags = self.bags.rows(rows, self.bags_per_row)
        return bags.ids, bags.segments, bags.shares(self._pooled_by_mean)

    def save(self, folder: Path) -> None:
        """Save the table to a folder, replacing an older one in one step.

        Errors:
            DataError: the folder holds something else, the disk is full or the place is not
                writable; an older table is then unchanged.
        """
        save_chunks(
            folder,
            self.layout,
            len(self),
            [(slice(0, len(self)), self)],
            self.y,
            weight=self.weight,
            budget=NO_LIMIT,
        )

    @classmethod
    def open(cls, folder: Path) -> "EncodedTable":
        """Map a saved table into memory; data are read when they are used.

        Errors:
            DataError: no table there, a damaged one, or one of another format.
        """
        return TABLE.load(folder, cls._opened)

    @classmethod
    def _opened(cls, saved: Artifact) -> "EncodedTable":
        optional = [name for name in OPTIONAL if name in saved.parts]
        arrays = {name: map_array(saved.path(name, verify=False)) for name in (*ARRAYS, *optional)}
        layout = parse(Layout, saved.about["layout"], "layout", DataError)
        table = cls(layout, **arrays, vectors=_opened_vectors(saved, layout))

        rows = len(table)
        row_counts = [saved.about.get("rows"), len(table.values)]
        row_counts += [len(arrays[name]) for name in optional]
        row_counts += [len(column.rows) for column in table.vectors]
        bags = layout.num_bags * rows
        if len(table.bag_offsets) != bags + 1 or any(count != rows for count in row_counts):
            raise TABLE.damaged(saved.folder, "its arrays have different numbers of rows")
        return table


def array_names(layout: Layout) -> list[str]:
    """The names of `EncodedTable.arrays`."""
    names = list(ARRAYS)
    for number, f in enumerate(vector_fields(layout)):
        names.append(f"rows{number}")
        if not f.by_id:
            names.append(f"matrix{number}")
    return names


def vector_fields(layout: Layout) -> list[FieldLayout]:
    """The fields of vectors."""
    return [f for f in layout.fields if f.kind == "vector"]


def _opened_vectors(saved: Artifact, layout: Layout) -> tuple[VectorColumn, ...]:
    """The vectors of a saved table, whose matrices are mapped; those of keyed tables have none yet."""
    fields = vector_fields(layout)
    if not fields:
        return ()
    rows = map_array(saved.path(VECTOR_ROWS, verify=False))
    matrices = {}
    if MATRICES in saved.parts:
        matrices = map_matrices(saved.path(MATRICES, verify=False))
    columns = []
    for f, field_rows in zip(fields, rows.T, strict=True):
        stored = matrices.get(f.name)
        matrix = np.empty((0, f.width), np.float32) if stored is None else stored
        columns.append(VectorColumn(np.ascontiguousarray(field_rows), matrix))
    return tuple(columns)


def _gathered(array: np.ndarray, rows: slice | Tensor) -> Tensor:
    """Some rows of an array: a view if they are a slice."""
    if isinstance(rows, slice):
        return torch.from_numpy(array)[rows]
    # index_select copies whole rows; general indexing copies single numbers.
    return torch.from_numpy(array).index_select(0, rows)


Chunks = Iterable[tuple[slice, EncodedTable]]
"""Consecutive chunks of a table: which rows, and these encoded."""


def save_chunks(
    folder: Path,
    layout: Layout,
    rows: int,
    chunks: Chunks,
    y: np.ndarray | None,
    weight: np.ndarray | None = None,
    *,
    budget: MemoryBudget,
) -> EncodedTable:
    """The table of consecutive chunks, N rows in all with their targets, saved to a folder and mapped.

    Bags lie in scratch files or memory while the table is made; errors as of `EncodedTable.save`.
    """
    bags_per_row = layout.num_bags
    numeric_fields = len(layout.positions(kind="value"))
    single_valued_fields = len(layout.fields) - bags_per_row
    offsets = budget.empty(rows * bags_per_row + 1, np.int64)
    offsets[0] = 0
    vectors = _WrittenVectors(layout, rows, budget)

    with writing(TABLE, folder) as writer:
        # the manifest names first what closes first
        with writer.open("values") as values_file, writer.open("ids") as ids_file:
            write_header(ids_file, np.dtype(np.int32), (rows, single_valued_fields))
            write_header(values_file, np.dtype(np.float32), (rows, numeric_fields))
            chunks = vectors.kept(chunks)
            bag_ids = budget.concatenate(
                _write_rows(chunks, ids_file, values_file, offsets, bags_per_row), np.int32
            )

        arrays = {"bag_ids": bag_ids, "bag_offsets": offsets, "y": y, "weight": weight}
        for name, array in arrays.items():
            if array is not None:
                with writer.open(name) as file:
                    write_array(file, array)
        vectors.write(writer)
        writer.finish(rows=rows, layout=to_plain(layout))
    return EncodedTable.open(folder)


def _write_rows(
    chunks: Chunks,
    ids_file: Written,
    values_file: Written,
    offsets: np.ndarray,
    bags_per_row: int,
) -> Iterator[np.ndarray]:
    """Write ids and values of all chunks, fill in the offsets of all bags, and yield each chunk's ids in bags."""
    for rows, table in chunks:
        write_values(ids_file, table.ids)
        write_values(values_file, table.values)
        first = rows.start * bags_per_row
        end = rows.stop * bags_per_row
        offsets[first + 1 : end + 1] = table.bag_offsets[1:] + offsets[first]
        yield table.bag_ids


class _WrittenVectors:
    """The vectors of consecutive chunks of N rows, kept in scratch files or memory until they are written."""

    def __init__(self, layout: Layout, rows: int, budget: MemoryBudget) -> None:
        self.fields = vector_fields(layout)
        self.rows = budget.empty((rows, len(self.fields)), np.int32)
        self.budget = budget
        self.matrices: dict[str, list[np.ndarray]] = {}

    def kept(self, chunks: Chunks) -> Chunks:
        """The chunks, whose vectors are kept."""
        for rows, table in chunks:
            for index, (f, column) in enumerate(zip(self.fields, table.vectors, strict=True)):
                first = 0
                if not f.by_id:
                    parts = self.matrices.setdefault(f.name, [])
                    first = sum(map(len, parts))
                    matrix = column.matrix
                    parts.append(
                        self.budget.fill(matrix.shape, matrix.dtype.type, matrix.__getitem__)
                    )
                self.rows[rows, index] = np.where(
                    column.rows == NONE, NONE, column.rows + np.int32(first)
                )
            yield rows, table

    def write(self, writer: Writer) -> None:
        """Write them as parts of an encoded table, if there are any."""
        if not self.fields:
            return
        with writer.open(VECTOR_ROWS) as file:
            write_array(file, self.rows)
        if self.matrices:
            with writer.open(MATRICES) as file:
                write_matrix_parts(file, self.matrices)


_NO_IDS = torch.empty(0, dtype=torch.int32)
_NO_SEGMENTS = torch.empty(0, dtype=torch.int64)
_NO_WEIGHTS = torch.empty(0, dtype=torch.float32)


def batch_starts(rows: int, batch_size: int) -> range:
    """The first row of each batch; a last batch of one row is merged into the one before.

    >>> list(batch_starts(7, 3))
    [0, 3]
    """
    starts = range(0, rows, batch_size)
    ends_with_one_row = batch_size > 1 and len(starts) > 1 and rows - starts[-1] == 1
    return starts[:-1] if ends_with_one_row else starts


def read_spans(table: EncodedTable, spans: list[slice]) -> EncodedTable:
    """Some rows of a table, copied into memory."""
    groups = table.bags_per_row
    offsets = [table.bag_offsets[span.start * groups : span.stop * groups + 1] for span in spans]
    bag_spans = []
    lengths = []
    if groups:
        bag_spans = [slice(int(part[0]), int(part[-1])) for part in offsets]
        lengths = [np.diff(part) for part in offsets]
    return EncodedTable(
        layout=table.layout,
        ids=_read(table.ids, spans),
        values=_read(table.values, spans),
        bag_ids=_read(table.bag_ids, bag_spans),
        bag_offsets=np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum(),
        y=None if table.y is None else _read(table.y, spans),
        weight=None if table.weight is None else _read(table.weight, spans),
        vectors=tuple(replace(column, rows=_read(column.rows, spans)) for column in table.vectors),
    )


def _read(array: np.ndarray, spans: list[slice]) -> np.ndarray:
    """Some rows of an array, copied into memory that the system gets back when they are deleted."""
    rows = sum(span.stop - span.start for span in spans)
    copy = mapped_array((rows, *array.shape[1:]), array.dtype)
    return np.concatenate([array[:0], *(array[span] for span in spans)], out=copy)
