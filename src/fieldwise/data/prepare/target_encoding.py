"""Target encoding: the mean label of each category, such as an item's mean rating, as a numeric column."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.rows_by_value import rank_texts, shuffled_rows
from fieldwise.data.prepare.settings import TargetEncoding
from fieldwise.data.read.mapped_rows import join_rows
from fieldwise.errors import DataError, SchemaError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import MemoryBudget


def check_target_encoding(frame: pl.DataFrame, schema: Schema, settings: TargetEncoding) -> None:
    """Check that a table can be target-encoded, and that a field reads each new column."""
    label_columns = {label.column for label in schema.labels}
    for name, new_name in zip(settings.columns, settings.made, strict=True):
        if name not in frame.columns:
            raise DataError(
                f"target_encoding needs column {name!r}, which the table does not have: {nearest(name, frame.columns)}"
            )
        if name in label_columns:
            raise SchemaError(
                f"target_encoding must not encode the label's column {name!r}: choose another column"
            )
        if new_name in frame.columns:
            raise DataError(
                f"target_encoding makes column {new_name!r}, but the table has one already: read the table's own "
                "without [target_encoding], or rename it"
            )
        if new_name not in schema.columns:
            raise SchemaError(
                f"a field must read the encoded column: the schema has none of column {new_name!r}; add "
                f'{{ kind = "numeric", name = "{new_name}" }}'
            )


def add_target_encoding(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    settings: TargetEncoding,
    *,
    weights: Mapping[str, np.ndarray] | None = None,
    seed: int,
    budget: MemoryBudget,
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with the target-encoded columns, float64, null for categories without rows.

    `weights` are those of the rows; without them each row has the weight 1.
    """
    encoded = dict(frames)
    random_folds = _random_folds(frames["train"].height, settings.folds, seed, budget=budget)
    for column, new_column in zip(settings.columns, settings.made, strict=True):
        codes, categories = _category_codes(frames, column, budget=budget)
        for name, frame in frames.items():
            sources = [source for source in _means_over(name, settings) if source in frames]
            is_out_of_fold = name == "train" and settings.source == "train"
            folds = random_folds if is_out_of_fold else None
            weight = None
            if weights:
                weight = _joined([weights[source] for source in sources], np.float64, budget=budget)
            label_sums = _LabelSums.of(
                _joined([codes[source] for source in sources], np.int32, budget=budget),
                _joined([targets[source] for source in sources], np.float64, budget=budget),
                weight,
                folds,
                categories=categories,
                fold_count=settings.folds if is_out_of_fold else 1,
                budget=budget,
            )
            means = (
                label_sums.means(
                    codes[name][chunk], None if folds is None else folds[chunk], settings.prior_rows
                )
                for chunk in budget.chunk_slices(frame.height)
            )
            columns = (pl.DataFrame({new_column: values}).fill_nan(None) for values in means)
            joined = join_rows(columns, budget=budget)
            encoded[name] = encoded[name].with_columns(joined.to_series())
    return encoded


def _random_folds(rows: int, folds: int, seed: int, *, budget: MemoryBudget) -> np.ndarray:
    """The fold of each row [N] int64, of nearly equal sizes."""
    fold_of_row = shuffled_rows(rows, seed, budget=budget)
    for chunk in budget.chunk_slices(rows):
        fold_of_row[chunk] %= folds
    return fold_of_row


def _category_codes(
    frames: Mapping[str, pl.DataFrame], column: str, *, budget: MemoryBudget
) -> tuple[dict[str, np.ndarray], int]:
    """The category of each row of all parts, 0 for a missing one, and the number of categories with it."""
    # As text, the cells of parts of other types are equal.
    texts = (
        as_text(frame[column][chunk]).to_frame()
        for frame in frames.values()
        for chunk in budget.chunk_slices(frame.height)
    )
    ranks, counts = rank_texts(join_rows(texts, budget=budget).to_series(), budget=budget)
    ends = np.cumsum([frame.height for frame in frames.values()])
    codes = dict(zip(frames, np.split(ranks, ends[:-1]), strict=True))
    return codes, len(counts)


