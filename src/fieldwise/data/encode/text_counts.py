"""How often each text of a column occurs, counted chunk by chunk, in memory or in files."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from fieldwise.storage.files import cannot_write
from fieldwise.storage.scratch import MemoryBudget

MAX_TEXTS_IN_MEMORY = 4_000_000
"""They take some 200 MB."""
SHARDS = 32
"""Files of one spill; a text is in the one of its hash."""
NO_COUNTS = pl.DataFrame(schema={"text": pl.String, "n": pl.Int64})


class TextCounts:
    """Counts of texts, which are added chunk by chunk and summed by text.

    Chunks have columns `text`, or 64-bit integers for their decimal texts, and `n`. If more than
    `max_in_memory` different texts are counted and there is a folder, the counts go to files there.
    """

    def __init__(self, folder: Path | None, max_in_memory: int) -> None:
        self._folder = folder
        self._max_in_memory = max_in_memory
        self._summed = NO_COUNTS
        self._chunks: list[pl.DataFrame] = []
        self._chunk_rows = 0
        self._files: list[list[Path]] = [[] for _ in range(SHARDS)]

    def add(self, chunk: pl.DataFrame) -> None:
        """Add the counts of some more rows."""
        self._chunks.append(chunk)
        self._chunk_rows += chunk.height
        if self._chunk_rows > max(self._summed.height, self._max_in_memory // 8):
            self._sum_chunks()
            if self._summed.height > self._max_in_memory:
                self._spill()

    def shards(self) -> Iterator[pl.DataFrame]:
        """The counts with each text once, in one table, or in one for each shard if some are in files."""
        self._sum_chunks()
        has_files = bool(self._files[0])
        if self._summed.height > (0 if has_files else self._max_in_memory):
            self._spill()

        if not self._files[0]:
            yield self._summed
            return
        for paths in self._files:
            yield _summed_by_text([pl.read_ipc(path) for path in paths])

    def _sum_chunks(self) -> None:
        self._summed = _summed_by_text([self._summed, *self._chunks])
        self._chunks = []
        self._chunk_rows = 0

    def _spill(self) -> None:
        """Write the counts in memory to a new file of each shard."""
        if self._folder is None:
            return
        shard_of_text = self._summed.get_column("text").hash(0) % SHARDS
        try:
            self._folder.mkdir(exist_ok=True)
            for shard, paths in enumerate(self._files):
                path = self._folder / f"{shard}.{len(paths)}.arrow"
                self._summed.filter(shard_of_text == shard).write_ipc(path)
                paths.append(path)
        except OSError as e:
            raise cannot_write(self._folder, e) from e
        self._summed = NO_COUNTS


def _summed_by_text(tables: list[pl.DataFrame]) -> pl.DataFrame:
    # Empty tables may be of text where integers are counted.
    filled = [table for table in tables if table.height]
    counts = pl.concat(filled or [NO_COUNTS])
    return counts.group_by("text").agg(pl.col("n").sum())


def frequent_texts(
    counts: Iterable[pl.DataFrame],
    least: int,
    most: int = MAX_TEXTS_IN_MEMORY,
    *,
    budget: MemoryBudget,
) -> tuple[tuple[str, ...], int]:
    """The texts that occur at least `least` times, most frequent first, and the number of others.

    The counts are chunks of `TextCounts`. At most `most` different texts are in memory, if the
    memory budget has a folder for the others.
    """
    text_counts = TextCounts(budget.new_path(), most)
    for chunk in counts:
        text_counts.add(chunk)

    frequent = []
    rare = 0
    for shard in text_counts.shards():
        frequent_in_shard = shard.filter(pl.col("n") >= least)
        frequent.append(frequent_in_shard)
        rare += shard.height - frequent_in_shard.height

    with_texts = pl.concat(frequent).with_columns(pl.col("text").cast(pl.String))
    ranked = with_texts.sort("n", "text", descending=[True, False])
    return tuple(ranked.get_column("text").to_list()), rare
