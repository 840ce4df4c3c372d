"""Adding sampled negatives to the parts of a log."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from fieldwise.data.prepare.labels import read_labels
from fieldwise.data.prepare.negatives import mark_negative, sample_negatives
from fieldwise.data.prepare.raw_rows import take_rows
from fieldwise.data.prepare.settings import PARTS, NegativeSampling
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["with_negatives"]


def with_negatives(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    schema: Schema,
    settings: NegativeSampling,
    seed: int,
    scratch: Scratch = IN_MEMORY,
) -> tuple[dict[str, pl.DataFrame], dict[str, np.ndarray]]:
    """Add sampled negatives to the parts in the settings; positives are the rows with a target above 0.

    With several labels the main one decides, and a sampled row is negative for every label.
    """
    numbers = [label.name for label in schema.more_labels if label.task == "regression"]
    if numbers:
        raise ConfigError(
            f"a sampled negative is negative for every label, but the label {numbers[0]!r} is a regression, which has "
            "no "
            "such value: remove the negatives or that label"
        )
    main = {name: y[:, 0] for name, y in targets.items()}
    positives = {name: take_rows(part, _positive(main[name], scratch), scratch) for name, part in frames.items()}
    log = pl.concat(list(positives.values()))
    values = {label.column: _negative_value(frames, label.column) for label in schema.labels}
    for label in schema.labels:
        if values[label.column] in label.drop_values:
            raise DataError(
                f"a sampled negative must not be dropped: {values[label.column]!r} in column {label.column!r} is among "
                f"the drop_values of label {label.name!r}; change the rule, or remove the negatives"
            )
    all_frames, all_targets = dict(frames), dict(targets)
    for number, name in enumerate(PARTS):
        if name not in frames or name not in settings.parts:
            continue
        has_negatives = bool((main[name] <= 0).any())
        if (settings.only_where_missing and has_negatives) or positives[name].is_empty():
            continue
        added = sample_negatives(
            positives[name],
            log=log,
            settings=settings,
            seed=seed * len(PARTS) + number,
            label=(schema.label.column, values[schema.label.column]),
            scratch=scratch,
        )
        for label in schema.more_labels:
            if label.column != schema.label.column:
                added = mark_negative(added, label.column, values[label.column])
        y = read_labels(added, schema.labels, all_negative=True, scratch=scratch).y
        for label, target in zip(schema.labels, y.T, strict=True):
            if (target > 0).any():
                raise DataError(
                    f"a sampled negative must not be positive: {values[label.column]!r} in column {label.column!r} is "
                    "positive by the label's rule; change the rule"
                )
        all_frames[name] = pl.concat([frames[name], added])
        all_targets[name] = scratch.empty((len(main[name]) + len(y), len(schema.labels)), np.float32)
        all_targets[name][: len(main[name])], all_targets[name][len(main[name]) :] = targets[name], y
    return all_frames, all_targets


def _positive(main: np.ndarray, scratch: Scratch) -> np.ndarray:
    """The numbers of rows with a target above 0."""
    found = scratch.growing(np.int64)
    for at in scratch.pieces(len(main)):
        found.add(np.flatnonzero(main[at] > 0) + at.start)
    return found.whole()


def _negative_value(frames: Mapping[str, pl.DataFrame], column: str) -> int | float:
    """The value for a negative in a label's column: its smallest value that is not positive, else 0."""
    values = pl.concat([part.get_column(column) for part in frames.values()])
    low = values.min() if values.dtype.is_numeric() else 0
    return low if isinstance(low, (int, float)) and low <= 0 else 0
