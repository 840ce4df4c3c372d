"""The fitted part of a field (a vocabulary, hashing, a scaler or bins): how it is fitted, encodes, and is stored.

Local row ids of a field: with a vocabulary 0 missing, 1 unknown, 2.. the values (most frequent first); hashed
0 missing, 1.. the buckets; bins 0 missing, 1.. the bins; a number times a vector 0 missing, 1 the field's vector.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import polars as pl

from fieldwise.config import parse, to_plain
from fieldwise.data.encode.columns import FLOAT32_MAX, as_list, as_number, as_text, code_texts, coded, stable_hash
from fieldwise.data.read.chunked_table import counting_from
from fieldwise.errors import DataError
from fieldwise.schema import Categorical, Field, ListField, Numeric
from fieldwise.storage import scratch
from fieldwise.storage.files import cannot_write

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: nearby keys fall far apart (Knuth, 6.4)


@dataclass(frozen=True, eq=False)
class Lookup:
    """A table from keys to numbers, with open addressing and linear probing.

    Attributes:
        keys: [2**bits] int64; undefined where the place is free.
        numbers: [2**bits] int32; `absent` where the place is free.
        bits: of a place.
        absent: the number of a key that the table does not hold.
    """

    keys: np.ndarray
    numbers: np.ndarray
    bits: int
    absent: int

    @classmethod
    def of(cls, keys: np.ndarray, numbers: np.ndarray, absent: int) -> "Lookup":
        """The table of K different keys.

        >>> table = Lookup.of(np.array([7, -1]), np.array([2, 3], dtype=np.int32), absent=0)
        >>> table.find(np.array([-1, 8, 7])).tolist()
        [3, 0, 2]
        """
        bits = max(1, (2 * len(keys)).bit_length())  # at most half of the places are taken
        found = cls(np.zeros(1 << bits, np.int64), np.full(1 << bits, absent, np.int32), bits, absent)
        waiting, place = np.arange(len(keys)), found._places(keys)
        while len(waiting):
            free = found.numbers[place] == absent
            # Where several keys want one place the last one gets it, in both arrays.
            found.keys[place[free]] = keys[waiting[free]]
            found.numbers[place[free]] = numbers[waiting[free]]
            beaten = found.keys[place] != keys[waiting]
            waiting, place = waiting[beaten], found._next(place[beaten])
        return found

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The number of each key.

        Shape:
            keys: [N] int64.
            returns [N] int32.
        """
        place = self._places(keys)
        numbers: np.ndarray = self.numbers[place]
        other = np.flatnonzero((self.keys[place] != keys) & (numbers != self.absent))
        place = place[other]
        while len(other):
            place = self._next(place)
            numbers[other] = self.numbers[place]
            more = (self.keys[place] != keys[other]) & (self.numbers[place] != self.absent)
            other, place = other[more], place[more]
        return numbers

    def _places(self, keys: np.ndarray) -> np.ndarray:
        """Where the search for each key begins."""
        mixed = keys.view(np.uint64) * MULTIPLIER
        mixed >>= np.uint64(64 - self.bits)
        return mixed.view(np.int64)

    def _next(self, place: np.ndarray) -> np.ndarray:
        following: np.ndarray = (place + 1) & ((1 << self.bits) - 1)
        return following


