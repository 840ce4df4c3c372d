"""Fitting a field on its column in the training rows."""

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_list, as_number, code_texts, coded
from fieldwise.data.encode.fitted_fields import INTEGERS, Bins, Fitted, Hashing, Scaling, Vocabulary, signed_log
from fieldwise.data.read.lines import counting_from
from fieldwise.errors import DataError
from fieldwise.schema import Categorical, Field, Numeric
from fieldwise.storage.files import cannot_write
from fieldwise.storage.scratch import Scratch

MOST_TEXTS = 4_000_000  # in memory, some 200 MB
SHARDS = 32  # a text is in the file of its hash
EMPTY = pl.DataFrame(schema={"text": pl.String, "n": pl.Int64})


class TextCounts:
    """How often each text occurs, or each integer if all that is added are 64-bit integers.

    Args:
        scratch: its folder takes the counts if the different texts are more than `most`; without a folder all are held
            in memory.
        most: different texts in memory at most.
    """

    def __init__(self, scratch: Scratch, most: int = MOST_TEXTS) -> None:
        self._most = most
        self._folder = None if scratch.folder is None else scratch.folder / secrets.token_hex(8)
        self._counts, self._added, self._waiting = EMPTY, [EMPTY], 0
        self._files: list[list[Path]] = [[] for _ in range(SHARDS)]

    def add(self, texts: pl.Series, counts: np.ndarray) -> None:
        """Add texts with their counts."""
        found = pl.DataFrame({"text": texts, "n": counts.astype(np.int64)}).filter(pl.col("n") > 0)
        self._added.append(found)
        self._waiting += found.height
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
    if isinstance(f, Categorical):
        texts, often = _counted(column)
    else:
        cells = code_texts(as_list(column, f.separator).list.explode(empty_as_null=True))
        texts, often = cells.texts, cells.counts()
    values = pl.DataFrame({"text": texts, "n": often.astype(np.int64)}).filter(pl.col("n") > 0)
    present = int(often.sum())
    return Counted(rows=len(column), present=present, values=values if f.hash_buckets is None else values.clear())


def fit_counted(f: Field, pieces: Iterable[Counted], scratch: Scratch) -> Fitted:
    """Fit a field on the counted chunks of its column, which come in order."""
    rows = present = 0
    counts, numbers = TextCounts(scratch), scratch.growing(np.float64)
    for piece in pieces:
        rows, present = rows + piece.rows, present + piece.present
        if isinstance(f, Numeric):
            numbers.add(piece.values.get_column("number").to_numpy())
        else:
            counts.add(piece.values.get_column("text"), piece.values.get_column("n").to_numpy())
    if not present:
        raise DataError(
            f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null or empty in all "
            f"{rows} training rows; remove the field from the schema or fill the column"
        )
    if isinstance(f, Numeric):
        return _fit_numeric(f, numbers.whole(), scratch)
    if f.hash_buckets is not None:
        return Hashing(buckets=f.hash_buckets)
    kept, rare = counts.at_least(f.min_count)
    kept = kept.with_columns(pl.col("text").cast(pl.String)).sort("n", "text", descending=[True, False])
    return Vocabulary(values=tuple(kept.get_column("text").to_list()), rare=rare)


def _counted(column: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """The values of a column as text, or as 64-bit integers, not necessarily different, and how many cells hold each.

    Integers are cheaper to count than their texts, which are made when all are counted.
    """
    if column.dtype not in INTEGERS:
        cells = coded(column)
        return cells.texts, cells.counts()
    found = column.rename("value").value_counts(name="n").drop_nulls("value")
    return found.get_column("value").cast(pl.Int64), found.get_column("n").to_numpy()


def _fit_numeric(f: Numeric, number: np.ndarray, scratch: Scratch) -> Scaling | Bins:
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
        edges = quantile_edges(number, f.bins, scratch, point_masses=f.point_masses)
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


def quantile_edges(number: np.ndarray, bins: int, scratch: Scratch, *, point_masses: bool = False) -> np.ndarray:
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
