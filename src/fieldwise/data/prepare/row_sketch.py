"""A sketch of a table's rows: a sample of their hashes, to find which rows of another table are among them.

Every row has a 64-bit hash, the same on every machine and in every version. The sketch keeps the smallest hashes: for
another table's rows with a hash below the largest kept one, which are a random sample, it is known exactly whether
they are in the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from fieldwise.errors import DataError

__all__ = ["Overlap", "RowSketch"]

MOST_HASHES = 4_096
SLICE_ROWS = 65_536  # few, for memory; many, since each operation of Polars takes a time of its own
TEXT_ROWS = 8_192  # the powers take 24 bytes per character
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse among the 64-bit numbers
_INVERSE = pow(_BASE, -1, 1 << 64)
_ABSENT = np.uint64(0x6A09E667F3BCC909)


@dataclass(frozen=True)
class Overlap:
    """The number of a table's rows that could be checked, and how many of them the other table has."""

    checked: int
    found: int

    @property
    def share(self) -> float:
        """The share found of those checked; 0 if none was."""
        return self.found / self.checked if self.checked else 0.0


@dataclass(frozen=True, kw_only=True)
class RowSketch:
    """The smallest hashes of a table's rows.

    Args:
        rows: number of rows of the table.
        columns: the columns that identify rows.
        hashes: distinct, ascending, uint64.
    """

    rows: int
    columns: tuple[str, ...]
    hashes: np.ndarray

    @classmethod
    def of(cls, frame: pl.DataFrame, columns: Sequence[str]) -> "RowSketch":
        """The sketch of a table.

        >>> sketch = RowSketch.of(pl.DataFrame({"user": ["a", "b"], "age": [30, None]}), ["user", "age"])
        >>> sketch.overlap(pl.DataFrame({"user": ["b", "a", "a"], "age": [None, 30.0, 31.0]}))
        Overlap(checked=3, found=2)
        """
        hashes = np.empty(0, np.uint64)
        for part in frame.select(columns).iter_slices(SLICE_ROWS):
            found = _row_hashes(part)
            if len(hashes) == MOST_HASHES:
                found = found[found < hashes[-1]]
            hashes = np.unique(np.concatenate([hashes, found]))[:MOST_HASHES]
        return cls(rows=frame.height, columns=tuple(columns), hashes=hashes)

    def overlap(self, frame: pl.DataFrame) -> Overlap:
        """The number of rows of another table with these columns that equal rows of this one."""
        whole = len(self.hashes) < MOST_HASHES  # every row of the table is in the sketch, so any row can be checked
        checked = found = 0
        for part in frame.select(self.columns).iter_slices(SLICE_ROWS):
            hashes = _row_hashes(part)
            if not whole:
                hashes = hashes[hashes <= self.hashes[-1]]
            checked += len(hashes)
            found += int(np.isin(hashes, self.hashes).sum())
        return Overlap(checked, found)

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"rows": self.rows, "columns": list(self.columns), "hashes": self.hashes.astype(">u8").tobytes().hex()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "RowSketch":
        """The inverse of `to_plain`.

        Errors:
            DataError: invalid values.
        """
        try:
            hashes = np.frombuffer(bytes.fromhex(plain["hashes"]), dtype=">u8").astype(np.uint64)
            return cls(rows=int(plain["rows"]), columns=tuple(plain["columns"]), hashes=hashes)
        except (LookupError, TypeError, ValueError) as e:
            raise DataError(f"a sketch of rows must have rows, columns and hashes: {e}") from None


def _row_hashes(frame: pl.DataFrame) -> np.ndarray:
    whole = np.ones(frame.height, np.uint64)
    for column in frame.get_columns():
        whole = _mixed(whole * np.uint64(_BASE) + _value_hashes(column))
    return whole


def _value_hashes(column: pl.Series) -> np.ndarray:
    """Hashes of values, equal for equal numbers of any type, and for text also if stored as categories."""
    kind, absent = column.dtype, column.is_null().to_numpy()
    if isinstance(kind, (pl.Datetime, pl.Duration)):
        column = column.dt.cast_time_unit("us").to_physical()
    elif kind.is_temporal():
        column = column.to_physical()
    elif isinstance(kind, (pl.List, pl.Array)):
        column = column.cast(pl.List(kind.inner)).cast(pl.List(pl.String)).list.join("\x1f", ignore_nulls=True)
    elif kind in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        numbers = column.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # one zero
        found = np.ascontiguousarray(numbers).view(np.uint64)
    else:
        if column.dtype != pl.String:
            column = pl.Series(column.to_frame().write_ndjson().splitlines(), dtype=pl.String)  # structs: rare
        found = _text_hashes(column.fill_null(""))
    return np.where(absent, _ABSENT, _mixed(found))


def _text_hashes(column: pl.Series) -> np.ndarray:
    """Hashes of texts: the bytes as digits of a number to the base, modulo 2**64, and the length."""
    lengths = column.str.len_bytes().to_numpy().astype(np.int64)
    octets = np.frombuffer(column.str.join("").cast(pl.Binary).item(), dtype=np.uint8)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    found = np.empty(len(lengths), np.uint64)
    for first in range(0, len(lengths), TEXT_ROWS):
        some = slice(first, first + TEXT_ROWS)
        start = starts[first]
        found[some] = _numbers(octets[start : ends[some][-1]], starts[some] - start, ends[some] - start)
    found += lengths.astype(np.uint64) * np.uint64(_BASE)
    return found


def _numbers(octets: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers whose digits are the bytes of each text."""
    powers = np.full(len(octets) + 1, _BASE, np.uint64)
    back = np.full(len(octets) + 1, _INVERSE, np.uint64)
    powers[0] = back[0] = 1
    sums = np.zeros(len(octets) + 1, np.uint64)
    np.cumsum((octets.astype(np.uint64) + np.uint64(1)) * np.cumprod(powers)[:-1], out=sums[1:])
    found: np.ndarray = (sums[ends] - sums[starts]) * np.cumprod(back)[starts]
    return found


def _mixed(values: np.ndarray) -> np.ndarray:
    """Mixed numbers, each of whose bits depends on all bits of the input (SplitMix64's last steps)."""
    z = values ^ (values >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed
