"""The rows of unique ids: a dictionary, or a hash table that processes of one server share."""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from fieldwise.storage.shared import SharedArrays

__all__ = ["SharedPlaces", "places_of"]

MULTIPLIER = 0x9E3779B97F4A7C15  # as in fieldwise.data.encode.lookup
ALL = 2**64 - 1
CHUNK = 1 << 14


class SharedPlaces(Mapping[str, int]):
    """The rows of texts, by a hash table with open addressing and linear probing.

    A dictionary of a million ids takes 150 MB of each process. The table is an array, and the texts are a column: both
    can be mapped.

    Args:
        texts: different texts without nulls.
        rows: the table, from `SharedPlaces.table`.

    >>> texts = pl.Series(["b", "a"])
    >>> places = SharedPlaces(texts, SharedPlaces.table(texts))
    >>> places["a"], places.get("c"), "b" in places, list(places)
    (1, None, True, ['b', 'a'])
    """

    def __init__(self, texts: pl.Series, rows: np.ndarray) -> None:
        self._texts, self._rows = texts, memoryview(rows.data)  # read faster than an array, one number at a time
        self._last, self._shift = len(rows) - 1, _shift(len(rows))

    @staticmethod
    def table(texts: pl.Series) -> np.ndarray:
        """The hash table [2**bits] int32 of texts, -1 where it is free: of this process and those forked from it.

        Python's hashes of texts differ between processes that do not have the same seed (`seed`).
        """
        hashes = np.empty(len(texts), np.int64)
        for start in range(0, len(texts), CHUNK):  # all texts at once would take much memory
            some = texts[start : start + CHUNK].to_list()
            hashes[start : start + CHUNK] = np.fromiter(map(hash, some), np.int64, len(some))
        size = 1 << max(1, (2 * len(texts)).bit_length())  # at most half of the places are taken
        table = np.full(size, -1, np.int32)
        waiting = np.arange(len(texts), dtype=np.int32)
        place = ((hashes.view(np.uint64) * np.uint64(MULTIPLIER)) >> np.uint64(_shift(size))).view(np.int64)
        while len(waiting):
            free = table[place] < 0
            table[place[free]] = waiting[free]  # where several want one place the last one gets it
            beaten = table[place] != waiting
            waiting, place = waiting[beaten], (place[beaten] + 1) & (size - 1)
        return table

    def __getitem__(self, text: str) -> int:
        place = ((hash(text) * MULTIPLIER) & ALL) >> self._shift
        while (row := self._rows[place]) >= 0:
            if self._texts[row] == text:
                return int(row)
            place = (place + 1) & self._last
        raise KeyError(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def places_of(texts: pl.Series, of: str, shared: SharedArrays | None) -> Mapping[str, int]:
    """The row of each text.

    Args:
        texts: different texts without nulls.
        of: what they belong to.
        shared: where the table lies that processes share; a dictionary if None, which is faster.
    """
    if shared is None:
        return {text: row for row, text in enumerate(texts.to_list())}
    seed = hash("fieldwise") & ALL  # the same in forked processes
    return SharedPlaces(texts, shared.array(f"places{seed:x}-{of}", lambda: SharedPlaces.table(texts)))


def _shift(size: int) -> int:
    return 65 - size.bit_length()