MISSING = 0
UNKNOWN = 1
BOOLEANS = {"true", "false"}
FEW_TEXTS = 16  # a request's context; polars builds an index in every call, 27 ms for 100,000 values
SOME_TEXTS = 1_000


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
    def _places(self) -> dict[str | None, int]:
        values = map(str.lower, self.values) if self.boolean else self.values
        return {**dict(zip(values, count(UNKNOWN + 1), strict=False)), None: MISSING}

    @cached_property
    def boolean(self) -> bool:
        """Whether the values are booleans: `true` from a frame, but `True` in pandas' CSV files."""
        lowered = [value.lower() for value in self.values[:3]]
        return 0 < len(self.values) == len(set(lowered)) and set(lowered) <= BOOLEANS

    def normalised(self, text: pl.Series) -> pl.Series:
        """Texts as they are looked up: booleans in lower case."""
        return text.str.to_lowercase() if self.boolean else text

    def ids(self, text: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts; null is missing, an unseen text unknown."""
        if len(text) <= max(FEW_TEXTS, min(len(self.values) // 8, SOME_TEXTS)) or not self.values:
            return self.ids_of(text.to_list())
        text, (values, seed, places) = self.normalised(text), self._hashes
        place = places.find(text.hash(seed).to_numpy().view(np.int64))
        known = (values.gather(place.clip(min=0)) == text).fill_null(False).to_numpy()
        ids = np.where(known, place + (UNKNOWN + 1), UNKNOWN).astype(np.int32)
        if text.null_count():
            ids[text.is_null().to_numpy()] = MISSING
        return ids

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
    def _hashes(self) -> tuple[pl.Series, int, Lookup]:
        """The values, and the place of each by its hash with a seed that no two have in common."""
        values = self.normalised(pl.Series(self.values, dtype=pl.String))
        seed = next(seed for seed in count() if values.hash(seed).n_unique() == len(values))
        keys = values.hash(seed).to_numpy().view(np.int64)
        return values, seed, Lookup.of(keys, np.arange(len(values), dtype=np.int32), absent=-1)

    def ids_of(self, texts: Iterable[str | None]) -> np.ndarray:
        """`ids` of a few texts."""
        texts = (text and text.lower() for text in texts) if self.boolean else texts
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

    def ids_of(self, texts: list[str] | list[str | None]) -> np.ndarray:
        """`ids` of a few texts."""
        return self.ids(pl.Series(texts, dtype=pl.String))


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


INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


@dataclass(frozen=True, eq=False)
class Cells:
    """A field's encoded column.

    Shape:
        ids: [N] int32, local row ids; for a bag [M], those of all cells, one cell after another; an empty cell has the
            single id `missing`.
        numbers: [N] float32, only for encoding `value`.
        lengths: [N] int64, only for a bag: number of ids per cell, at least 1.
    """

    ids: np.ndarray
    numbers: np.ndarray | None = None
    lengths: np.ndarray | None = None


def encode_column(f: Field, fitted: Fitted, column: pl.Series) -> Cells:
    """Encode a field's column."""
    if isinstance(fitted, (Scaling, Bins)):
        what = f"column {f.column!r} (field {f.name!r})"
        form = f.number_format if f.cell == "number" else None
        return number_cells(f, fitted, as_number(column, what, form=form).fill_null(float("nan")).to_numpy())
    if f.cell == "list":
        return _bag_cells(f, fitted, column)
    if column.dtype == pl.String:
        return Cells(fitted.ids(as_text(column)))
    if isinstance(fitted, Vocabulary) and column.dtype in INTEGERS:
        return Cells(fitted.ids_of_integers(column))
    cells = coded(column)
    return Cells(cells.look_up(fitted.ids(cells.texts), MISSING))


def number_cells(f: Field, fitted: Scaling | Bins, given: np.ndarray) -> Cells:
    """Encode numbers, with NaN for missing ones."""
    if isinstance(fitted, Bins):
        return Cells(fitted.ids(given))
    absent = np.isnan(given)
    fill = 1.0 if f.cell == "number" and f.missing == "vector" else 0.0
    scaled = np.where(absent, fill, fitted.values(given)).astype(np.float32)
    return Cells(np.where(absent, np.int32(MISSING), np.int32(1)), numbers=scaled)


def _bag_cells(f: ListField, fitted: Vocabulary | Hashing, column: pl.Series) -> Cells:
    """Encode a bag or sequence column; a sequence keeps its newest `max_length` values, in order."""
    known = _distinct_ids(f, fitted, column)
    lists = as_list(column, f.separator) if known is None else column
    lists = lists if f.max_length is None else lists.list.tail(f.max_length)
    lengths = np.maximum(lists.list.len().fill_null(0).to_numpy().astype(np.int64), 1)
    flat = lists.list.explode(empty_as_null=True)
    if known is None:
        return Cells(fitted.ids(flat), lengths=lengths)
    ids = flat.to_frame("value").join(known, on="value", how="left", maintain_order="left").get_column("id")
    return Cells(ids.fill_null(MISSING).to_numpy(), lengths=lengths)


def _distinct_ids(f: ListField, fitted: Vocabulary | Hashing, column: pl.Series) -> pl.DataFrame | None:
    """The ids of the distinct values of a column of lists, since histories often repeat items and text is slow.

    None if cells are text or nested, or if a value is missing or blank, which only `as_list` removes.
    """
    if not isinstance(column.dtype, pl.List) or column.dtype.inner.is_nested():
        return None  # `as_list` refuses nested values
    value = column.list.explode(empty_as_null=False, keep_nulls=False).unique().rename("value")
    texts = as_list(value.to_frame().select(pl.concat_list("value")).to_series(), f.separator)
    if (texts.list.len() == 0).any():
        return None
    return pl.DataFrame([value, pl.Series("id", fitted.ids(texts.list.first()))])


_ALIVE: "WeakValueDictionary[int, Vocabulary]" = WeakValueDictionary()  # by hash


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A field with its fitted part, None if it shares another field's rows."""

    field: Field
    fitted: Fitted | None = None


def plain_entry(f: Field, fitted: Fitted | None) -> dict[str, Any]:
    """The entry as plain values for JSON."""
    if not isinstance(fitted, Vocabulary):
        plain: dict[str, Any] = to_plain(Entry(field=f, fitted=fitted))
        return plain
    # Millions of values bypass the general code, which processes each separately.
    plain = to_plain(Entry(field=f, fitted=replace(fitted, values=())))
    plain["fitted"]["values"] = fitted.values
    return plain


def read_entry(data: Mapping[str, Any], where: str) -> Entry:
    """The inverse of `plain_entry`.

    Errors:
        DataError: not such plain values; a vocabulary with a value twice.
    """
    fitted = data.get("fitted") if isinstance(data, Mapping) else None
    values = fitted.get("values") if isinstance(fitted, Mapping) else None
    if not isinstance(fitted, Mapping) or not isinstance(values, list) or set(map(type, values)) != {str}:
        return parse(Entry, data, where, DataError)  # names the error
    if pl.Series(values, dtype=pl.String).n_unique() < len(values):  # of millions in half of a set's time
        (twice, _), *_ = Counter(values).most_common(1)
        raise DataError(f"{where}.fitted.values must have each value once, found {twice!r} more often")
    entry = parse(Entry, {**data, "fitted": {**fitted, "values": []}}, where, DataError)
    assert isinstance(entry.fitted, Vocabulary), "no other has values"
    return replace(entry, fitted=_alive(replace(entry.fitted, values=tuple(values))))


def _alive(vocabulary: Vocabulary) -> Vocabulary:
    """An equal vocabulary that something uses already, else this one: bundles of one log have the same.

    >>> first = Vocabulary(values=("one", "of two"))
    >>> _alive(first) is first, _alive(Vocabulary(values=("one", "of two"))) is first
    (True, True)
    """
    found = _ALIVE.setdefault(hash(vocabulary), vocabulary)
    return found if found == vocabulary else vocabulary


MOST_TEXTS = 4_000_000  # in memory, some 200 MB
SHARDS = 32  # a text is in the file of its hash
EMPTY = pl.DataFrame(schema={"text": pl.String, "n": pl.Int64})


class TextCounts:
    """How often each text occurs, or each integer if all that is added are 64-bit integers.

    Args:
        most: different texts in memory at most, if the memory budget has a folder for the counts of others.
    """

    def __init__(self, most: int = MOST_TEXTS) -> None:
        self._most = most
        self._folder = scratch.new_path()
        self._counts, self._added, self._waiting = EMPTY, [EMPTY], 0
        self._files: list[list[Path]] = [[] for _ in range(SHARDS)]

    def add(self, counts: pl.DataFrame) -> None:
        """Add texts with their counts `n`."""
        self._added.append(counts)
        self._waiting += counts.height
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


class Counted(NamedTuple):
    """How many rows of a field's column were counted, how many values they hold, and these.

    `values` are a numeric field's numbers, in order, as `number`, none if it has no statistics; else the texts, or
    integers for their decimal texts, and how often each occurs, as `text` and `n`, and none for a hashed field.
    """

    rows: int
    present: int
    values: pl.DataFrame


def count_column(f: Field, column: pl.Series, *, first_row: int = 0) -> Counted:
    """Count some rows of a field's column.

    Errors count rows from `first_row`.
    """
    if isinstance(f, Numeric):
        with counting_from(first_row):
            what = f"column {f.column!r} (field {f.name!r})"
            numbers = as_number(column, what, form=f.number_format).drop_nulls()
        values = pl.DataFrame({"number": numbers if _has_statistics(f) else numbers.clear()})
        return Counted(rows=len(column), present=len(numbers), values=values)
    if isinstance(f, Categorical) and column.dtype in INTEGERS:
        # Integers are cheaper to count than their texts, which are made when all are counted.
        values = column.rename("text").value_counts(name="n").drop_nulls("text").cast(pl.Int64)
    else:
        cells = (
            coded(column)
            if isinstance(f, Categorical)
            else code_texts(as_list(column, f.separator).list.explode(empty_as_null=True))
        )
        values = pl.DataFrame({"text": cells.texts, "n": cells.counts()}).filter(pl.col("n") > 0)
    present = int(values.get_column("n").sum())
    return Counted(rows=len(column), present=present, values=values if f.hash_buckets is None else values.clear())


def fit_counted(f: Field, pieces: Iterable[Counted]) -> Fitted:
    """Fit a field on the counted chunks of its column, which come in order."""
    rows = present = 0
    counts = TextCounts()

    def numbers() -> Iterator[np.ndarray]:
        nonlocal rows, present
        for piece in pieces:
            rows, present = rows + piece.rows, present + piece.present
            if isinstance(f, Numeric):
                yield piece.values.get_column("number").to_numpy()
            else:
                counts.add(piece.values)

    number = scratch.concatenate(numbers(), np.float64)
    if not present:
        raise DataError(
            f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null or empty in all "
            f"{rows} training rows; remove the field from the schema or fill the column"
        )
    if isinstance(f, Numeric):
        return _fit_numeric(f, number)
    if f.hash_buckets is not None:
        return Hashing(buckets=f.hash_buckets)
    values, rare = _frequent(f, counts)
    return Vocabulary(values=values, rare=rare)


def new_values(f: Field, known: Vocabulary, pieces: Iterable[Counted]) -> tuple[str, ...]:
    """The values of a field's counted chunks that a vocabulary lacks, in its order, without those below min_count."""
    counts = TextCounts()
    for piece in pieces:
        unseen = piece.values.with_columns(known.normalised(piece.values.get_column("text").cast(pl.String)))
        counts.add(unseen.filter(pl.Series(known.ids(unseen.get_column("text")) == UNKNOWN)))
    values, _ = _frequent(f, counts)
    return tuple(value for value in values if value in BOOLEANS) if known.boolean else values


def _frequent(f: Field, counts: TextCounts) -> tuple[tuple[str, ...], int]:
    """The values that are frequent enough for a field, most frequent first, and the number of others."""
    assert not isinstance(f, Numeric), "it has no vocabulary"
    kept, rare = counts.at_least(f.min_count)
    kept = kept.with_columns(pl.col("text").cast(pl.String)).sort("n", "text", descending=[True, False])
    return tuple(kept.get_column("text").to_list()), rare


def _fit_numeric(f: Numeric, number: np.ndarray) -> Scaling | Bins:
    """The fitted part from the numbers of a column, which are overwritten."""
    logarithm = f.transform == "log"
    if not _has_statistics(f):
        return Scaling(logarithm=logarithm)
    if logarithm:
        for at in scratch.pieces(len(number)):
            number[at] = signed_log(number[at])
    low, high = float(number.min()), float(number.max())
    if f.encoding == "uniform":
        return Bins(edges=_rising(np.linspace(low, high, f.bins + 1)[1:-1]), logarithm=logarithm)
    if f.encoding == "quantile":
        edges = quantile_edges(number, f.bins, point_masses=f.point_masses)
        return Bins(edges=_rising(edges), logarithm=logarithm)
    if f.transform == "minmax":
        return Scaling(shift=low, scale=high - low or 1.0, clip=(0.0, 1.0))
    # The standard deviation of equal numbers is 0, but rounding may give another value.
    mean = number.mean()
    number -= mean
    number *= number  # `number.std()` in place
    return Scaling(shift=float(mean), scale=(float(np.sqrt(number.sum() / len(number))) if low < high else 0.0) or 1.0)


def _has_statistics(f: Numeric) -> bool:
    """Whether anything but the field's settings decides how its numbers are encoded."""
    return f.encoding != "value" or f.transform in ("minmax", "standard")


def quantile_edges(number: np.ndarray, bins: int, *, point_masses: bool = False) -> np.ndarray:
    """Inner edges of bins of equal counts, unsorted and with repetitions; the numbers are overwritten.

    With `point_masses` a number in more than 1 / bins of the rows gets its own bin.
    """
    if not point_masses:
        return np.asarray(np.quantile(number, np.linspace(0, 1, bins + 1)[1:-1], overwrite_input=True))
    number.sort()
    # A run of more than N / bins equal numbers covers a multiple of N // bins.
    start, end = (
        np.searchsorted(number, np.unique(number[:: max(1, len(number) // bins)]), side=side)
        for side in ("left", "right")
    )
    heavy = (end - start) * bins > len(number)
    start, end = start[heavy], end[heavy]
    first, after = number[start], number[end[end < len(number)]]
    rest, kept = number, 0
    for low, high in zip([0, *end], [*start, len(number)], strict=True):  # what lies between the runs moves together
        for at in scratch.pieces(int(high - low)):
            rest[kept + at.start : kept + at.stop] = number[low + at.start : low + at.stop]
        kept += int(high - low)
    left = max(2, bins - len(first))
    quantiles = np.linspace(0, 1, left + 1)[1:-1]
    cuts = np.quantile(rest[:kept], quantiles, overwrite_input=True) if kept else rest[:0]
    return np.concatenate([first, after, cuts])


def _rising(edges: np.ndarray) -> tuple[float, ...]:
    return tuple(float(e) for e in np.unique(edges))