def _means_over(part: str, settings: TargetEncoding) -> tuple[str, ...]:
    """The parts whose rows a part's mean labels are over."""
    if settings.source == "train":
        return ("train",)
    if settings.source == "own-side" and part != "test":
        return ("train", "valid")
    return (part,)


def _joined(
    arrays: list[np.ndarray], dtype: type[np.generic], *, budget: MemoryBudget
) -> np.ndarray:
    """The values of all arrays; a single one as it is."""
    return arrays[0] if len(arrays) == 1 else budget.concatenate(arrays, dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class _LabelSums:
    """Weights of rows and weighted sums of labels by category, and of these by fold, to leave out a row's own fold.

    A row without a weight has the weight 1.

    Shape:
        category_weights, category_sums: [categories].
        cell_weights, cell_sums: [categories * F], by category and fold; zeros without folds.
        fold_weights, fold_sums: [F]; a fold without rows if there are no folds, which leaves out
            nothing.
    """

    category_weights: np.ndarray
    category_sums: np.ndarray
    cell_weights: np.ndarray
    cell_sums: np.ndarray
    fold_weights: np.ndarray
    fold_sums: np.ndarray

    @classmethod
    def of(
        cls,
        codes: np.ndarray,
        y: np.ndarray,
        weight: np.ndarray | None,
        folds: np.ndarray | None,
        *,
        categories: int,
        fold_count: int,
        budget: MemoryBudget,
    ) -> Self:
        """The sums over rows of these categories, labels, weights and folds [M].

        Labels are added in the order of the rows, so that chunks do not matter.
        """
        category_weights = np.zeros(categories)
        category_sums = np.zeros(categories)
        cell_weights = np.zeros(categories * fold_count)
        cell_sums = np.zeros(categories * fold_count)
        fold_weights = np.zeros(fold_count)
        fold_sums = np.zeros(fold_count)
        for chunk in budget.chunk_slices(len(codes)):
            weights = np.ones(len(codes[chunk])) if weight is None else weight[chunk]
            labels = y[chunk] * weights
            np.add.at(category_weights, codes[chunk], weights)
            np.add.at(category_sums, codes[chunk], labels)
            if folds is not None:
                cells = codes[chunk].astype(np.int64) * fold_count + folds[chunk]
                np.add.at(cell_weights, cells, weights)
                np.add.at(cell_sums, cells, labels)
                np.add.at(fold_weights, folds[chunk], weights)
                np.add.at(fold_sums, folds[chunk], labels)
        return cls(
            category_weights=category_weights,
            category_sums=category_sums,
            cell_weights=cell_weights,
            cell_sums=cell_sums,
            fold_weights=fold_weights,
            fold_sums=fold_sums,
        )

    def means(self, codes: np.ndarray, folds: np.ndarray | None, prior_rows: float) -> np.ndarray:
        """The mean label of each row's category [M] over the other folds' rows; NaN for a category without rows.

        `prior_rows` with the overall mean are added to every category.
        """
        left_out = np.zeros(len(codes), np.int64) if folds is None else folds
        cells = codes.astype(np.int64) * len(self.fold_weights) + left_out
        # a single training row leaves none in the other folds
        with np.errstate(invalid="ignore", divide="ignore"):
            label_sums_elsewhere = self.category_sums.sum() - self.fold_sums
            overall_means = label_sums_elsewhere / (self.category_weights.sum() - self.fold_weights)
            overall = overall_means[left_out]
            weight = self.category_weights[codes] - self.cell_weights[cells] + prior_rows
            label_sums = self.category_sums[codes] - self.cell_sums[cells] + prior_rows * overall
            means = label_sums / weight
        is_known = (weight > 0) & (codes > 0)
        return np.asarray(np.where(is_known, means, np.nan))
