"""Hashes of rows: which rows of another table are in this one, rows that repeat, and the digest of a table."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import polars as pl

from fieldwise.schema import Schema
from fieldwise.storage.machine import each
from fieldwise.storage.scratch import MemoryBudget

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


REPEATS = "{}_rows_in_train"
WORDS = {"valid": "validation", "test": "test"}


def count_repeats(
    frames: Mapping[str, pl.DataFrame], schema: Schema, *, budget: MemoryBudget
) -> dict[str, int]:
    """The number of rows of each part but `train` that equal a training row, as `PART_rows_in_train`, if not 0.

    Rows are equal if all fields, labels, time, group and keys are equal: two events of one user
    with different times are different. A key with all distinct values is ignored. Rows are compared
    by a 64-bit hash.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("item"),), label=Label("liked"))
    >>> train = pl.DataFrame({"item": ["a", "b"], "liked": [1, 0]})
    >>> test = pl.DataFrame({"item": ["a", "a"], "liked": [1, 0]})
    >>> count_repeats({"train": train, "test": test}, schema, budget=MemoryBudget())
    {'test_rows_in_train': 1}
    """
    train = frames["train"]
    columns = [
        *schema.columns,
        *(label.column for label in schema.labels),
        schema.time,
        schema.grouping,
        *(
            key
            for key in schema.row_keys
            if key in train.columns and _has_repeats(train, key, budget=budget)
        ),
    ]
    compared = [c for c in dict.fromkeys(columns) if c is not None and c in train.columns]
    if schema.time in compared and not _equal_rows(frames, [schema.time], budget=budget):
        return {}  # as after a split by time: the other columns need not be read
    return _equal_rows(frames, compared, budget=budget)


def _has_repeats(frame: pl.DataFrame, key: str, *, budget: MemoryBudget) -> bool:
    """Whether a value of a column occurs more than once, or the table has a single row."""
    hashes = _sorted_hashes(frame, [key], budget=budget)
    if len(hashes) < 2:
        return True
    for chunk in budget.chunk_slices(len(hashes)):
        # with the first of the next chunk
        neighbours = hashes[chunk.start : chunk.stop + 1]
        if (neighbours[1:] == neighbours[:-1]).any():
            return True
    return False


def _equal_rows(
    frames: Mapping[str, pl.DataFrame], columns: list[str], *, budget: MemoryBudget
) -> dict[str, int]:
    """`count_repeats` by some columns."""
    train_hashes = _sorted_hashes(frames["train"], columns, budget=budget)
    counts: dict[str, int] = {}
    for name, frame in frames.items():
        if name == "train" or not frame.height:
            continue
        # an ascending search stays in the cache
        hashes = _sorted_hashes(frame, columns, budget=budget)
        count = 0
        for chunk in budget.chunk_slices(len(hashes)):
            nearest = np.searchsorted(train_hashes, hashes[chunk]).clip(max=len(train_hashes) - 1)
            count += int((train_hashes[nearest] == hashes[chunk]).sum())
        if count:
            counts[REPEATS.format(name)] = count
    return counts


def _sorted_hashes(frame: pl.DataFrame, columns: list[str], *, budget: MemoryBudget) -> np.ndarray:
    """The hashes of all rows by some columns, ascending [N] uint64."""
    wanted = frame.select(columns)
    hashes = budget.fill(
        frame.height, np.uint64, lambda chunk: wanted[chunk].hash_rows(seed=0).to_numpy()
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
    sentences = []
    for part, words in WORDS.items():
        count = counts.get(REPEATS.format(part), 0)
        rows = counts.get(f"{part}_rows", 0)
        if count and rows:
            share = 100 * count / rows
            percent = f"{share:.1f} %" if share >= 0.1 else "less than .1 %"
            sentences.append(
                f"{count:,} of {rows:,} {words} rows ({percent}) equal a training row in all fields and the label: "
                "metrics on them reflect memorisation; if the log has duplicate rows, remove them first, or "
                "split by time"
            )
    return sentences


ROWS_VERSION = "rows2:"
DIGEST_ROWS = 1 << 18
Slices = Callable[[], Iterator[pl.Series]]
"""A column, slice by slice, as often as it is called."""


def digest_rows(frame: pl.DataFrame) -> str:
    """SHA-256 over a table's columns: their names, kinds of values, and values in order.

    Integer and float widths do not matter, nor whether text is stored as categories.
    """

    def digest_of(column: pl.Series) -> bytes:
        rows = column.to_frame()
        digest = hashlib.sha256()

        def slices() -> Iterator[pl.Series]:
            return (chunk.to_series() for chunk in rows.iter_slices(DIGEST_ROWS))

        for part in _column_bytes(column.dtype, slices):
            digest.update(part)
        return digest.digest()

    whole = hashlib.sha256(f"{frame.height} rows".encode())
    for column, digest in zip(
        frame, each(digest_of, frame.get_columns(), rows=frame.height), strict=True
    ):
        name = column.name.encode()
        whole.update(len(name).to_bytes(8, "little") + name + digest)
    return ROWS_VERSION + whole.hexdigest()


def _column_bytes(dtype: pl.DataType, slices: Slices) -> Iterator[bytes]:
    """The bytes of a column: which cells are null, its kind, the values of the others.

    It is read slice by slice, so that a column of a table mapped from disk is never copied as a
    whole.
    """
    yield from _null_bytes(slices)

    def present() -> Iterator[pl.Series]:
        return (cells.drop_nulls() for cells in slices())

    kind = _kind_of(dtype)
    yield kind.encode()
    if isinstance(dtype, (pl.List, pl.Array)):
        yield from _list_bytes(cast(pl.DataType, dtype.inner), present)
    elif kind == "text":
        yield from _text_bytes(present)
    elif kind == "other":
        for cells in present():
            yield cells.to_frame().write_ndjson().encode()
    else:
        for cells in present():
            yield cells.to_numpy().astype(_NUMPY_TYPES[kind]).tobytes()


_NUMPY_TYPES = {"truth": "?", "whole": "<i8", "number": "<f8"}


def _kind_of(dtype: pl.DataType) -> str:
    """What a column's cells are in a digest; dates, times and structs are rare, and well defined as "other"."""
    if dtype == pl.Boolean:
        return "truth"
    if dtype.is_float():
        return "number"
    if dtype.is_integer():
        return "text" if dtype in (pl.UInt64, pl.Int128, pl.UInt128) else "whole"
    if dtype in (pl.String, pl.Categorical, pl.Enum) or dtype.is_decimal():
        return "text"
    return "list" if isinstance(dtype, (pl.List, pl.Array)) else "other"


