"""The fitted part of a field (a vocabulary, hashing, a scaler or bins): how it is fitted, encodes, and is stored.

Local row ids of a field: with a vocabulary 0 missing, 1 unknown, 2.. the values (most frequent
first); hashed 0 missing, 1.. the buckets; bins 0 missing, 1.. the bins; a number times a vector 0
missing, 1 the field's vector.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import polars as pl

from fieldwise.config import parse
from fieldwise.data.encode.columns import (
    FLOAT32_MAX,
    as_list,
    as_number,
    as_text,
    coded,
    stable_hash,
)
from fieldwise.data.read.chunked_table import counting_from
from fieldwise.errors import DataError
from fieldwise.schema import MISSING_MARKS, Categorical, Field, Numeric
from fieldwise.storage import scratch
from fieldwise.storage.files import cannot_write

# 2**64 over the golden ratio: nearby keys fall far apart (Knuth, 6.4)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Lookup:
    """A table from K different keys (int64) to numbers (int32), with open addressing and linear probing.

    A key that it does not hold has the number `absent`.

    >>> Lookup(np.array([7, -1]), np.array([2, 3], dtype=np.int32), absent=0).find(np.array([-1, 8, 7])).tolist()
    [3, 0, 2]
    """

    def __init__(self, keys: np.ndarray, numbers: np.ndarray, absent: int) -> None:
        bits = max(1, (2 * len(keys)).bit_length())  # at most half of the places are taken
        self._absent = absent
        self._last = (1 << bits) - 1
        self._shift = np.uint64(64 - bits)
        self._keys = np.zeros(1 << bits, np.int64)
        self._numbers = np.full(1 << bits, absent, np.int32)
        place = (keys.view(np.uint64) * MULTIPLIER >> self._shift).view(np.int64)
        while len(keys):
            free = self._numbers[place] == absent
            # Of several keys for one slot the last one is stored, in both arrays.
            self._keys[place[free]] = keys[free]
            self._numbers[place[free]] = numbers[free]
            beaten = self._keys[place] != keys
            keys = keys[beaten]
            numbers = numbers[beaten]
            place = (place[beaten] + 1) & self._last

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The number of each key [N], int32."""
        place = (keys.view(np.uint64) * MULTIPLIER >> self._shift).view(np.int64)
        numbers: np.ndarray = self._numbers[place]
        other = np.flatnonzero((self._keys[place] != keys) & (numbers != self._absent))
        place = place[other]
        while len(other):
            place = (place + 1) & self._last
            numbers[other] = self._numbers[place]
            more = (self._keys[place] != keys[other]) & (self._numbers[place] != self._absent)
            other = other[more]
            place = place[more]
        return numbers


