"""Encoded rows in arrays, in memory or mapped from disk, and the batches that training draws from them.

On disk a table is a folder: `table.json` (format, rows, layout) and one `.npy` file an array (NumPy's documented
format, never pickled): `ids` [N, S] int32, `values` [N, V] float32, `bag_ids` [M] int32, `bag_offsets` [N * G + 1]
int64, and `y` [N] float32, or [N, T] of several labels, where there are targets, and
`weight` [N] float32, where rows have weights. Row ids hold their field's offset.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fieldwise.config import parse, to_plain
from fieldwise.errors import DataError
from fieldwise.layout import Batch, Layout
from fieldwise.storage.files import write_atomically

__all__ = ["EncodedTable"]

FORMAT = 1
ABOUT = "table.json"
STRETCH = 32_768  # rows gathered at once
ARRAYS = ("ids", "values", "bag_ids", "bag_offsets")
OPTIONAL = ("y", "weight")


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """N encoded rows.

    Args:
        layout: the fields and their places in the shared embedding table.
        ids: [N, S] int32, single-valued fields.
        values: [N, V] float32, numeric fields (0 where missing).
        bag_ids: [M] int32, all bags, row by row and within a row field by field.
        bag_offsets: [N * G + 1] int64, where each bag begins.
        y: [N] float32 targets, [N, T] with several labels, or None.
        weight: [N] float32, what each row counts in loss and metrics, or None where all count alike.
    """

    layout: Layout
    ids: np.ndarray
    values: np.ndarray
    bag_ids: np.ndarray
    bag_offsets: np.ndarray
    y: np.ndarray | None = None
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [getattr(self, name) for name in ARRAYS]
        more = [a for a in (self.y, self.weight) if a is not None]
        return int(sum(a.nbytes for a in arrays + more))

    def batches(self, batch_size: int, *, order: Tensor | None = None) -> Iterator[tuple[Batch, Tensor | None]]:
        """Batches of rows and their targets: in the table's order, or in `order` (row numbers, int64).

        A last batch of one row is joined to the batch before, since batch normalization cannot train on one row.
        """
        rows = len(self) if order is None else int(order.shape[0])
        starts = _starts(rows, batch_size)
        ends = [*starts, rows][1:]
        together = max(1, STRETCH // batch_size)
        for k in range(0, len(starts), together):
            first, last = starts[k], ends[min(k + together, len(ends)) - 1]
            # Rows of several batches are gathered at once: each batch is then a view.
            picked = self._picked(slice(first, last) if order is None else order[first:last])
            for start, end in zip(starts[k : k + together], ends[k : k + together], strict=True):
                ids, values, y = (None if x is None else x[start - first : end - first] for x in picked)
                assert ids is not None
                assert values is not None
                bags = self._bags(slice(start, end) if order is None else order[start:end])
                yield Batch(ids, values, *bags), y

    def num_batches(self, batch_size: int) -> int:
        """How many batches `batches` gives over all rows."""
        return len(_starts(len(self), batch_size))

    def batch(self, rows: slice | Tensor) -> tuple[Batch, Tensor | None]:
        """One batch, gathered by row numbers (a slice is only a view)."""
        ids, values, y = self._picked(rows)
        return Batch(ids, values, *self._bags(rows)), y

    def _picked(self, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        ids, values, y = self._tensors
        if isinstance(rows, slice):
            return ids[rows], values[rows], None if y is None else y[rows]
        # index_select copies whole rows, where general indexing goes number by number.
        return ids.index_select(0, rows), values.index_select(0, rows), None if y is None else y.index_select(0, rows)

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        y = None if self.y is None else torch.from_numpy(self.y)
        return torch.from_numpy(self.ids), torch.from_numpy(self.values), y

    @cached_property
    def _bag_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        means = torch.tensor([f.pooling == "mean" for f in self.layout.fields if f.kind == "bag"])
        return torch.from_numpy(self.bag_ids), torch.from_numpy(self.bag_offsets), means

    def _bags(self, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat, offsets, means = self._bag_tensors
        groups = int(means.shape[0])
        if groups == 0:
            return _NO_IDS, _NO_SEGMENTS, _NO_WEIGHTS
        if isinstance(rows, slice):
            return self._run_of_bags(*rows.indices(len(self))[:2])
        row_numbers = rows
        bags = (row_numbers[:, None] * groups + torch.arange(groups)).reshape(-1)
        starts = offsets[bags]
        lengths = offsets[bags + 1] - starts
        segments = torch.repeat_interleave(torch.arange(bags.shape[0]), lengths)
        first = torch.cumsum(lengths, 0) - lengths
        positions = torch.arange(segments.shape[0]) + (starts - first)[segments]
        share = torch.where(means.repeat(row_numbers.shape[0]), 1.0 / lengths, 1.0)
        return flat[positions], segments, share[segments]

    def _run_of_bags(self, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """The bags of rows that follow one another: views, and a few small arrays."""
        means = self._bag_tensors[2].numpy()
        groups, last = len(means), max(first, last)
        offsets = self.bag_offsets[first * groups : last * groups + 1]
        lengths = np.diff(offsets)
        share = np.where(np.tile(means, last - first), np.float32(1) / np.maximum(lengths, 1), 1).astype(np.float32)
        segments = np.repeat(np.arange(len(lengths)), lengths)
        return (
            self._bag_tensors[0][int(offsets[0]) : int(offsets[-1])],
            torch.from_numpy(segments),
            torch.from_numpy(np.repeat(share, lengths)),
        )

    def save(self, folder: Path) -> None:
        """Write the table to a folder: under a temporary name, flushed, then renamed over an older table.

        Errors:
            DataError: the folder holds something else, the disk is full or the place cannot be written to; an older
                table there is then as it was.
        """
        if folder.exists() and not (folder / ABOUT).is_file():
            raise DataError(f"cannot write {folder}: it exists and is no encoded table; choose another folder")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        except OSError as e:
            raise DataError(f"cannot write {folder}: {e.strerror or e}") from e
        try:
            new = partial / "new"
            new.mkdir()
            for name in (*ARRAYS, *OPTIONAL):
                array = getattr(self, name)
                if array is not None:
                    with open(new / f"{name}.npy", "wb") as file:
                        np.save(file, array, allow_pickle=False)
                        file.flush()
                        os.fsync(file.fileno())
            about = {"format": FORMAT, "rows": len(self), "layout": to_plain(self.layout)}
            write_atomically(new / ABOUT, json.dumps(about).encode())
            _replace(new, folder, partial / "old")
        except OSError as e:
            raise DataError(f"cannot write {folder}: {e.strerror or e}; free space or choose another folder") from e
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @classmethod
    def open(cls, folder: Path) -> "EncodedTable":
        """Map a saved table into memory: nothing is read until it is used.

        Errors:
            DataError: no table there, a damaged one, or one of another format.
        """
        try:
            about = json.loads((folder / ABOUT).read_text("utf-8"))
            # Copy-on-write: the file is never changed, and PyTorch takes the mapping as it is.
            arrays = {name: _map(folder / f"{name}.npy") for name in ARRAYS}
            more = {name: _map(folder / f"{name}.npy") for name in OPTIONAL if (folder / f"{name}.npy").exists()}
        except (OSError, ValueError) as e:
            raise DataError(f"{folder} holds no encoded table that can be read: {e}; encode the data again") from None
        found = about.get("format") if isinstance(about, dict) else None
        if found != FORMAT:
            raise DataError(f"{folder} has table format {found!r}, this version reads {FORMAT}; encode the data again")
        layout = parse(Layout, about.get("layout"), f"{folder}: layout", DataError)
        table = cls(layout, arrays["ids"], arrays["values"], arrays["bag_ids"], arrays["bag_offsets"], **more)
        bags = len(layout.positions(kind="bag")) * len(table)
        if (
            about.get("rows") != len(table)
            or table.values.shape[0] != len(table)
            or table.bag_offsets.shape[0] != bags + 1
            or any(array.shape[0] != len(table) for array in more.values())
        ):
            raise DataError(f"{folder} holds arrays of different numbers of rows; encode the data again")
        return table


_NO_IDS = torch.empty(0, dtype=torch.int32)
_NO_SEGMENTS = torch.empty(0, dtype=torch.int64)
_NO_WEIGHTS = torch.empty(0, dtype=torch.float32)


def _starts(rows: int, batch_size: int) -> list[int]:
    starts = list(range(0, rows, batch_size))
    if batch_size > 1 and len(starts) > 1 and rows - starts[-1] == 1:
        starts.pop()
    return starts


def _replace(new: Path, folder: Path, aside: Path) -> None:
    """Rename `new` to `folder`; what stood there goes aside, and comes back where that fails.

    A kill between the two renames leaves no table at `folder`: encode again, a table can always be made anew.
    """
    if not folder.exists():
        new.rename(folder)
        return
    folder.rename(aside)
    try:
        new.rename(folder)
    except BaseException:
        aside.rename(folder)
        raise


def _map(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    return np.asarray(array) if array.size else np.empty(array.shape, array.dtype)
