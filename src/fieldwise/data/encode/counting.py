"""Counting texts or integers piece by piece; counts that take too much memory are moved to files."""

import secrets
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.storage.files import cannot_write
from fieldwise.storage.scratch import Scratch

__all__ = ["TextCounts"]

MOST_TEXTS = 4_000_000  # in memory, some 200 MB
SHARDS = 32  # a text is in the file of its hash
EMPTY = pl.DataFrame(schema={"text": pl.String, "n": pl.Int64})


class TextCounts:
    """How often each text occurs, or each integer if all that is added are 64-bit integers.

    Args:
        scratch: its folder takes the counts if the different texts are more than `most`; without a folder all are held
            in memory.
        most: different texts in memory at most.

    >>> counts = TextCounts(Scratch())
    >>> for _ in range(2):
    ...     counts.add(pl.Series(["a", "b", "c"]), np.array([3, 1, 0]))
    >>> counts.at_least(3)[0].rows(), counts.at_least(3)[1]
    ([('a', 6)], 1)
    """

    def __init__(self, scratch: Scratch, most: int = MOST_TEXTS) -> None:
        self._most = most
        self._folder = None if scratch.folder is None else scratch.folder / secrets.token_hex(8)
        self._counts, self._added, self._waiting = EMPTY, [EMPTY], 0
        self._files: list[list[Path]] = [[] for _ in range(SHARDS)]

    def add(self, texts: pl.Series, counts: np.ndarray) -> None:
        """Add texts with their counts.

        Errors:
            DataError: the disk is full.
        """
        found = pl.DataFrame({"text": texts, "n": counts.astype(np.int64)}).filter(pl.col("n") > 0)
        self._added.append(found)
        self._waiting += found.height
        if self._waiting > max(self._counts.height, self._most // 8):
            self._merge()
        if self._folder is not None and self._counts.height > self._most:
            self._spill(self._folder)

    def at_least(self, count: int) -> tuple[pl.DataFrame, int]:
        """The texts that occur at least `count` times with their numbers `n`, and how many other texts there are."""
        self._merge()
        if not any(self._files):
            kept = self._counts.filter(pl.col("n") >= count)
            return kept, self._counts.height - kept.height
        assert self._folder is not None, "files lie in a folder"
        self._spill(self._folder)
        found, rare = [], 0
        for paths in self._files:
            counts = _summed([pl.read_ipc(path) for path in paths])
            found.append(counts.filter(pl.col("n") >= count))
            rare += counts.height - found[-1].height
        return pl.concat([one for one in found if one.height] or [EMPTY]), rare

    def _merge(self) -> None:
        self._counts, self._added, self._waiting = _summed([self._counts, *self._added]), [EMPTY], 0

    def _spill(self, folder: Path) -> None:
        """Move the counts to files."""
        shard = self._counts.get_column("text").hash(0) % SHARDS
        try:
            folder.mkdir(exist_ok=True)
            for number, paths in enumerate(self._files):
                paths.append(folder / f"{number}.{len(paths)}.arrow")
                self._counts.filter(shard == number).write_ipc(paths[-1])
        except OSError as e:
            raise cannot_write(folder, e) from e
        self._counts = EMPTY


def _summed(counts: list[pl.DataFrame]) -> pl.DataFrame:
    some = [one for one in counts if one.height]  # empty ones are of text, also where integers are counted
    return pl.concat(some or [EMPTY]).group_by("text").agg(pl.col("n").sum())