MISSING = 0
UNKNOWN = 1
RANGES_BEYOND = 10
"""How many times its width a range of training rows is widened on each side, before numbers beyond it are clipped."""
BOOLEANS = {"true", "false"}
INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
# a request's context; polars builds an index in every call, 27 ms for 100,000 values
FEW_TEXTS = 16
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

    def ids(self, cells: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts, or of integers as their decimal texts; null is missing, an unseen value unknown.

        >>> Vocabulary(values=("7", "08", "-1")).ids(pl.Series([-1, 7, 8, None])).tolist()
        [4, 2, 1, 0]
        """
        if cells.dtype in INTEGERS:
            ids = self._integers.find(cells.cast(pl.Int64).fill_null(0).to_numpy())
        elif (
            len(cells) <= max(FEW_TEXTS, min(len(self.values) // 8, SOME_TEXTS)) or not self.values
        ):
            return self.ids_of(cells.to_list())
        else:
            text = cells.str.to_lowercase() if self.boolean else cells
            (values, seed, places) = self._hashes
            place = places.find(text.hash(seed).to_numpy().view(np.int64))
            known = (values.gather(place.clip(min=0)) == text).fill_null(False).to_numpy()
            ids = np.where(known, place + (UNKNOWN + 1), UNKNOWN).astype(np.int32)
        if cells.null_count():
            ids[cells.is_null().to_numpy()] = MISSING
        return ids

    @cached_property
    def _integers(self) -> Lookup:
        """The ids of the values that are the decimal text of an integer."""
        text = pl.Series(self.values, dtype=pl.String)
        number = text.cast(pl.Int64, strict=False)
        decimal = (number.cast(pl.String) == text).fill_null(False)
        ids = np.flatnonzero(decimal.to_numpy()).astype(np.int32) + np.int32(UNKNOWN + 1)
        return Lookup(number.filter(decimal).to_numpy(), ids, absent=UNKNOWN)

    @cached_property
    def _hashes(self) -> tuple[pl.Series, int, Lookup]:
        """The values, and the place of each by its hash with a seed that no two have in common."""
        values = pl.Series(self.values, dtype=pl.String)
        values = values.str.to_lowercase() if self.boolean else values
        seed = next(seed for seed in count() if values.hash(seed).n_unique() == len(values))
        keys = values.hash(seed).to_numpy().view(np.int64)
        return values, seed, Lookup(keys, np.arange(len(values), dtype=np.int32), absent=-1)

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
        cells = coded(text)
        return cells.look_up((stable_hash(cells.texts, self.buckets) + 1).astype(np.int32), MISSING)

    def ids_of(self, texts: Sequence[str | None]) -> np.ndarray:
        """`ids` of a few texts."""
        return self.ids(pl.Series(texts, dtype=pl.String))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A scaler: (number - shift) / scale, after an optional logarithm, clipped to `clip`.

    `clip` is [0, 1] for `minmax`, none for a logarithm, which is at most 89, else the range of the
    training rows, widened on both sides by `RANGES_BEYOND` times its width.
    """

    logarithm: bool = False
    shift: float = 0.0
    scale: float = 1.0
    clip: tuple[float, float] | None = None
    kind: Literal["scaling"] = "scaling"
    rows: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class Bins:
    """Bins: bin k holds edges[k-1] <= number < edges[k]; the first and last include values beyond the training range.

    Args:
        edges: the inner edges, increasing, after an optional logarithm.
        closed: `right`: bin k holds edges[k-1] < number <= edges[k].
    """

    edges: tuple[float, ...]
    logarithm: bool = False
    closed: Literal["left", "right"] = "left"
    kind: Literal["bins"] = "bins"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return len(self.edges) + 2


Fitted = Vocabulary | Hashing | Scaling | Bins


def signed_log(number: np.ndarray) -> np.ndarray:
    """The logarithm of 1 + |number| with the number's sign."""
    return np.asarray(np.sign(number) * np.log1p(np.abs(number)))


@dataclass(frozen=True, eq=False)
class Cells:
    """A field's encoded column: local row ids [N], int32, and for encoding `value` numbers [N], float32.

    A bag has the ids of all cells, one cell after another, and the number of ids of each cell, at
    least 1, as lengths [N], int64; an empty cell has the single id `missing`.
    """

    ids: np.ndarray
    numbers: np.ndarray | None = None
    lengths: np.ndarray | None = None


def encode_column(
    f: Field, fitted: Fitted, column: pl.Series, *, missing: Sequence[str] = MISSING_MARKS
) -> Cells:
    """Encode a field's column; a sequence keeps its newest `max_length` values, in order.

    `missing` has the marks of missing numbers.
    """
    if isinstance(fitted, (Scaling, Bins)):
        what = f"column {f.column!r} (field {f.name!r})"
        form = f.number_format if f.cell == "number" else None
        number = as_number(column, what, form=form, missing=missing)
        return number_cells(f, fitted, number.fill_null(float("nan")).to_numpy())
    if f.cell != "list":
        if column.dtype == pl.String:
            return Cells(fitted.ids(as_text(column)))
        if isinstance(fitted, Vocabulary) and column.dtype in INTEGERS:
            return Cells(fitted.ids(column))
        cells = coded(column)
        return Cells(cells.look_up(fitted.ids(cells.texts), MISSING))
    known = None
    # `as_list` refuses nested values
    if isinstance(column.dtype, pl.List) and not column.dtype.inner.is_nested():
        # Histories often repeat items and text is slow: each distinct value gets its id once,
        # unless one is missing or blank, which only `as_list` removes.
        value = column.list.explode(empty_as_null=False, keep_nulls=False).unique().rename("value")
        texts = as_list(value.to_frame().select(pl.concat_list("value")).to_series(), f.separator)
        if (texts.list.len() > 0).all():
            known = pl.DataFrame([value, pl.Series("id", fitted.ids(texts.list.first()))])
    lists = as_list(column, f.separator) if known is None else column
    lists = lists if f.max_length is None else lists.list.tail(f.max_length)
    lengths = np.maximum(lists.list.len().fill_null(0).to_numpy().astype(np.int64), 1)
    flat = lists.list.explode(empty_as_null=True)
    if known is None:
        return Cells(fitted.ids(flat), lengths=lengths)
    ids = (
        flat.to_frame("value")
        .join(known, on="value", how="left", maintain_order="left")
        .get_column("id")
    )
    return Cells(ids.fill_null(MISSING).to_numpy(), lengths=lengths)


def number_cells(f: Field, fitted: Scaling | Bins, given: np.ndarray) -> Cells:
    """Encode numbers, with NaN for missing ones."""
    absent = np.isnan(given)
    number = signed_log(given) if fitted.logarithm else given
    if isinstance(fitted, Bins):
        at_edge: Literal["left", "right"] = "right" if fitted.closed == "left" else "left"
        position = np.searchsorted(np.asarray(fitted.edges), number, side=at_edge)
        return Cells(np.where(absent, MISSING, position + 1).astype(np.int32))
    with np.errstate(over="ignore"):  # overflows are clipped
        scaled = np.clip(
            (number - fitted.shift) / fitted.scale, *(fitted.clip or (-FLOAT32_MAX, FLOAT32_MAX))
        )
    fill = 1.0 if f.cell == "number" and f.missing == "vector" else 0.0
    numbers = np.where(absent, fill, scaled).astype(np.float32)
    return Cells(np.where(absent, np.int32(MISSING), np.int32(1)), numbers=numbers)


_INTERNED: "WeakValueDictionary[int, Vocabulary]" = WeakValueDictionary()  # by hash


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A field with its fitted part, None if it shares another field's rows."""

    field: Field
    fitted: Fitted | None = None


def read_entry(data: Mapping[str, Any], where: str) -> Entry:
    """A field of an encoder's JSON."""
    fitted = data.get("fitted") if isinstance(data, Mapping) else None
    values = fitted.get("values") if isinstance(fitted, Mapping) else None
    if (
        not isinstance(fitted, Mapping)
        or not isinstance(values, list)
        or set(map(type, values)) != {str}
    ):
        return parse(Entry, data, where, DataError)  # names the error
    # twice as fast as a set for millions
    if pl.Series(values, dtype=pl.String).n_unique() < len(values):
        (twice, _), *_ = Counter(values).most_common(1)
        raise DataError(
            f"{where}.fitted.values must have each value once, found {twice!r} more often"
        )
    entry = parse(Entry, {**data, "fitted": {**fitted, "values": []}}, where, DataError)
    assert isinstance(entry.fitted, Vocabulary), "no other has values"
    vocabulary = replace(entry.fitted, values=tuple(values))
    # bundles of one log share equal vocabularies in memory
    result = _INTERNED.setdefault(hash(vocabulary), vocabulary)
    return replace(entry, fitted=result if result == vocabulary else vocabulary)


MOST_TEXTS = 4_000_000  # in memory, some 200 MB
SHARDS = 32  # a text is in the file of its hash
EMPTY = pl.DataFrame(schema={"text": pl.String, "n": pl.Int64})


def frequent_texts(
    counts: Iterable[pl.DataFrame], least: int, most: int = MOST_TEXTS
) -> tuple[tuple[str, ...], int]:
    """The texts that occur at least `least` times, most frequent first, and the number of others.

    The counts have columns `text`, or 64-bit integers for their decimal texts, and `n`. At most
    `most` different ones are in memory, if the memory budget has a folder for the others.
    """
    folder = scratch.new_path()
    held = [EMPTY]
    waiting = 0
    files: list[list[Path]] = [[] for _ in range(SHARDS)]
    for some in chain(counts, [None]):
        if some is not None:
            held.append(some)
            waiting += some.height
            if waiting <= max(held[0].height, most // 8):
                continue
        # empty ones are of text, also where integers are counted
        full = [one for one in held if one.height]
        whole = pl.concat(full or [EMPTY]).group_by("text").agg(pl.col("n").sum())
        held = [whole]
        waiting = 0
        if folder is None or whole.height <= (0 if some is None and files[0] else most):
            continue
        shard = whole.get_column("text").hash(0) % SHARDS
        try:
            folder.mkdir(exist_ok=True)
            for number, paths in enumerate(files):
                paths.append(folder / f"{number}.{len(paths)}.arrow")
                whole.filter(shard == number).write_ipc(paths[-1])
        except OSError as e:
            raise cannot_write(folder, e) from e
        held = [EMPTY]
    kept = []
    rare = 0
    for stored in files if files[0] else [[]]:
        counted = pl.concat([pl.read_ipc(path) for path in stored] or held)
        every = counted.group_by("text").agg(pl.col("n").sum()) if stored else counted
        kept.append(every.filter(pl.col("n") >= least))
        rare += every.height - kept[-1].height
    result = (
        pl.concat(kept)
        .with_columns(pl.col("text").cast(pl.String))
        .sort("n", "text", descending=[True, False])
    )
    return tuple(result.get_column("text").to_list()), rare


class Counted(NamedTuple):
    """How many rows of a field's column were counted, how many values they hold, and these.

    `values` are a numeric field's numbers, in order, as `number`, or those of them that it needs;
    else the texts, or integers for their decimal texts, and how often each occurs, as `text` and
    `n`, and none for a hashed field.
    """

    rows: int
    present: int
    values: pl.DataFrame


def count_column(
    f: Field, column: pl.Series, *, missing: Sequence[str] = MISSING_MARKS
) -> Iterator[Counted]:
    """Count a field's column, chunk by chunk; `missing` has the marks of missing numbers."""
    for at in scratch.chunk_slices(len(column)):
        cells = column[at]
        if isinstance(f, Numeric):
            with counting_from(at.start):
                what = f"column {f.column!r} (field {f.name!r})"
                number = as_number(cells, what, form=f.number_format, missing=missing).drop_nulls()
            present = len(number)
            values = pl.DataFrame({"number": number})
            if f.encoding == "value" and f.transform == "none":  # for which their range is enough
                ends = pl.Series([number.min(), number.max()], dtype=pl.Float64)
                values = pl.DataFrame({"number": ends.drop_nulls()})
            # The logarithm of a number depends on no other.
            kept = f.encoding != "value" or f.transform != "log"
        else:
            if isinstance(f, Categorical) and cells.dtype in INTEGERS:
                # Integers are cheaper to count than their texts, which are made when all are
                # counted.
                values = (
                    cells.rename("text").value_counts(name="n").drop_nulls("text").cast(pl.Int64)
                )
            else:
                if not isinstance(f, Categorical):
                    cells = as_list(cells, f.separator).list.explode(empty_as_null=True)
                texts = coded(cells)
                values = pl.DataFrame({"text": texts.texts, "n": texts.counts()}).filter(
                    pl.col("n") > 0
                )
            present = int(values.get_column("n").sum())
            kept = f.hash_buckets is None
        yield Counted(
            rows=at.stop - at.start, present=present, values=values if kept else values.clear()
        )


def fit_counted(f: Field, chunks: Iterable[Counted]) -> Fitted:
    """Fit a field on the counted chunks of its column, which come in order."""
    rows = present = 0

    def values() -> Iterator[pl.DataFrame]:
        nonlocal rows, present
        for chunk in chunks:
            rows = rows + chunk.rows
            present = present + chunk.present
            yield chunk.values

    number = np.empty(0)
    known = Vocabulary(values=())
    if isinstance(f, Numeric):
        number = scratch.concatenate(
            (one.get_column("number").to_numpy() for one in values()), np.float64
        )
    else:
        texts, rare = frequent_texts(values(), f.min_count)
        known = Vocabulary(values=texts, rare=rare)
    if not present:
        raise DataError(
            f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null or empty in all "
            f"{rows} training rows; remove the field from the schema or fill the column"
        )
    if not isinstance(f, Numeric):
        return known if f.hash_buckets is None else Hashing(buckets=f.hash_buckets)
    logarithm = f.transform == "log"
    if not len(number):
        return Scaling(logarithm=logarithm)
    if logarithm:
        for at in scratch.chunk_slices(len(number)):
            number[at] = signed_log(number[at])
    low = float(number.min())
    high = float(number.max())
    if f.encoding == "value" and f.transform == "none":
        if _is_constant((low + high) / 2, (high - low) / 2, 2):
            high = low
        return Scaling(clip=_widened(low, high))
    mean = float(number.mean())
    if _is_constant(mean, (high - low) / 2, len(number)):
        number[:] = low
        high = mean = low
    if f.encoding != "value":
        uniform = f.encoding == "uniform"
        edges = (
            np.linspace(low, high, f.bins + 1)[1:-1]
            if uniform
            else quantile_edges(number, f.bins, f.point_masses)
        )
        return Bins(edges=tuple(np.unique(edges).tolist()), logarithm=logarithm, closed=f.closed)
    if f.transform == "minmax":
        return Scaling(shift=low, scale=high - low or 1.0, clip=(0.0, 1.0))
    number -= mean
    number *= number  # `number.std()` in place
    deviation = float(np.sqrt(number.sum() / len(number)))
    if _is_constant(mean, deviation, len(number)):
        return Scaling(shift=mean, clip=_widened(0.0, 0.0))
    return Scaling(
        shift=mean,
        scale=deviation,
        clip=_widened((low - mean) / deviation, (high - mean) / deviation),
    )


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range of training rows, widened on both sides by `RANGES_BEYOND` times its width, or times 1 if that is 0."""
    beyond = RANGES_BEYOND * ((high - low) or 1.0)
    return max(low - beyond, -FLOAT32_MAX), min(high + beyond, FLOAT32_MAX)


def _is_constant(mean: float, deviation: float, count: int) -> bool:
    """Whether numbers with this standard deviation differ by rounding alone, by the bound of scikit-learn's scaler."""
    variance = deviation**2
    epsilon = float(np.finfo(np.float64).eps)
    return variance <= count * epsilon * variance + (count * mean * epsilon) ** 2


def new_values(f: Field, known: Vocabulary, chunks: Iterable[Counted]) -> tuple[str, ...]:
    """The values of a field's counted chunks that a vocabulary lacks, in its order, without those below min_count."""
    assert not isinstance(f, Numeric), "it has no vocabulary"
    text = (
        pl.col("text").cast(pl.String).str.to_lowercase()
        if known.boolean
        else pl.col("text").cast(pl.String)
    )
    named = (chunk.values.with_columns(text) for chunk in chunks)
    unseen = (one.filter(pl.Series(known.ids(one["text"]) == UNKNOWN)) for one in named)
    values, _ = frequent_texts(unseen, f.min_count)
    return tuple(value for value in values if value in BOOLEANS) if known.boolean else values


def quantile_edges(number: np.ndarray, bins: int, point_masses: bool) -> np.ndarray:
    """Inner edges of bins of equal counts, unsorted and with repetitions; the numbers are overwritten.

    With `point_masses` a number in more than 1 / bins of the rows gets its own bin.
    """
    if not point_masses:
        return np.asarray(
            np.quantile(number, np.linspace(0, 1, bins + 1)[1:-1], overwrite_input=True)
        )
    number.sort()
    # A run of more than N / bins equal numbers covers a multiple of N // bins.
    some = np.unique(number[:: max(1, len(number) // bins)])
    start, end = (np.searchsorted(number, some, side=side) for side in ("left", "right"))
    heavy = (end - start) * bins > len(number)
    start = start[heavy]
    end = end[heavy]
    first = number[start]
    after = number[end[end < len(number)]]
    rest = number
    kept = 0
    # what lies between the runs moves together
    for low, high in zip([0, *end], [*start, len(number)], strict=True):
        for at in scratch.chunk_slices(int(high - low)):
            rest[kept + at.start : kept + at.stop] = number[low + at.start : low + at.stop]
        kept += int(high - low)
    left = max(2, bins - len(first))
    quantiles = np.linspace(0, 1, left + 1)[1:-1]
    cuts = np.quantile(rest[:kept], quantiles, overwrite_input=True) if kept else rest[:0]
    return np.concatenate([first, after, cuts])
