"""Fitting a field on its column in the training rows."""

from collections.abc import Callable

import numpy as np
import polars as pl

from fieldwise.data.encode.cells import Cells, bag_cells, number_cells, with_nan
from fieldwise.data.encode.coded import code_texts, coded
from fieldwise.data.encode.columns import as_list, as_number
from fieldwise.data.encode.fitted import MISSING, UNKNOWN, Bins, Fitted, Hashing, Scaling, Vocabulary, signed_log
from fieldwise.errors import DataError
from fieldwise.schema import Bag, Categorical, Field, Numeric, Sequence

__all__ = ["learn_field", "quantile_edges"]


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
            return scaled, lambda: number_cells(f, scaled, with_nan(number))
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
    number = signed_log(number) if logarithm else number
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
