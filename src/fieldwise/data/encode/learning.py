"""Fitting a field on its column in the training rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.encode.cells import INTEGERS, Cells, bag_cells, number_cells, with_nan
from fieldwise.data.encode.coded import Coded, code_texts, coded
from fieldwise.data.encode.columns import as_list, as_number, as_text
from fieldwise.data.encode.counting import TextCounts
from fieldwise.data.encode.fitted import MISSING, UNKNOWN, Bins, Fitted, Hashing, Scaling, Vocabulary, signed_log
from fieldwise.data.read.lines import counting_from
from fieldwise.errors import DataError
from fieldwise.schema import Bag, Categorical, Field, Numeric, Sequence
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["Counted", "count_column", "learn_counted", "learn_field", "learn_pieces", "quantile_edges"]

BY_COUNT = ("n", "text")


def learn_field(f: Field, column: pl.Series) -> tuple[Fitted, Callable[[], Cells]]:
    """Fit a field on its column in the training rows.

    Returns:
        The fitted part, and a function that encodes this column without another lookup.

    Errors:
        DataError: no training row has a value; a numeric cell is not a number.
    """
    match f:
        case Numeric():
            number = _numbers(f, column)
            present = number.drop_nulls()
            _check_present(f, len(column), len(present))
            scaled = _fit_numeric(f, present.to_numpy(writable=True), IN_MEMORY)
            return scaled, lambda: number_cells(f, scaled, with_nan(number))
        case Categorical():
            cells = coded(column)
            counts = cells.counts()
            _check_present(f, len(column), int(counts.sum()))
            fitted, ids = _fit_texts(f, cells.texts, counts)
            return fitted, lambda: Cells(cells.look_up(ids, MISSING))
        case Bag() | Sequence():
            cells = _list_cells(f, column)
            counts = cells.counts()
            _check_present(f, len(column), int(counts.sum()))
            several, _ = _fit_texts(f, cells.texts, counts)
            return several, lambda: bag_cells(f, several, column)


def learn_pieces(f: Field, column: pl.Series, scratch: Scratch) -> Fitted:
    """`learn_field` of a long column, piece by piece; the result is the same.

    Numbers lie in `scratch`. Different texts are held in memory or, if they are many, in files there.

    Errors:
        DataError: as `learn_field`.
    """
    pieces = (count_column(f, column[at], first_row=at.start) for at in scratch.pieces(len(column)))
    return learn_counted(f, pieces, scratch)


@dataclass(frozen=True, kw_only=True, eq=False)
class Counted:
    """What `learn_counted` needs to know of some rows of a field's column.

    Args:
        rows: how many there are.
        present: how many values they hold.
        values: a numeric field's numbers, in order, as the column `number`, none if it has no statistics; else the
            texts, or integers that stand for their decimal texts, and how often each occurs, as `text` and `n`, and
            none for a hashed field.
    """

    rows: int
    present: int
    values: pl.DataFrame


def count_column(f: Field, column: pl.Series, *, first_row: int = 0) -> Counted:
    """Count some rows of a field's column.

    Args:
        f: the field.
        column: the rows.
        first_row: number of the first of them in the whole table, for errors.

    Errors:
        DataError: a numeric cell is not a number; a cell is no single value.
    """
    if isinstance(f, Numeric):
        with counting_from(first_row):
            numbers = _numbers(f, column).drop_nulls()
        values = pl.DataFrame({"number": numbers if _has_statistics(f) else numbers.clear()})
        return Counted(rows=len(column), present=len(numbers), values=values)
    texts, often = _counted(column) if isinstance(f, Categorical) else _counted_list(f, column)
    values = pl.DataFrame({"text": texts, "n": often.astype(np.int64)}).filter(pl.col("n") > 0)
    present = int(often.sum())
    return Counted(rows=len(column), present=present, values=values if f.hash_buckets is None else values.clear())


def learn_counted(f: Field, pieces: Iterable[Counted], scratch: Scratch) -> Fitted:
    """Fit a field on the counted pieces of its column, which come in order.

    Errors:
        DataError: no training row has a value.
    """
    rows = present = 0
    counts, numbers = TextCounts(scratch), scratch.growing(np.float64)
    for piece in pieces:
        rows, present = rows + piece.rows, present + piece.present
        if isinstance(f, Numeric):
            numbers.add(piece.values.get_column("number").to_numpy())
        else:
            counts.add(piece.values.get_column("text"), piece.values.get_column("n").to_numpy())
    _check_present(f, rows, present)
    if isinstance(f, Numeric):
        return _fit_numeric(f, numbers.whole(), scratch)
    if f.hash_buckets is not None:
        return Hashing(buckets=f.hash_buckets)
    kept, rare = counts.at_least(f.min_count)
    kept = kept.with_columns(pl.col("text").cast(pl.String))
    return Vocabulary(values=_in_order(kept), rare=rare)


def _counted(column: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """The values of a column as text, or as 64-bit integers, not necessarily different, and how many cells hold each.

    Integers are cheaper to count than their texts, which are made when all are counted.
    """
    as_text(column.clear())  # raises if cells are not single values
    found = column.rename("value").value_counts(name="n")
    values, numbers = found.get_column("value"), found.get_column("n").to_numpy()
    texts = values.cast(pl.Int64) if column.dtype in INTEGERS else as_text(values)
    present = texts.is_not_null()
    return texts.filter(present), numbers[present.to_numpy()]


def _counted_list(f: Bag | Sequence, column: pl.Series) -> tuple[pl.Series, np.ndarray]:
    cells = _list_cells(f, column)
    return cells.texts, cells.counts()


def _numbers(f: Numeric, column: pl.Series) -> pl.Series:
    return as_number(column, f"column {f.column!r} (field {f.name!r})", form=f.number_format)


def _list_cells(f: Bag | Sequence, column: pl.Series) -> Coded:
    return code_texts(as_list(column, f.separator).list.explode(empty_as_null=True))


def _check_present(f: Field, rows: int, present: int) -> None:
    if not present:
        raise DataError(
            f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null or empty in all "
            f"{rows} training rows; remove the field from the schema or fill the column"
        )


def _fit_texts(
    f: Categorical | Bag | Sequence, texts: pl.Series, counts: np.ndarray
) -> tuple[Vocabulary | Hashing, np.ndarray]:
    """The fitted part from distinct texts [K] with frequencies `counts` [K], and the local row id of each [K]."""
    if f.hash_buckets is not None:
        hashing = Hashing(buckets=f.hash_buckets)
        return hashing, hashing.ids(texts)
    seen = pl.DataFrame({"text": texts, "n": counts}).with_row_index("code").filter(pl.col("n") > 0)
    kept = seen.filter(pl.col("n") >= f.min_count).sort(*BY_COUNT, descending=[True, False])
    ids = np.full(len(texts), UNKNOWN, dtype=np.int32)
    ids[kept.get_column("code").to_numpy()] = np.arange(2, kept.height + 2, dtype=np.int32)
    return Vocabulary(values=tuple(kept.get_column("text").to_list()), rare=seen.height - kept.height), ids


def _in_order(kept: pl.DataFrame) -> tuple[str, ...]:
    """The texts of a vocabulary, most frequent first."""
    return tuple(kept.sort(*BY_COUNT, descending=[True, False]).get_column("text").to_list())


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
    return Scaling(shift=float(mean), scale=(_deviation(number, mean) if low < high else 0.0) or 1.0)


def _has_statistics(f: Numeric) -> bool:
    """Whether anything but the field's settings decides how its numbers are encoded."""
    return f.encoding != "value" or f.transform in ("minmax", "standard")


def _deviation(number: np.ndarray, mean: np.floating) -> float:
    """`number.std()`, computed in place."""
    number -= mean
    number *= number
    return float(np.sqrt(number.sum() / len(number)))


def quantile_edges(number: np.ndarray, bins: int, scratch: Scratch, *, point_masses: bool = False) -> np.ndarray:
    """Inner edges of bins of equal counts, unsorted and with repetitions; the numbers are overwritten.

    Args:
        number: the training numbers [N].
        bins: number of bins.
        scratch: how many numbers are moved at once.
        point_masses: whether a number in more than 1 / bins of the rows gets its own bin.

    >>> mostly_zero = np.array([0.0] * 90 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    >>> np.unique(quantile_edges(mostly_zero.copy(), 4, IN_MEMORY)).tolist()
    [0.0]
    >>> np.unique(quantile_edges(mostly_zero, 4, IN_MEMORY, point_masses=True)).tolist()
    [0.0, 1.0, 4.0, 7.0]
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
