"""Rows partitioned by a hash of their key, so that a key's rows are together and a partition fits in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fieldwise.features.known_events import MISSING
from fieldwise.storage.scratch import MemoryBudget

ROWS_OF_A_PARTITION = 1 << 16
"""About, whatever the memory: arrays of it stay in the processor's cache."""
LARGEST = 1 << 61
LONGEST_SPAN = LARGEST // (4 * 256)
"""In units of time: beyond it a partition would have fewer than 256 rows, as where one time is far from all others."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def partition_count(rows: int, span: int) -> int:
    """The number of partitions of which each has few enough keys for a whole number of key and time."""
    size = min(ROWS_OF_A_PARTITION, LARGEST // (4 * span))
    return max(1, -(-rows // size))


@dataclass(frozen=True, kw_only=True, eq=False)
class Partitions:
    """The numbers of rows in the order of their partitions; rows without a key are in none.

    Args:
        position: for each row [N], where it stands.
        bounds: where each partition begins, and the last one ends [P + 1].
    """

    position: np.ndarray
    bounds: np.ndarray
    budget: MemoryBudget

    @classmethod
    def of(cls, keys: Sequence[np.ndarray], count: int, *, budget: MemoryBudget) -> Self:
        """The partitions of rows by the whole numbers [N] of each column of their key."""
        rows = len(keys[0])
        part = budget.fill(
            rows, np.int32, lambda chunk: _hashed([key[chunk] for key in keys], count)
        )
        sizes = np.zeros(count + 1, np.int64)
        for chunk in budget.chunk_slices(rows):
            sizes += np.bincount(part[chunk], minlength=count + 1)
        next_places = np.cumsum(sizes) - sizes
        position = budget.empty(rows, np.int64)
        for chunk in budget.chunk_slices(rows):
            narrow = part[chunk].astype(np.uint16) if count < 1 << 16 else part[chunk]
            order = np.argsort(narrow, kind="stable")
            sorted_parts = part[chunk][order]
            counts = np.bincount(sorted_parts, minlength=count + 1)
            first = np.cumsum(counts) - counts
            position[chunk.start + order] = (
                next_places[sorted_parts] + np.arange(len(order)) - first[sorted_parts]
            )
            next_places += counts
        bounds = np.append(0, np.cumsum(sizes[:-1]))
        return cls(position=position, bounds=bounds, budget=budget)

    def arrange(self, values: np.ndarray) -> np.ndarray:
        """Values of the rows [N] in the order of the partitions."""
        arranged = self.budget.empty(len(values), values.dtype.type)
        for chunk in self.budget.chunk_slices(len(values)):
            arranged[self.position[chunk]] = values[chunk]
        return arranged

    def restore(self, arranged: np.ndarray, chunk: slice) -> np.ndarray:
        """The inverse of `arrange`, for a chunk of the rows."""
        return np.asarray(arranged[self.position[chunk]])


def _hashed(keys: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The partition of each row; `count` for a row without a key."""
    mixed = np.zeros(len(keys[0]), np.uint64)
    is_missing = np.zeros(len(mixed), bool)
    for key in keys:
        is_missing |= key == MISSING
        mixed = (mixed ^ key.view(np.uint64)) * MULTIPLIER
        mixed ^= mixed >> np.uint64(32)
    part = (mixed % np.uint64(count)).astype(np.int32)
    return np.where(is_missing, np.int32(count), part)
