"""Texts as row ids: a vocabulary of the values in the training rows, or hashing instead of one.

Local row ids of a field: with a vocabulary 0 missing, 1 unknown, 2.. the values (most frequent
first); hashed 0 missing, 1.. the buckets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import count, repeat
from typing import Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import coded, stable_hash
from fieldwise.data.encode.integer_lookup import IntegerLookup
from fieldwise.data.encode.portable import MISSING, UNKNOWN, HashedTexts, KnownTexts

INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
# Texts that are looked up one by one, such as a request's context: polars builds an index in every
# call, 27 ms for 100,000 values.
ALWAYS_FEW_TEXTS = 16
AT_MOST_FEW_TEXTS = 1_000
VALUES_PER_FEW_TEXT = 8


@dataclass(frozen=True, kw_only=True)
class Vocabulary(KnownTexts):
    """A vocabulary: values with their own row, most frequent first.

    Args:
        values: the texts; the k-th has local row id k + 2.
        rare: number of distinct values below min_count.
    """

    values: tuple[str, ...]
    rare: int = 0
    kind: Literal["vocabulary"] = "vocabulary"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return len(self.values) + 2

    def ids(self, cells: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts, or of integers as their decimal texts; null is missing, an unseen value unknown.

        >>> Vocabulary(values=("7", "08", "-1")).ids(pl.Series([-1, 7, 8, None])).tolist()
        [4, 2, 1, 0]
        """
        if cells.dtype in INTEGERS:
            ids = self._id_of_integer.find(cells.cast(pl.Int64).fill_null(0).to_numpy())
        elif self._are_few(cells):
            return self.ids_of(cells.to_list())
        else:
            ids = self._ids_by_hash(cells)
        if cells.null_count():
            ids[cells.is_null().to_numpy()] = MISSING
        return ids

    def ids_of(self, texts: Iterable[str | None]) -> np.ndarray:
        """`ids` of a few texts."""
        if self.boolean:
            texts = (text and text.lower() for text in texts)
        return np.fromiter(map(self.row_of_text.get, texts, repeat(UNKNOWN)), np.int32)

    def _are_few(self, cells: pl.Series) -> bool:
        """Whether a dictionary finds the ids of texts faster than their hashes do."""
        few = min(len(self.values) // VALUES_PER_FEW_TEXT, AT_MOST_FEW_TEXTS)
        return not self.values or len(cells) <= max(ALWAYS_FEW_TEXTS, few)

    def _ids_by_hash(self, texts: pl.Series) -> np.ndarray:
        if self.boolean:
            texts = texts.str.to_lowercase()
        values, seed, position_of_hash = self._hashes
        position = position_of_hash.find(texts.hash(seed).to_numpy().view(np.int64))
        is_known = (values.gather(position.clip(min=0)) == texts).fill_null(False).to_numpy()
        return np.where(is_known, position + (UNKNOWN + 1), UNKNOWN).astype(np.int32)

    @cached_property
    def _id_of_integer(self) -> IntegerLookup:
        """The ids of the values that are the decimal text of an integer."""
        texts = pl.Series(self.values, dtype=pl.String)
        integers = texts.cast(pl.Int64, strict=False)
        is_decimal = (integers.cast(pl.String) == texts).fill_null(False)
        ids = np.flatnonzero(is_decimal.to_numpy()).astype(np.int32) + np.int32(UNKNOWN + 1)
        return IntegerLookup(integers.filter(is_decimal).to_numpy(), ids, absent=UNKNOWN)

    @cached_property
    def _hashes(self) -> tuple[pl.Series, int, IntegerLookup]:
        """The values; a seed by which no two have the same hash; and the position of each by its hash."""
        values = pl.Series(self.values, dtype=pl.String)
        if self.boolean:
            values = values.str.to_lowercase()
        seed = next(seed for seed in count() if values.hash(seed).n_unique() == len(values))
        hashes = values.hash(seed).to_numpy().view(np.int64)
        positions = np.arange(len(values), dtype=np.int32)
        return values, seed, IntegerLookup(hashes, positions, absent=-1)


@dataclass(frozen=True, kw_only=True)
class Hashing(HashedTexts):
    """Hashing instead of a vocabulary: the row is a stable hash of the text (FNV-1a). Values may share a row."""

    buckets: int
    kind: Literal["hashing"] = "hashing"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return self.buckets + 1

    def ids(self, texts: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts; null is missing."""
        dictionary = coded(texts)
        id_of_text = stable_hash(dictionary.texts, self.buckets) + 1
        return dictionary.look_up(id_of_text.astype(np.int32), MISSING)