def _null_bytes(slices: Slices) -> Iterator[bytes]:
    """Which cells of a column are null, eight to a byte."""
    if not any(cells.null_count() for cells in slices()):
        yield b"none absent"
        return
    rest = np.empty(0, bool)
    for cells in slices():
        is_null = np.concatenate([rest, cells.is_null().to_numpy()])
        whole_bytes = len(is_null) // 8 * 8
        yield np.packbits(is_null[:whole_bytes]).tobytes()
        rest = is_null[whole_bytes:]
    yield np.packbits(rest).tobytes()


def _list_bytes(inner: pl.DataType, slices: Slices) -> Iterator[bytes]:
    """The lengths of lists, and the bytes of their values."""

    def lists() -> Iterator[pl.Series]:
        return (cells.cast(pl.List(inner)) for cells in slices())

    def values() -> Iterator[pl.Series]:
        return (cells.list.explode(empty_as_null=False, keep_nulls=True) for cells in lists())

    for cells in lists():
        yield cells.list.len().to_numpy().astype("<i8").tobytes()
    yield from _column_bytes(inner, values)


def _text_bytes(slices: Slices) -> Iterator[bytes]:
    """The lengths of texts, and their bytes."""
    for cells in slices():
        yield cells.cast(pl.String).str.len_bytes().to_numpy().astype("<i8").tobytes()
    for cells in slices():
        # an empty slice has no text
        if len(cells):
            yield cells.cast(pl.String).str.join("").cast(pl.Binary).item()
