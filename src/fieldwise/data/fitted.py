"""What the encoder learns of one field from the training rows, and how it turns a column into row ids and numbers.

Local row ids of a field: with a vocabulary 0 missing, 1 unknown, 2.. the values (most frequent first); hashed
0 missing, 1.. the buckets; bins 0 missing, 1.. the bins; a number times a vector 0 missing, 1 the field's vector.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from fieldwise.data.columns import FLOAT32_MAX, as_list, as_number, as_text, stable_hash
from fieldwise.errors import DataError
from fieldwise.schema import Bag, Categorical, Field, Numeric, Sequence

__all__ = ["Bins", "Fitted", "Hashing", "Scaling", "Vocabulary", "bag_cells", "fit_field"]

MISSING = 0
UNKNOWN = 1


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Values with a row of their own, most frequent first.

    Args:
        values: the texts; the k-th has local row id k + 2.
        rare: how many different values were seen less often than min_count.
    """

    values: tuple[str, ...]
    rare: int = 0
    kind: Literal["vocabulary"] = "vocabulary"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return len(self.values) + 2

    @cached_property
    def _index(self) -> pl.DataFrame:
        ids = pl.Series("id", np.arange(2, len(self.values) + 2, dtype=np.int32))
        return pl.DataFrame({"text": pl.Series(self.values, dtype=pl.String), "id": ids})

    def ids(self, text: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts; null is missing, an unseen text unknown."""
        found = pl.DataFrame({"text": text}).join(self._index, on="text", how="left", maintain_order="left")
        known = found.get_column("id").fill_null(UNKNOWN).to_numpy()
        return np.where(text.is_null().to_numpy(), MISSING, known).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class Hashing:
    """No vocabulary: a stable hash of the text (FNV-1a) names the row. Different values may share one."""

    buckets: int
    kind: Literal["hashing"] = "hashing"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return self.buckets + 1

    def ids(self, text: pl.Series) -> np.ndarray:
        """Local row ids [N] of texts; null is missing."""
        distinct = text.drop_nulls().unique()
        rows = pl.Series("id", (stable_hash(distinct, self.buckets) + 1).astype(np.int32))
        index = pl.DataFrame({"text": distinct, "id": rows})
        found = pl.DataFrame({"text": text}).join(index, on="text", how="left", maintain_order="left")
        return found.get_column("id").fill_null(MISSING).to_numpy().astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """(number - shift) / scale, after a logarithm where asked, clipped to `clip` or else to what 32-bit floats hold."""

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
        with np.errstate(over="ignore"):  # what overflows is clipped
            scaled = ((_signed_log(number) if self.logarithm else number) - self.shift) / self.scale
        return np.clip(scaled, low, high)


@dataclass(frozen=True, kw_only=True)
class Bins:
    """Bin k holds edges[k-1] <= number < edges[k]; the first and last take what lies beyond the training range.

    Args:
        edges: the inner edges, rising, after the logarithm where asked.
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


def fit_field(f: Field, column: pl.Series) -> Fitted:
    """Learn a field from its column in the training rows.

    Errors:
        DataError: no training row has a value; a number is not one.
    """
    match f:
        case Numeric():
            present = as_number(column, f"column {f.column!r} (field {f.name!r})").drop_nulls()
        case Categorical():
            present = as_text(column).drop_nulls()
        case Bag() | Sequence():
            present = as_list(column, f.separator).list.explode(empty_as_null=True).drop_nulls()
    if present.is_empty():
        raise DataError(
            f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null or empty in all "
            f"{len(column)} training rows; remove the field from the schema or fill the column"
        )
    if isinstance(f, Numeric):
        return _fit_numeric(f, present.to_numpy())
    if f.hash_buckets is not None:
        return Hashing(buckets=f.hash_buckets)
    counts = present.rename("text").value_counts(name="n").sort(["n", "text"], descending=[True, False])
    kept = counts.filter(pl.col("n") >= f.min_count)
    return Vocabulary(values=tuple(kept.get_column("text").to_list()), rare=counts.height - kept.height)


def bag_cells(f: Bag | Sequence, fitted: Vocabulary | Hashing, column: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Encode a bag or sequence column; a sequence keeps its newest `max_length` values, in order.

    Shape:
        ids: [M] int32, local row ids of all cells, one cell after another; an empty cell holds the one id `missing`.
        lengths: [N] int64, how many ids each cell has, at least 1.
    """
    known = _distinct_ids(f, fitted, column)
    lists = as_list(column, f.separator) if known is None else column
    if isinstance(f, Sequence):
        lists = lists.list.tail(f.max_length)
    lengths = np.maximum(lists.list.len().fill_null(0).to_numpy().astype(np.int64), 1)
    flat = lists.list.explode(empty_as_null=True)
    if known is None:
        return fitted.ids(flat), lengths
    ids = flat.to_frame("value").join(known, on="value", how="left", maintain_order="left").get_column("id")
    return ids.fill_null(MISSING).to_numpy(), lengths


def _distinct_ids(f: Bag | Sequence, fitted: Vocabulary | Hashing, column: pl.Series) -> pl.DataFrame | None:
    """Each distinct value of a column of lists with its id: histories repeat few items often, and text is slow.

    None where cells are text, or where a value is absent or blank, which only `as_list` takes out of its cell.
    """
    if not isinstance(column.dtype, pl.List):
        return None
    value = column.list.explode(empty_as_null=False, keep_nulls=False).unique().rename("value")
    texts = as_list(value.to_frame().select(pl.concat_list("value")).to_series(), f.separator)
    if (texts.list.len() == 0).any():
        return None
    return pl.DataFrame([value, pl.Series("id", fitted.ids(texts.list.first()))])


def _fit_numeric(f: Numeric, number: np.ndarray) -> Scaling | Bins:
    logarithm = f.transform == "log"
    number = _signed_log(number) if logarithm else number
    low, high = float(number.min()), float(number.max())
    if f.encoding == "uniform":
        return Bins(edges=_rising(np.linspace(low, high, f.bins + 1)[1:-1]), logarithm=logarithm)
    if f.encoding == "quantile":
        return Bins(edges=_rising(np.quantile(number, np.linspace(0, 1, f.bins + 1)[1:-1])), logarithm=logarithm)
    match f.transform:
        case "minmax":
            return Scaling(shift=low, scale=high - low or 1.0, clip=(0.0, 1.0))
        case "standard":
            # The deviation of equal numbers is 0, which the sums of floats miss.
            return Scaling(shift=float(number.mean()), scale=(float(number.std()) if low < high else 0.0) or 1.0)
        case _:
            return Scaling(logarithm=logarithm)


def _rising(edges: np.ndarray) -> tuple[float, ...]:
    return tuple(float(e) for e in np.unique(edges))


def _signed_log(number: np.ndarray) -> np.ndarray:
    logged: np.ndarray = np.sign(number) * np.log1p(np.abs(number))
    return logged
