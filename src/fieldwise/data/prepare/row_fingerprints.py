"""Hashes of a table's rows, by which they are found in another table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

MOST_HASHES = 4_096
# few, for memory; many, since each operation of Polars takes a time of its own
SKETCH_ROWS = 65_536
TEXTS_AT_ONCE = 8_192
"""The powers of the base take 24 bytes per character."""
_BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse among the 64-bit numbers."""
_INVERSE = pow(_BASE, -1, 1 << 64)
_ABSENT = np.uint64(0x6A09E667F3BCC909)


class TrainTestOverlap(NamedTuple):
    """The number of a table's rows that could be checked, and how many of them the other table has."""

    checked: int
    found: int

    @property
    def share(self) -> float:
        """The share found of those checked; 0 if none was."""
        return self.found / self.checked if self.checked else 0.0


@dataclass(frozen=True, kw_only=True)
class RowFingerprints:
    """The smallest hashes of a table's rows, distinct and ascending, and the columns that identify rows."""

    rows: int
    columns: tuple[str, ...]
    hashes: np.ndarray

    @classmethod
    def of(cls, frame: pl.DataFrame, columns: Sequence[str]) -> "RowFingerprints":
        """The fingerprints of a table.

        >>> sketch = RowFingerprints.of(pl.DataFrame({"user": ["a", "b"], "age": [30, None]}), ["user", "age"])
        >>> sketch.overlap(pl.DataFrame({"user": ["b", "a", "a"], "age": [None, 30.0, 31.0]}))
        TrainTestOverlap(checked=3, found=2)
        """
        hashes = np.empty(0, np.uint64)
        for part in frame.select(columns).iter_slices(SKETCH_ROWS):
            new_hashes = _row_hashes(part)
            if len(hashes) == MOST_HASHES:
                new_hashes = new_hashes[new_hashes < hashes[-1]]
            hashes = np.unique(np.concatenate([hashes, new_hashes]))[:MOST_HASHES]
        return cls(rows=frame.height, columns=tuple(columns), hashes=hashes)

    def overlap(self, frame: pl.DataFrame) -> TrainTestOverlap:
        """The number of rows of another table with these columns that equal rows of this one."""
        # all rows of the table are kept, so any row can be checked
        has_all_rows = len(self.hashes) < MOST_HASHES
        checked = 0
        equal = 0
        for part in frame.select(self.columns).iter_slices(SKETCH_ROWS):
            hashes = _row_hashes(part)
            if not has_all_rows:
                hashes = hashes[hashes <= self.hashes[-1]]
            checked += len(hashes)
            equal += int(np.isin(hashes, self.hashes).sum())
        return TrainTestOverlap(checked, equal)

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rows": self.rows,
            "columns": list(self.columns),
            "hashes": self.hashes.astype(">u8").tobytes().hex(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RowFingerprints":
        """The inverse of `to_plain`; another value is a LookupError, TypeError or ValueError."""
        hashes = np.frombuffer(bytes.fromhex(plain["hashes"]), dtype=">u8").astype(np.uint64)
        return cls(rows=int(plain["rows"]), columns=tuple(plain["columns"]), hashes=hashes)


def _row_hashes(frame: pl.DataFrame) -> np.ndarray:
    """Hashes of rows, equal for equal numbers of any type, and for text also if stored as categories."""
    rows = np.ones(frame.height, np.uint64)
    for column in frame.get_columns():
        is_missing = column.is_null().to_numpy()
        cells = np.where(is_missing, _ABSENT, _mixed(_cell_hashes(_plain_cells(column))))
        rows = _mixed(rows * np.uint64(_BASE) + cells)
    return rows


def _plain_cells(column: pl.Series) -> pl.Series:
    """The cells as numbers, truth values or text, equal for equal values of any type."""
    dtype = column.dtype
    if isinstance(dtype, (pl.Datetime, pl.Duration)):
        return column.dt.cast_time_unit("us").to_physical()
    if dtype.is_temporal():
        return column.to_physical()
    if isinstance(dtype, (pl.List, pl.Array)):
        lists = column.cast(pl.List(dtype.inner)).cast(pl.List(pl.String))
        return lists.list.join("\x1f", ignore_nulls=True)
    if dtype in (pl.Categorical, pl.Enum):
        return column.cast(pl.String)
    if dtype.is_numeric() or dtype in (pl.Boolean, pl.String):
        return column
    # structs: rare
    return pl.Series(column.to_frame().write_ndjson().splitlines(), dtype=pl.String)


def _cell_hashes(column: pl.Series) -> np.ndarray:
    """A number for each cell [N] uint64: the bits of a number, or the hash of a text."""
    if column.dtype == pl.String:
        return _text_hashes(column.fill_null(""))
    numbers = column.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # one zero
    return np.ascontiguousarray(numbers).view(np.uint64)


def _text_hashes(texts: pl.Series) -> np.ndarray:
    """The bytes of each text as digits of a number to the base, modulo 2**64, and its length [N] uint64."""
    lengths = texts.str.len_bytes().to_numpy().astype(np.int64)
    octets = np.frombuffer(texts.str.join("").cast(pl.Binary).item(), dtype=np.uint8)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    hashes = np.empty(len(lengths), np.uint64)
    for first in range(0, len(lengths), TEXTS_AT_ONCE):
        chunk = slice(first, first + TEXTS_AT_ONCE)
        start = starts[chunk] - starts[first]
        end = ends[chunk] - starts[first]
        digits = octets[starts[first] : ends[chunk][-1]].astype(np.uint64) + np.uint64(1)
        powers = _powers(_BASE, len(digits))
        sums = np.zeros(len(digits) + 1, np.uint64)
        np.cumsum(digits * powers[:-1], out=sums[1:])
        # divided by the power at its start, a text has one number wherever it stands
        hashes[chunk] = (sums[end] - sums[start]) * _powers(_INVERSE, len(digits))[start]
    return hashes + lengths.astype(np.uint64) * np.uint64(_BASE)


def _powers(base: int, highest: int) -> np.ndarray:
    """The powers of a number from 0 to the highest, modulo 2**64."""
    factors = np.full(highest + 1, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Mixed numbers, each of whose bits depends on all bits of the input (SplitMix64's last steps)."""
    z = values ^ (values >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
