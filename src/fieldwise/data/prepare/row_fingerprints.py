"""Hashes of rows: which rows of another table are in this one, rows that repeat, and the digest of a table."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import polars as pl

from fieldwise.schema import Schema
from fieldwise.storage import scratch
from fieldwise.storage.machine import each

MOST_HASHES = 4_096
# few, for memory; many, since each operation of Polars takes a time of its own
SKETCH_ROWS = 65_536
TEXT_ROWS = 8_192  # the powers take 24 bytes per character
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse among the 64-bit numbers
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
            result = _row_hashes(part)
            if len(hashes) == MOST_HASHES:
                result = result[result < hashes[-1]]
            hashes = np.unique(np.concatenate([hashes, result]))[:MOST_HASHES]
        return cls(rows=frame.height, columns=tuple(columns), hashes=hashes)

    def overlap(self, frame: pl.DataFrame) -> TrainTestOverlap:
        """The number of rows of another table with these columns that equal rows of this one."""
        # all rows of the table are kept, so any row can be checked
        whole = len(self.hashes) < MOST_HASHES
        checked = result = 0
        for part in frame.select(self.columns).iter_slices(SKETCH_ROWS):
            hashes = _row_hashes(part)
            if not whole:
                hashes = hashes[hashes <= self.hashes[-1]]
            checked += len(hashes)
            result += int(np.isin(hashes, self.hashes).sum())
        return TrainTestOverlap(checked, result)

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
        kind = column.dtype
        absent = column.is_null().to_numpy()
        if isinstance(kind, (pl.Datetime, pl.Duration)):
            column = column.dt.cast_time_unit("us").to_physical()
        elif kind.is_temporal():
            column = column.to_physical()
        elif isinstance(kind, (pl.List, pl.Array)):
            column = (
                column.cast(pl.List(kind.inner))
                .cast(pl.List(pl.String))
                .list.join("\x1f", ignore_nulls=True)
            )
        elif kind in (pl.Categorical, pl.Enum):
            column = column.cast(pl.String)
        if column.dtype.is_numeric() or column.dtype == pl.Boolean:
            numbers = column.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # one zero
            result = np.ascontiguousarray(numbers).view(np.uint64)
        else:
            if column.dtype != pl.String:
                # structs: rare
                column = pl.Series(column.to_frame().write_ndjson().splitlines(), dtype=pl.String)
            # The bytes of a text as digits of a number to the base, modulo 2**64, and its length.
            column = column.fill_null("")
            lengths = column.str.len_bytes().to_numpy().astype(np.int64)
            octets = np.frombuffer(column.str.join("").cast(pl.Binary).item(), dtype=np.uint8)
            ends = np.cumsum(lengths)
            starts = ends - lengths
            result = np.empty(len(lengths), np.uint64)
            for first in range(0, len(lengths), TEXT_ROWS):
                some = slice(first, first + TEXT_ROWS)
                digits = octets[starts[first] : ends[some][-1]]
                powers, back = (
                    np.full(len(digits) + 1, factor, np.uint64) for factor in (_BASE, _INVERSE)
                )
                powers[0] = back[0] = 1
                sums = np.zeros(len(digits) + 1, np.uint64)
                np.cumsum(
                    (digits.astype(np.uint64) + np.uint64(1)) * np.cumprod(powers)[:-1],
                    out=sums[1:],
                )
                start = starts[some] - starts[first]
                end = ends[some] - starts[first]
                result[some] = (sums[end] - sums[start]) * np.cumprod(back)[start]
            result += lengths.astype(np.uint64) * np.uint64(_BASE)
        rows = _mixed(rows * np.uint64(_BASE) + np.where(absent, _ABSENT, _mixed(result)))
    return rows


def _mixed(values: np.ndarray) -> np.ndarray:
    """Mixed numbers, each of whose bits depends on all bits of the input (SplitMix64's last steps)."""
    z = values ^ (values >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


REPEATS = "{}_rows_in_train"
WORDS = {"valid": "validation", "test": "test"}


def count_repeats(frames: Mapping[str, pl.DataFrame], schema: Schema) -> dict[str, int]:
    """The number of rows of each part but `train` that equal a training row, as `PART_rows_in_train`, if not 0.

    Rows are equal if all fields, labels, time, group and keys are equal: two events of one user
    with different times are different. A key with all distinct values is ignored. Rows are compared
    by a 64-bit hash.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("item"),), label=Label("liked"))
    >>> train = pl.DataFrame({"item": ["a", "b"], "liked": [1, 0]})
    >>> count_repeats({"train": train, "test": pl.DataFrame({"item": ["a", "a"], "liked": [1, 0]})}, schema)
    {'test_rows_in_train': 1}
    """
    train = frames["train"]
    named = [
        *schema.columns,
        *(label.column for label in schema.labels),
        schema.time,
        schema.grouping,
    ]
    keys = []
    for key in schema.row_keys:
        if key in train.columns:
            hashes = _sorted_hashes(train, [key])
            chunks = (hashes[at.start : at.stop + 1] for at in scratch.chunk_slices(len(hashes)))
            if len(hashes) < 2 or any((chunk[1:] == chunk[:-1]).any() for chunk in chunks):
                keys.append(key)
    columns = [c for c in dict.fromkeys([*named, *keys]) if c is not None and c in train.columns]
    results: dict[str, int] = {}
    for chosen in ([schema.time], columns) if schema.time in columns else (columns,):
        known = _sorted_hashes(train, chosen)
        results = {}
        for name in [name for name, frame in frames.items() if name != "train" and frame.height]:
            # an ascending search stays in the cache
            hashes = _sorted_hashes(frames[name], chosen)
            count = 0
            for at in scratch.chunk_slices(len(hashes)):
                place = np.searchsorted(known, hashes[at]).clip(max=len(known) - 1)
                count += int((known[place] == hashes[at]).sum())
            results |= {REPEATS.format(name): count} if count else {}
        if not results:  # as after a split by time: the other columns need not be read
            break
    return results


def _sorted_hashes(frame: pl.DataFrame, columns: list[str]) -> np.ndarray:
    wanted = frame.select(columns)
    hashes = scratch.fill(
        frame.height, np.uint64, lambda at: wanted[at].hash_rows(seed=0).to_numpy()
    )
    hashes.sort()
    return hashes


def copies_sentence(frame: pl.DataFrame) -> str:
    """A sentence on rows of a raw table that equal an earlier row in every column, or an empty text."""
    copies = frame.height - (frame.hash_rows(seed=0).n_unique() if frame.width else frame.height)
    if not copies:
        return ""
    verb = "equals" if copies == 1 else "equal"
    return (
        f"{copies:,} of {frame.height:,} rows {verb} an earlier row in every column: they are kept, but if one copy is "
        "trained on and the other is a test row, metrics are too good; remove them if they are duplicates"
    )


def repeat_sentences(counts: Mapping[str, int]) -> list[str]:
    """A sentence for each part with rows that equal a training row, from the counts of `prepare`."""
    results = []
    for part, words in WORDS.items():
        count = counts.get(REPEATS.format(part), 0)
        rows = counts.get(f"{part}_rows", 0)
        if count and rows:
            share = 100 * count / rows
            percent = f"{share:.1f} %" if share >= 0.1 else "less than .1 %"
            results.append(
                f"{count:,} of {rows:,} {words} rows ({percent}) equal a training row in all fields and the label: "
                "metrics on them reflect memorisation; if the log has duplicate rows, remove them first, or "
                "split by time"
            )
    return results


ROWS_VERSION = "rows2:"
DIGEST_ROWS = 1 << 18
Slices = Callable[[], Iterator[pl.Series]]  # a column, slice by slice, as often as it is called


def digest_rows(frame: pl.DataFrame) -> str:
    """SHA-256 over a table's columns: their names, kinds of values, and values in order.

    Integer and float widths do not matter, nor whether text is stored as categories.
    """

    def digest_of(column: pl.Series) -> bytes:
        rows = column.to_frame()
        digest = hashlib.sha256()
        for part in _parts(
            column.dtype, lambda: (one.to_series() for one in rows.iter_slices(DIGEST_ROWS))
        ):
            digest.update(part)
        return digest.digest()

    whole = hashlib.sha256(f"{frame.height} rows".encode())
    for column, digest in zip(
        frame, each(digest_of, frame.get_columns(), rows=frame.height), strict=True
    ):
        name = column.name.encode()
        whole.update(len(name).to_bytes(8, "little") + name + digest)
    return ROWS_VERSION + whole.hexdigest()


def _parts(kind: pl.DataType, slices: Slices) -> Iterator[bytes]:
    """The bytes of a column: which cells are null, its kind, the values of the others.

    It is read slice by slice, so that a column of a table mapped from disk is never copied as a
    whole.
    """
    if any(one.null_count() for one in slices()):
        rest = np.empty(0, bool)
        for one in slices():
            rest = np.concatenate([rest, one.is_null().to_numpy()])
            yield np.packbits(rest[: len(rest) // 8 * 8]).tobytes()
            rest = rest[len(rest) // 8 * 8 :]
        yield np.packbits(rest).tobytes()
    else:
        yield b"none absent"
    present = (one.drop_nulls() for one in slices())
    if kind == pl.Boolean:
        yield b"truth"
        yield from (one.to_numpy().tobytes() for one in present)
    elif kind.is_integer() and kind not in (pl.UInt64, pl.Int128, pl.UInt128):
        yield b"whole"
        yield from (one.to_numpy().astype("<i8").tobytes() for one in present)
    elif kind.is_float():
        yield b"number"
        yield from (one.to_numpy().astype("<f8").tobytes() for one in present)
    elif isinstance(kind, (pl.List, pl.Array)):
        inner = pl.List(kind.inner)
        cells = cast(pl.DataType, kind.inner)
        yield b"list"
        yield from (
            one.cast(inner).list.len().to_numpy().astype("<i8").tobytes() for one in present
        )
        options = {"empty_as_null": False, "keep_nulls": True}
        yield from _parts(
            cells,
            lambda: (one.drop_nulls().cast(inner).list.explode(**options) for one in slices()),
        )
    elif kind in (pl.String, pl.Categorical, pl.Enum) or kind.is_decimal() or kind.is_integer():
        yield b"text"
        yield from (
            one.cast(pl.String).str.len_bytes().to_numpy().astype("<i8").tobytes()
            for one in present
        )
        texts = (one.drop_nulls().cast(pl.String).str.join("") for one in slices() if len(one))
        yield from (one.cast(pl.Binary).item() for one in texts)
    else:
        yield b"other"  # dates, times, structs: rare, and well defined this way
        yield from (one.to_frame().write_ndjson().encode() for one in present)
