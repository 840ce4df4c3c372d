"""What the encoder learns of one field from the training rows, and how it turns a column into row ids and numbers.

Local row ids of a field: with a vocabulary 0 missing, 1 unknown, 2.. the values (most frequent first); hashed
0 missing, 1.. the buckets; bins 0 missing, 1.. the bins; a number times a vector 0 missing, 1 the field's vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from fieldwise.data.columns import as_list, as_number, as_text, stable_hash
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
    """(number - shift) / scale, after a logarithm where asked, clipped to [low, high] where given."""

    logarithm: bool = False
    shift: float = 0.0
    scale: float = 1.0
    clip: tuple[float, float] | None = None
    kind: Literal["scaling"] = "scaling"

    @property
    def rows(self) -> int:
        return 2

    def values(self, number: np.ndarray) -> np.ndarray:
        """Transformed numbers [N]; NaN stays."""
        scaled = (_signed_log(number) if self.logarithm else number) - self.shift
        scaled = scaled / self.scale
        return scaled if self.clip is None else np.clip(scaled, *self.clip)


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
        return len(self.edges) + 2

    def ids(self, number: np.ndarray) -> np.ndarray:
        """Local row ids [N] of numbers; NaN is missing."""
        position = np.searchsorted(np.asarray(self.edges), _signed_log(number) if self.logarithm else number, side="right")
        return np.where(np.isnan(number), MISSING, position + 1).astype(np.int32)


Fitted = Vocabulary | Hashing | Scaling | Bins


@dataclass(frozen=True)
class BagCells:
    """The ids of a bag or sequence column: all cells' ids one after another, and how many each cell has.

    Shape:
        ids: [M] int32, local row ids; an empty cell holds the one id `missing`.
        lengths: [N] int64, at least 1.
    """

    ids: np.ndarray
    lengths: np.ndarray
    unknown: int = field(default=0)


def fit_field(f: Field, column: pl.Series) -> Fitted:
    """Learn a field from its column in the training rows.

    Errors:
        DataError: no training row has a value; a number is not one.
    """
    if column.null_count() == len(column):
        raise DataError(
            f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null in all {len(column)} "
            "training rows; remove the field from the schema or fill the column"
        )
    match f:
        case Numeric():
            return _fit_numeric(f, column)
        case Categorical():
            texts = as_text(column)
        case Bag() | Sequence():
            texts = as_list(column, f.separator).list.explode(empty_as_null=True)
    if f.hash_buckets is not None:
        return Hashing(buckets=f.hash_buckets)
    counts = texts.drop_nulls().value_counts(name="n").sort(["n", texts.name], descending=[True, False])
    kept = counts.filter(pl.col("n") >= f.min_count)
    return Vocabulary(values=tuple(kept.get_column(texts.name).to_list()), rare=counts.height - kept.height)


def bag_cells(f: Bag | Sequence, fitted: Vocabulary | Hashing, column: pl.Series) -> BagCells:
    """Encode a bag or sequence column; a sequence keeps its newest `max_length` values, in order."""
    lists = as_list(column, f.separator)
    if isinstance(f, Sequence):
        lists = lists.list.tail(f.max_length)
    lengths = np.maximum(lists.list.len().to_numpy().astype(np.int64), 1)
    texts = lists.list.explode(empty_as_null=True)
    ids = fitted.ids(texts)
    unknown = int((ids == UNKNOWN).sum()) if isinstance(fitted, Vocabulary) else 0
    return BagCells(ids, lengths, unknown)


def _fit_numeric(f: Numeric, column: pl.Series) -> Scaling | Bins:
    number = as_number(column, f"column {f.column!r} (field {f.name!r})").drop_nulls().to_numpy()
    logarithm = f.transform == "log"
    number = _signed_log(number) if logarithm else number
    if number.size == 0:
        raise DataError(f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) holds no number")
    low, high = float(number.min()), float(number.max())
    if f.encoding == "uniform":
        return Bins(edges=_rising(np.linspace(low, high, f.bins + 1)[1:-1]), logarithm=logarithm)
    if f.encoding == "quantile":
        return Bins(edges=_rising(np.quantile(number, np.linspace(0, 1, f.bins + 1)[1:-1])), logarithm=logarithm)
    match f.transform:
        case "minmax":
            return Scaling(shift=low, scale=high - low or 1.0, clip=(0.0, 1.0))
        case "standard":
            return Scaling(shift=float(number.mean()), scale=float(number.std()) or 1.0)
        case _:
            return Scaling(logarithm=logarithm)


def _rising(edges: np.ndarray) -> tuple[float, ...]:
    return tuple(float(e) for e in np.unique(edges))


def _signed_log(number: np.ndarray) -> np.ndarray:
    return np.sign(number) * np.log1p(np.abs(number))


FITTED_KINDS: Mapping[str, type[Fitted]] = {
    "vocabulary": Vocabulary,
    "hashing": Hashing,
    "scaling": Scaling,
    "bins": Bins,
}
