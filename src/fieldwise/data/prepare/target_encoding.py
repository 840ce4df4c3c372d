"""Target encoding: mean labels of categories, such as an item's mean rating, as columns for numeric fields."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.settings import TargetEncoding
from fieldwise.errors import DataError, SchemaError
from fieldwise.schema import Schema

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
    frames: Mapping[str, pl.DataFrame], targets: Mapping[str, np.ndarray], settings: TargetEncoding, *, seed: int
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with the target-encoded columns, float64, null for categories without rows.

    Args:
        frames: tables by part, including `train`.
        targets: targets of the main label, [N] each.
        settings: columns, folds and source.
        seed: seed of the folds.

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
    folds = np.random.default_rng(seed).permutation(frames["train"].height) % settings.folds
    for column, new in zip(settings.columns, settings.made, strict=True):
        texts = pl.concat([as_text(frame.get_column(column)) for frame in frames.values()])
        codes = texts.rank("dense").fill_null(0).to_numpy().astype(np.int64)  # from 1; a missing category is 0
        first = 0
        by_part = {}
        for name, frame in frames.items():
            by_part[name] = codes[first : first + frame.height]
            first += frame.height
        size = int(codes.max(initial=0)) + 1
        for name in frames:
            source = name if settings.source == "own-part" else "train"
            own_folds = folds if name == "train" and settings.source == "train" else None
            means = _means(by_part[source], targets[source], by_part[name], size, own_folds, settings)
            made[name] = made[name].with_columns(pl.Series(new, means).fill_nan(None))
    return made


def _means(
    code: np.ndarray,
    y: np.ndarray,
    asked: np.ndarray,
    size: int,
    folds: np.ndarray | None,
    settings: TargetEncoding,
) -> np.ndarray:
    """The mean of y for each asked row's category; with folds (equal for both), over the other folds' rows."""
    count, total = np.bincount(code, minlength=size)[asked], np.bincount(code, y, size)[asked]
    rows, whole = np.float64(len(y)), np.float64(y.sum())
    overall = np.full(len(asked), whole / rows)
    if folds is not None:
        cell = code * settings.folds + folds
        count = count - np.bincount(cell, minlength=size * settings.folds)[cell]
        total = total - np.bincount(cell, y, size * settings.folds)[cell]
        with np.errstate(invalid="ignore"):  # a single training row leaves none in the other folds
            overall = ((whole - np.bincount(folds, y)) / (rows - np.bincount(folds)))[folds]
    weight = count + settings.prior_rows
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (total + settings.prior_rows * overall) / weight
    known: np.ndarray = np.where((weight > 0) & (asked > 0), means, np.nan)
    return known
