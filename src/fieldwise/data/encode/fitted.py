"""The fitted part of one field: a vocabulary, hashing, a scaler or bins.

Local row ids of a field: with a vocabulary 0 missing, 1 unknown, 2.. the values (most frequent first); hashed
0 missing, 1.. the buckets; bins 0 missing, 1.. the bins; a number times a vector 0 missing, 1 the field's vector.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.coded import code_texts
from fieldwise.data.encode.columns import FLOAT32_MAX, stable_hash
from fieldwise.data.encode.lookup import Lookup

__all__ = ["MISSING", "UNKNOWN", "Bins", "Fitted", "Hashing", "Scaling", "Vocabulary", "signed_log"]

MISSING = 0
UNKNOWN = 1
FEW_TEXTS = 16  # a request's context; polars builds an Enum's index in every cast, 27 ms for 100,000 values
SOME_TEXTS = 1_000
MANY_VALUES = 50_000
_MISSING = pl.Series([MISSING], dtype=pl.Int32)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
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

    @cached_property
    def _enum(self) -> pl.Enum:
        """The values as a polars Enum, made once and used for every table."""
        values = [value.lower() for value in self.values] if self._boolean else self.values
        return pl.Enum(pl.Series(values, dtype=pl.String))

    @cached_property
    def _places(self) -> dict[str | None, int]:
        places: dict[str | None, int] = {value: row for row, value in enumerate(self.values, UNKNOWN + 1)}
        if self._boolean:
            places = {case: row for v, row in places.items() if v for case in (v.lower(), v.title(), v.upper())}
        return {**places, None: MISSING}

    @cached_property
    def _boolean(self) -> bool:
        """Whether the values are booleans: `true` from a frame, but `True` in pandas' CSV files."""
        lowered = [value.lower() for value in self.values[:3]]
        return len(set(lowered)) == len(self.values) and set(lowered) <= {"true", "false"}

    def ids(self, text: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts; null is missing, an unseen text unknown."""
        if len(text) <= max(FEW_TEXTS, min(len(self.values) // 8, SOME_TEXTS)):
            return self.ids_of(text.to_list())
        if len(self.values) > MANY_VALUES and len(text) < 8 * len(self.values) and self._hashes is not None:
            return self._by_hash(text, *self._hashes)
        text = text.str.to_lowercase() if self._boolean else text
        known = (text.cast(self._enum, strict=False).to_physical().cast(pl.Int32) + 2).fill_null(UNKNOWN)
        return (known.zip_with(text.is_not_null(), _MISSING) if text.null_count() else known).to_numpy()

    def ids_of_integers(self, column: pl.Series) -> np.ndarray:
        """`ids` of the decimal texts of integers of up to 64 bits, signed, without making these texts; null is missing.

        >>> Vocabulary(values=("7", "08", "-1")).ids_of_integers(pl.Series([-1, 7, 8, None])).tolist()
        [4, 2, 1, 0]
        """
        ids = self._integers.find(column.cast(pl.Int64).fill_null(0).to_numpy())
        if column.null_count():
            ids[column.is_null().to_numpy()] = MISSING
        return ids

    @cached_property
    def _integers(self) -> Lookup:
        """The ids of the values that are the decimal text of an integer."""
        text = pl.Series(self.values, dtype=pl.String)
        number = text.cast(pl.Int64, strict=False)
        decimal = (number.cast(pl.String) == text).fill_null(False)
        ids = np.flatnonzero(decimal.to_numpy()).astype(np.int32) + np.int32(UNKNOWN + 1)
        return Lookup.of(number.filter(decimal).to_numpy(), ids, absent=UNKNOWN)

    @cached_property
    def _hashes(self) -> tuple[pl.Series, Lookup] | None:
        """The values, and the place of each by its hash; None if two values have one hash."""
        values = pl.Series(self.values, dtype=pl.String)
        hashes = values.hash(0)
        if hashes.n_unique() < len(hashes):
            return None
        return values, Lookup.of(hashes.to_numpy().view(np.int64), np.arange(len(values), dtype=np.int32), absent=-1)

    @staticmethod
    def _by_hash(text: pl.Series, values: pl.Series, places: Lookup) -> np.ndarray:
        """`ids` of texts that are few for the vocabulary, of which an Enum would build an index each time."""
        place = places.find(text.hash(0).to_numpy().view(np.int64))
        known = (values.gather(place.clip(min=0)) == text).fill_null(False).to_numpy()
        ids = np.where(known, place + (UNKNOWN + 1), UNKNOWN).astype(np.int32)
        if text.null_count():
            ids[text.is_null().to_numpy()] = MISSING
        return ids

    def ids_of(self, texts: Iterable[str | None]) -> np.ndarray:
        """`ids` of a few texts."""
        return np.fromiter(map(self._places.get, texts, repeat(UNKNOWN)), np.int32)


@dataclass(frozen=True, kw_only=True)
class Hashing:
    """Hashing instead of a vocabulary: the row is a stable hash of the text (FNV-1a). Values may share a row."""

    buckets: int
    kind: Literal["hashing"] = "hashing"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return self.buckets + 1

    def ids(self, text: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts; null is missing."""
        cells = code_texts(text)
        return cells.look_up((stable_hash(cells.texts, self.buckets) + 1).astype(np.int32), MISSING)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A scaler: (number - shift) / scale, after an optional logarithm, clipped to `clip` or 32-bit floats."""

    logarithm: bool = False
    shift: float = 0.0
    scale: float = 1.0
    clip: tuple[float, float] | None = None
    kind: Literal["scaling"] = "scaling"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return 2

    def values(self, number: np.ndarray) -> np.ndarray:
        """Transformed numbers [N]; NaN stays."""
        low, high = self.clip or (-FLOAT32_MAX, FLOAT32_MAX)
        with np.errstate(over="ignore"):  # overflows are clipped
            scaled = ((signed_log(number) if self.logarithm else number) - self.shift) / self.scale
        return np.clip(scaled, low, high)


@dataclass(frozen=True, kw_only=True)
class Bins:
    """Bins: bin k holds edges[k-1] <= number < edges[k]; the first and last include values beyond the training range.

    Args:
        edges: the inner edges, increasing, after an optional logarithm.
    """

    edges: tuple[float, ...]
    logarithm: bool = False
    kind: Literal["bins"] = "bins"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return len(self.edges) + 2

    def ids(self, number: np.ndarray) -> np.ndarray:
        """Local row ids [N] of numbers; NaN is missing."""
        number = signed_log(number) if self.logarithm else number
        position = np.searchsorted(np.asarray(self.edges), number, side="right")
        return np.where(np.isnan(number), MISSING, position + 1).astype(np.int32)


Fitted = Vocabulary | Hashing | Scaling | Bins


def signed_log(number: np.ndarray) -> np.ndarray:
    """The logarithm of 1 + |number| with the number's sign."""
    logged: np.ndarray = np.sign(number) * np.log1p(np.abs(number))
    return logged
