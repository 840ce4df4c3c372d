"""Preparing a raw table: encoded training, validation and test rows.

The order is: label, split, histories, negatives, encoder.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.coded import coded
from fieldwise.data.encode.encoder import Encoder, check_table
from fieldwise.data.prepare.history import add_histories, check_history
from fieldwise.data.prepare.labels import LabelledRows, read_labels
from fieldwise.data.prepare.negative_rows import with_negatives
from fieldwise.data.prepare.repeats import count_repeats
from fieldwise.data.prepare.settings import PARTS, NegativeSampling, PreparationSettings
from fieldwise.data.prepare.split_kind import SplitColumns
from fieldwise.data.prepare.split_settings import SplitSettings
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.prepare.target_encoding import add_target_encoding, check_target_encoding
from fieldwise.data.read.lines import renumbering_rows
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Schema

__all__ = ["EncodedParts", "Part", "Prepared", "check_columns", "encode_parts", "group_codes", "prepare"]

NOTHING = PreparationSettings()


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of one part: raw (or a function that reads them), encoded, and their groups (or None)."""

    rows: pl.DataFrame | Callable[[], pl.DataFrame]
    table: EncodedTable
    group: np.ndarray | None

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The raw rows; rows in the cache are read at the first access."""
        return self.rows if isinstance(self.rows, pl.DataFrame) else self.rows()

    @property
    def y(self) -> np.ndarray:
        """Targets [N, T], the main label's first."""
        assert self.table.y is not None, "prepared parts have targets"
        return self.table.y

    @property
    def main(self) -> np.ndarray:
        """Targets of the main label [N]."""
        column: np.ndarray = self.y[:, 0]
        return column


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedParts:
    """Parts by name (`train`, `valid` and optionally `test`), with the encoder fitted on `train`.

    Args:
        counts: rows of each part, sampled negatives, and rows that equal a training row (`count_repeats`).
    """

    encoder: Encoder
    parts: Mapping[str, Part]
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Data prepared for training.

    Args:
        encoder: fitted on the training rows only.
        counts: rows of each part, rows dropped by the label's rule, sampled negatives, and rows that equal a training
            row (`count_repeats`).
        unseen: for each part but train and each field with a vocabulary, the share of unknown values.
    """

    encoder: Encoder
    train: Part
    valid: Part
    test: Part
    counts: Mapping[str, int]
    unseen: Mapping[str, Mapping[str, float]]


def prepare(
    frame: pl.DataFrame,
    schema: Schema,
    *,
    split: SplitSettings,
    seed: int,
    add: PreparationSettings = NOTHING,
) -> Prepared:
    """Prepared data from a table: targets, split, histories, target encoding, negatives and encoding.

    Args:
        frame: the raw table.
        schema: its schema.
        split: settings of the split.
        seed: seed of the split, the negatives and the folds; the same seed, table and settings give the same result.
        add: negatives, histories and target encoding.

    Errors:
        SchemaError: the table lacks the schema's time, user, item, group or key columns, or no field reads a new
            column.
        DataError: the table does not fit the schema, a part is empty or, for a binary label, has one class.
        ConfigError: the history has no order; target encoding together with sampled negatives.
    """
    check_columns(frame.columns, schema)
    made: list[str] = []
    if add.history is not None:
        check_history(frame, schema, add.history)
        made.append(add.history.column)
    if add.target_encoding is not None:
        if add.negatives is not None:
            raise ConfigError("target_encoding needs the label of every row, found [negatives] too: remove one of them")
        check_target_encoding(frame, schema, add.target_encoding)
        made += add.target_encoding.made
    check_table(frame, schema, made_later=made)
    rows = read_labels(frame, schema.labels)
    with renumbering_rows(rows.kept):
        indices = split_table(rows.frame, split, SplitColumns.of(schema), seed=seed, y=rows.main)
    parts = {name: rows.take(getattr(indices, name)) for name in PARTS}
    encoded = encode_parts(parts, schema, seed=seed, add=add)
    return Prepared(
        encoder=encoded.encoder,
        counts={"dropped_by_label": rows.dropped, **encoded.counts},
        unseen={name: encoded.encoder.unseen_in(encoded.parts[name].table) for name in PARTS if name != "train"},
        **encoded.parts,
    )


def check_columns(columns: Collection[str], schema: Schema) -> None:
    """Check that a table has the schema's time, group, id and key columns.

    Errors:
        SchemaError: one is missing; the nearest name is given.
    """
    said = [(what, getattr(schema, what)) for what in ("time", "user", "item", "group")]
    for what, column in [*said, *(("keys", key) for key in schema.keys)]:
        if column is not None and column not in columns:
            raise SchemaError(
                f"the schema's {what} must be in the table: {column!r} is not; {nearest(column, columns)}"
            )


def encode_parts(
    labelled: Mapping[str, LabelledRows],
    schema: Schema,
    *,
    seed: int,
    add: PreparationSettings = NOTHING,
) -> EncodedParts:
    """Encoded parts: with histories, sampled negatives and an encoder fitted on the training rows.

    Args:
        labelled: `train`, `valid` and optionally `test`.
        schema: the tables' schema.
        seed: seed of the negatives and of the folds of target encoding.
        add: negatives, histories and target encoding.

    Errors:
        DataError: a table does not fit the schema, a part is empty or, for a binary label, has one class.
    """
    frames = {name: rows.frame for name, rows in labelled.items()}
    targets = {name: rows.y for name, rows in labelled.items()}
    repeats = count_repeats(frames, schema)  # of the raw rows, without sampled negatives
    mains = {name: rows.main for name, rows in labelled.items()}
    if add.target_encoding is not None:
        frames = add_target_encoding(frames, mains, add.target_encoding, seed=seed)
    if add.history is not None:
        order = check_history(frames["train"], schema, add.history)
        # Before sampling negatives: an item that a user never used is not an event of that user.
        form = schema.time_format if order == schema.time else None
        frames = add_histories(frames, mains, add.history.of_schema(schema), order=order, order_format=form)
    counts = {}
    weights = {name: rows.weight for name, rows in labelled.items() if rows.weight is not None}
    _check_weights(weights, add.negatives)
    if add.negatives is not None:
        before = sum(map(len, targets.values()))
        frames, targets = with_negatives(frames, targets, schema, add.negatives.of_schema(schema), seed)
        counts["negatives_drawn"] = sum(map(len, targets.values())) - before
    _check_classes({name: y[weights[name] > 0] if name in weights else y for name, y in targets.items()}, schema)
    encoder, train = Encoder.fit_transform(frames["train"], schema, y=targets["train"])
    tables = {name: train if name == "train" else encoder.transform(f, y=targets[name]) for name, f in frames.items()}
    tables |= {name: replace(tables[name], weight=w.astype(np.float32)) for name, w in weights.items()}
    parts = {name: Part(part, tables[name], group_codes(part, schema)) for name, part in frames.items()}
    counts.update({f"{name}_rows": part.height for name, part in frames.items()})
    return EncodedParts(encoder=encoder, parts=parts, counts=counts | repeats)


def group_codes(frame: pl.DataFrame, schema: Schema) -> np.ndarray | None:
    """An integer per row for its group [N] (`Schema.grouping`), or None without such a column.

    A row without a group is its own group, so that group AUC skips and counts it like every group of one class. Codes
    of two tables are unrelated.
    """
    if schema.grouping is None or schema.grouping not in frame.columns:
        return None
    cells = coded(frame.get_column(schema.grouping))
    codes = cells.look_up(cells.texts.rank("dense").to_numpy().astype(np.int64), 0)
    absent = codes == 0
    codes[absent] = codes.max(initial=0) + 1 + np.arange(absent.sum())
    return codes


def _check_weights(weights: Mapping[str, np.ndarray], negatives: NegativeSampling | None) -> None:
    if weights and negatives is not None:
        raise ConfigError("a sampled negative has no weight: omit the rows' weights or the negatives")
    for name, weight in weights.items():
        if not weight.any():
            raise DataError(
                f"some {name} row must have a weight above 0, but the weights of all {len(weight)} are zero: give "
                "rows of "
                "every class a weight, or use another split"
            )


def _check_classes(targets: Mapping[str, np.ndarray], schema: Schema) -> None:
    for name, y in targets.items():
        for label, target in zip(schema.labels, y.T, strict=True):
            positive = int((target > 0.5).sum())
            if label.task == "binary" and positive in (0, len(y)):
                found = "positive" if positive else "negative"
                raise DataError(
                    f"the {name} rows must hold both classes: all {len(y)} are {found} by the rule of label "
                    f"{label.name!r}; check the rule, or use another split"
                )
