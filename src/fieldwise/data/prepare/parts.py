"""Rows of all parts before encoding: targets, split, target encoding, histories and negatives, in this order."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.checks import check_table
from fieldwise.data.prepare.history import add_histories, check_history
from fieldwise.data.prepare.labels import LabelledRows, read_labels, with_event_label
from fieldwise.data.prepare.negative_rows import with_negatives
from fieldwise.data.prepare.repeats import count_repeats
from fieldwise.data.prepare.settings import PARTS, NegativeSampling, PreparationSettings
from fieldwise.data.prepare.split_kind import SplitColumns
from fieldwise.data.prepare.split_settings import SplitSettings
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.prepare.target_encoding import add_target_encoding, check_target_encoding
from fieldwise.data.read.lines import renumbering_rows
from fieldwise.data.read.mapped import RowFile
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["CompleteRows", "Plan", "check_columns", "complete", "divide"]

NOTHING = PreparationSettings()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a preparation does.

    Args:
        schema: the table's schema.
        split: settings of the split.
        seed: seed of the split, the negatives and the folds.
        add: negatives, histories and target encoding.
    """

    schema: Schema
    split: SplitSettings
    seed: int
    add: PreparationSettings = NOTHING


def divide(
    frame: pl.DataFrame,
    plan: Plan,
    scratch: Scratch = IN_MEMORY,
    folders: Mapping[str, Path] | None = None,
    files: Sequence[RowFile] = (),
    told: Callable[[int], None] = lambda _: None,
) -> tuple[dict[str, LabelledRows], int]:
    """The rows of each part with their targets, and how many rows the labels' rules drop.

    Args:
        frame: the raw table.
        plan: what is done; what will be added to the rows is checked here already.
        scratch: where the rows lie, and how many are processed at once.
        folders: where the rows of each part are written, instead of to `scratch`.
        files: of the table, which may be moved to `folders`.
        told: called with the number of rows of each piece of a part.

    Errors:
        SchemaError, DataError, ConfigError: see `prepare`.
    """
    schema, add = plan.schema, plan.add
    check_columns(frame.columns, schema)
    made: list[str] = []
    if add.history is not None:
        check_history(frame, schema, add.history, scratch)
        made.append(add.history.column)
    if add.target_encoding is not None:
        if add.negatives is not None:
            raise ConfigError("target_encoding needs the label of every row, found [negatives] too: remove one of them")
        check_target_encoding(frame, schema, add.target_encoding)
        made += add.target_encoding.made
    check_table(frame, schema, made_later=made, scratch=scratch)
    frame, table = with_event_label(frame, schema, add.negatives is not None), frame
    rows = read_labels(frame, schema.labels, scratch=scratch)
    with renumbering_rows(rows.kept):
        indices = split_table(
            rows.frame, plan.split, SplitColumns.of(schema), seed=plan.seed, y=rows.main, scratch=scratch
        )
    places = folders or {}
    movable = files if rows.frame is table else ()  # else some rows were dropped, or a label was added
    parts = {name: rows.take(getattr(indices, name), scratch, places.get(name), movable, told) for name in PARTS}
    return parts, rows.dropped


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


@dataclass(frozen=True, kw_only=True, eq=False)
class CompleteRows:
    """Rows with everything that is added to them.

    Args:
        frames: raw rows of each part.
        targets: [N, T] of each part.
        weights: [N] of the parts that have some.
        counts: rows of each part, sampled negatives, and rows that equal a training row (`count_repeats`).
    """

    frames: Mapping[str, pl.DataFrame]
    targets: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    counts: Mapping[str, int]


def complete(
    labelled: Mapping[str, LabelledRows],
    schema: Schema,
    *,
    seed: int,
    add: PreparationSettings,
    scratch: Scratch = IN_MEMORY,
) -> CompleteRows:
    """Rows with target encoding, histories and negatives; the arguments and errors are those of `encode_parts`."""
    frames = {name: rows.frame for name, rows in labelled.items()}
    targets = {name: rows.y for name, rows in labelled.items()}
    repeats = count_repeats(frames, schema, scratch)  # of the raw rows, without sampled negatives
    mains = {name: rows.main for name, rows in labelled.items()}
    if add.target_encoding is not None:
        frames = add_target_encoding(frames, mains, add.target_encoding, seed=seed, scratch=scratch)
    if add.history is not None:
        order = check_history(frames["train"], schema, add.history, scratch)
        # Before sampling negatives: an item that a user never used is not an event of that user.
        form = schema.time_format if order == schema.time else None
        settings = add.history.of_schema(schema)
        frames = add_histories(frames, mains, settings, order=order, order_format=form, scratch=scratch)
    counts = {}
    weights = {name: rows.weight for name, rows in labelled.items() if rows.weight is not None}
    _check_weights(weights, add.negatives)
    if add.negatives is not None:
        before = sum(map(len, targets.values()))
        frames, targets = with_negatives(frames, targets, schema, add.negatives.of_schema(schema), seed, scratch)
        counts["negatives_drawn"] = sum(map(len, targets.values())) - before
    _check_classes({name: y[weights[name] > 0] if name in weights else y for name, y in targets.items()}, schema)
    counts |= {f"{name}_rows": frame.height for name, frame in frames.items()}
    return CompleteRows(frames=frames, targets=targets, weights=weights, counts=counts | repeats)


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
                log = ", in a log of positives alone add [negatives]" if positive else ""
                raise DataError(
                    f"the {name} rows must hold both classes: all {len(y)} are {found} by the rule of label "
                    f"{label.name!r}; check the rule, use another split{log or ', or add rows of the other class'}"
                )
