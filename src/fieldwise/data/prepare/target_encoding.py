"""Target encoding: the mean label of each category, such as an item's mean rating, as columns for numeric fields."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.grouping import rank_texts
from fieldwise.data.prepare.raw_rows import join_rows
from fieldwise.data.prepare.settings import TargetEncoding
from fieldwise.errors import DataError, SchemaError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["add_target_encoding", "check_target_encoding"]


def check_target_encoding(frame: pl.DataFrame, schema: Schema, settings: TargetEncoding) -> None:
    """Check that a table can be target-encoded, and that a field reads each new column.

    Errors:
        DataError: a column is missing, or a new one exists already.
        SchemaError: no field reads a new column, or a column is a label's.
    """
    for name, made in zip(settings.columns, settings.made, strict=True):
        if name not in frame.columns:
            raise DataError(
                f"target_encoding needs column {name!r}, which the table does not have: {nearest(name, frame.columns)}"
            )
        if name in {label.column for label in schema.labels}:
            raise SchemaError(f"target_encoding must not encode the label's column {name!r}: choose another column")
        if made in frame.columns:
            raise DataError(
                f"target_encoding makes column {made!r}, but the table has one already: read the table's own without "
                "[target_encoding], or rename it"
            )
        if made not in schema.columns:
            raise SchemaError(
                f"a field must read the encoded column: the schema has none of column {made!r}; add "
                f'{{ kind = "numeric", name = "{made}" }}'
            )


def add_target_encoding(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    settings: TargetEncoding,
    *,
    seed: int,
    scratch: Scratch = IN_MEMORY,
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with the target-encoded columns, float64, null for categories without rows.

    Args:
        frames: tables by part, including `train`.
        targets: targets of the main label, [N] each.
        settings: columns, folds and source.
        seed: seed of the folds.
        scratch: where the new columns lie, and how many rows are processed at once.

    >>> train, test = pl.DataFrame({"film": ["a", "a", "b"]}), pl.DataFrame({"film": ["a", "c"]})
    >>> made = add_target_encoding(
    ...     {"train": train, "test": test},
    ...     {"train": np.array([1.0, 0.0, 1.0]), "test": np.array([1.0, 1.0])},
    ...     TargetEncoding(columns=("film",)),
    ...     seed=0,
    ... )
    >>> made["test"]["film_mean_label"].to_list()
    [0.5, None]
    """
    made = dict(frames)
    folds = scratch.numbers(frames["train"].height)
    np.random.default_rng(seed).shuffle(folds)
    for at in scratch.pieces(len(folds)):
        folds[at] %= settings.folds
    for column, new in zip(settings.columns, settings.made, strict=True):
        ranks = rank_texts(pl.concat([_texts(frame, column, scratch) for frame in frames.values()]), scratch)
        first = 0
        codes = {}
        for name, frame in frames.items():
            codes[name] = ranks.ranks[first : first + frame.height]
            first += frame.height
        for name in frames:
            source = name if settings.source == "own-part" else "train"
            own_folds = folds if name == "train" and settings.source == "train" else None
            sums = _Sums.of(codes[source], targets[source], len(ranks.counts), own_folds, settings, scratch)
            pieces = (
                sums.means(codes[name][at], None if own_folds is None else own_folds[at])
                for at in scratch.pieces(frames[name].height)
            )
            means = join_rows((pl.DataFrame({new: one}).fill_nan(None) for one in pieces), scratch)
            made[name] = made[name].with_columns(means.to_series())
    return made


def _texts(frame: pl.DataFrame, column: str, scratch: Scratch) -> pl.Series:
    """A column's cells as text, so that those of parts of other types are equal."""
    pieces = (as_text(frame[column][at]).to_frame() for at in scratch.pieces(frame.height))
    return join_rows(pieces, scratch).to_series()


@dataclass(frozen=True, eq=False)
class _Sums:
    """Numbers of rows and sums of labels by category and, with folds, by category and fold.

    Shape:
        count, total: [K]; by_fold: two of [K * folds]; whole: of all rows, and two of [folds].
    """

    settings: TargetEncoding
    count: np.ndarray
    total: np.ndarray
    by_fold: tuple[np.ndarray, np.ndarray]
    rows: np.float64
    whole: np.float64
    folds: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(
        cls,
        code: np.ndarray,
        y: np.ndarray,
        size: int,
        folds: np.ndarray | None,
        settings: TargetEncoding,
        scratch: Scratch,
    ) -> "_Sums":
        """The sums over rows; they are added in the order of the rows, so that pieces do not matter."""
        count, total = np.zeros(size, np.int64), np.zeros(size)
        number = settings.folds if folds is not None else 0
        cells, cell_total = np.zeros(size * number, np.int64), np.zeros(size * number)
        in_fold, fold_total = np.zeros(number, np.int64), np.zeros(number)
        for at in scratch.pieces(len(code)):
            count += np.bincount(code[at], minlength=size)
            np.add.at(total, code[at], y[at])
            if folds is not None:
                cell = code[at].astype(np.int64) * number + folds[at]
                cells += np.bincount(cell, minlength=len(cells))
                np.add.at(cell_total, cell, y[at])
                in_fold += np.bincount(folds[at], minlength=number)
                np.add.at(fold_total, folds[at], y[at])
        rows, whole = np.float64(len(y)), np.float64(y.sum())
        return cls(settings, count, total, (cells, cell_total), rows, whole, (in_fold, fold_total))

    def means(self, asked: np.ndarray, folds: np.ndarray | None) -> np.ndarray:
        """The mean label of each asked row's category [M]; with folds, over the other folds' rows."""
        count, total = self.count[asked], self.total[asked]
        overall = np.full(len(asked), self.whole / self.rows)
        if folds is not None:
            cell = asked.astype(np.int64) * self.settings.folds + folds
            count = count - self.by_fold[0][cell]
            total = total - self.by_fold[1][cell]
            with np.errstate(invalid="ignore"):  # a single training row leaves none in the other folds
                overall = ((self.whole - self.folds[1]) / (self.rows - self.folds[0]))[folds]
        weight = count + self.settings.prior_rows
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (total + self.settings.prior_rows * overall) / weight
        known: np.ndarray = np.where((weight > 0) & (asked > 0), means, np.nan)
        return known
