"""The fitted part of one field, and how it encodes a column as row ids and numbers.

Local row ids of a field: with a vocabulary 0 missing, 1 unknown, 2.. the values (most frequent first); hashed
0 missing, 1.. the buckets; bins 0 missing, 1.. the bins; a number times a vector 0 missing, 1 the field's vector.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.coded import code_texts, coded
from fieldwise.data.encode.columns import FLOAT32_MAX, as_list, as_number, as_text, stable_hash
from fieldwise.errors import DataError
from fieldwise.schema import Bag, Categorical, Field, Numeric, Sequence
from fieldwise.schema.fields import ListField

__all__ = ["Bins", "Cells", "Fitted", "Hashing", "Scaling", "Vocabulary", "bag_cells", "learn_field", "single_cells"]

MISSING = 0
UNKNOWN = 1
FEW_TEXTS = 16  # a request's context; polars builds an Enum's index in every cast, 27 ms for 100,000 values
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
        values = [value.lower() for value in self.values] if self._truth else self.values
        return pl.Enum(pl.Series(values, dtype=pl.String))

    @cached_property
    def _places(self) -> dict[str | None, int]:
        places: dict[str | None, int] = {value: row for row, value in enumerate(self.values, UNKNOWN + 1)}
        if self._truth:
            places = {case: row for v, row in places.items() if v for case in (v.lower(), v.title(), v.upper())}
        return {**places, None: MISSING}

    @cached_property
    def _truth(self) -> bool:
        """Whether the values are booleans: `true` from a frame, but `True` in pandas' CSV files."""
        lowered = [value.lower() for value in self.values[:3]]
        return len(set(lowered)) == len(self.values) and set(lowered) <= {"true", "false"}

    def ids(self, text: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts; null is missing, an unseen text unknown."""
        if len(text) <= max(FEW_TEXTS, len(self.values) // 8):
            return self.ids_of(text.to_list())
        text = text.str.to_lowercase() if self._truth else text
        known = (text.cast(self._enum, strict=False).to_physical().cast(pl.Int32) + 2).fill_null(UNKNOWN)
        return (known.zip_with(text.is_not_null(), _MISSING) if text.null_count() else known).to_numpy()

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
            scaled = ((_signed_log(number) if self.logarithm else number) - self.shift) / self.scale
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
        number = _signed_log(number) if self.logarithm else number
        position = np.searchsorted(np.asarray(self.edges), number, side="right")
        return np.where(np.isnan(number), MISSING, position + 1).astype(np.int32)


Fitted = Vocabulary | Hashing | Scaling | Bins


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


def learn_field(f: Field, column: pl.Series) -> tuple[Fitted, Callable[[], Cells]]:
    """Fit a field on its column in the training rows.

    Returns:
        The fitted part, and a function that encodes this column without another lookup.

    Errors:
        DataError: no training row has a value; a numeric cell is not a number.
    """
    match f:
        case Numeric():
            number = as_number(column, f"column {f.column!r} (field {f.name!r})", form=f.number_format)
            present = number.drop_nulls()
            _check_present(f, column, len(present))
            scaled = _fit_numeric(f, present.to_numpy())
            return scaled, lambda: number_cells(f, scaled, _with_nan(number))
        case Categorical():
            cells = coded(column)
            counts = cells.counts()
            _check_present(f, column, int(counts.sum()))
            fitted, ids = _fit_texts(f, cells.texts, counts)
            return fitted, lambda: Cells(cells.look_up(ids, MISSING))
        case Bag() | Sequence():
            cells = code_texts(as_list(column, f.separator).list.explode(empty_as_null=True))
            counts = cells.counts()
            _check_present(f, column, int(counts.sum()))
            several, _ = _fit_texts(f, cells.texts, counts)
            return several, lambda: bag_cells(f, several, column)


def single_cells(f: Field, fitted: Fitted, column: pl.Series, first_row: int = 0) -> Cells:
    """Encode a column with one value per cell; errors count its rows from `first_row`.

    Errors:
        DataError: a numeric cell is not a number.
    """
    if isinstance(fitted, (Scaling, Bins)):
        what = f"column {f.column!r} (field {f.name!r})"
        form = f.number_format if f.cell == "number" else None
        return number_cells(f, fitted, _with_nan(as_number(column, what, first_row=first_row, form=form)))
    if column.dtype == pl.String:
        return Cells(fitted.ids(as_text(column)))
    cells = coded(column)
    return Cells(cells.look_up(fitted.ids(cells.texts), MISSING))


def _with_nan(number: pl.Series) -> np.ndarray:
    """The result of `as_number`, with NaN for null."""
    return number.fill_null(float("nan")).to_numpy()


def number_cells(f: Field, fitted: Scaling | Bins, given: np.ndarray) -> Cells:
    """Encode numbers, with NaN for missing ones."""
    if isinstance(fitted, Bins):
        return Cells(fitted.ids(given))
    absent = np.isnan(given)
    fill = 1.0 if f.cell == "number" and f.missing == "vector" else 0.0
    scaled = np.where(absent, fill, fitted.values(given)).astype(np.float32)
    return Cells(np.where(absent, np.int32(MISSING), np.int32(1)), numbers=scaled)


def bag_cells(f: ListField, fitted: Vocabulary | Hashing, column: pl.Series) -> Cells:
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

    None if cells are text, or if a value is missing or blank, which only `as_list` removes.
    """
    if not isinstance(column.dtype, pl.List):
        return None
    value = column.list.explode(empty_as_null=False, keep_nulls=False).unique().rename("value")
    texts = as_list(value.to_frame().select(pl.concat_list("value")).to_series(), f.separator)
    if (texts.list.len() == 0).any():
        return None
    return pl.DataFrame([value, pl.Series("id", fitted.ids(texts.list.first()))])


def _check_present(f: Field, column: pl.Series, present: int) -> None:
    if not present:
        raise DataError(
            f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null or empty in all "
            f"{len(column)} training rows; remove the field from the schema or fill the column"
        )


def _fit_texts(
    f: Categorical | Bag | Sequence, texts: pl.Series, counts: np.ndarray
) -> tuple[Vocabulary | Hashing, np.ndarray]:
    """The fitted part from distinct texts [K] with frequencies `counts` [K], and the local row id of each [K]."""
    if f.hash_buckets is not None:
        hashing = Hashing(buckets=f.hash_buckets)
        return hashing, hashing.ids(texts)
    seen = pl.DataFrame({"text": texts, "n": counts}).with_row_index("code").filter(pl.col("n") > 0)
    kept = seen.filter(pl.col("n") >= f.min_count).sort(["n", "text"], descending=[True, False])
    ids = np.full(len(texts), UNKNOWN, dtype=np.int32)
    ids[kept.get_column("code").to_numpy()] = np.arange(2, kept.height + 2, dtype=np.int32)
    return Vocabulary(values=tuple(kept.get_column("text").to_list()), rare=seen.height - kept.height), ids


def _fit_numeric(f: Numeric, number: np.ndarray) -> Scaling | Bins:
    logarithm = f.transform == "log"
    number = _signed_log(number) if logarithm else number
    low, high = float(number.min()), float(number.max())
    if f.encoding == "uniform":
        return Bins(edges=_rising(np.linspace(low, high, f.bins + 1)[1:-1]), logarithm=logarithm)
    if f.encoding == "quantile":
        edges = quantile_edges(number, f.bins, point_masses=f.point_masses)
        return Bins(edges=_rising(edges), logarithm=logarithm)
    match f.transform:
        case "minmax":
            return Scaling(shift=low, scale=high - low or 1.0, clip=(0.0, 1.0))
        case "standard":
            # The standard deviation of equal numbers is 0, but rounding may give another value.
            return Scaling(shift=float(number.mean()), scale=(float(number.std()) if low < high else 0.0) or 1.0)
        case _:
            return Scaling(logarithm=logarithm)


def quantile_edges(number: np.ndarray, bins: int, *, point_masses: bool = False) -> np.ndarray:
    """Inner edges of bins of equal counts; equal edges are merged.

    Args:
        number: the training numbers [N].
        bins: number of bins.
        point_masses: whether a number in more than 1 / bins of the rows gets its own bin.

    >>> mostly_zero = np.array([0.0] * 90 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    >>> np.unique(quantile_edges(mostly_zero, 4)).tolist()
    [0.0]
    >>> np.unique(quantile_edges(mostly_zero, 4, point_masses=True)).tolist()
    [0.0, 1.0, 4.0, 7.0]
    """
    if not point_masses:
        return np.asarray(np.quantile(number, np.linspace(0, 1, bins + 1)[1:-1]))
    values, counts = np.unique(number, return_counts=True)
    heavy = counts * bins > len(number)
    first, after = values[heavy], values[1:][heavy[:-1]]
    rest = number[~np.isin(number, first)]
    left = max(2, bins - len(first))
    cuts = np.quantile(rest, np.linspace(0, 1, left + 1)[1:-1]) if len(rest) else rest
    return np.concatenate([first, after, cuts])


def _rising(edges: np.ndarray) -> tuple[float, ...]:
    return tuple(float(e) for e in np.unique(edges))


def _signed_log(number: np.ndarray) -> np.ndarray:
    logged: np.ndarray = np.sign(number) * np.log1p(np.abs(number))
    return logged
