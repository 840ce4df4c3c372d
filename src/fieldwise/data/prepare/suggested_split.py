"""A suitable split for a table, with the reason."""

import numpy as np
import polars as pl

from fieldwise.data.prepare.labels import LabelledRows, read_labels, with_event_label
from fieldwise.data.prepare.settings import RandomSplit, SplitSettings, TimeSplit
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.read.row_numbers import renumbering_rows
from fieldwise.errors import DataError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import NO_LIMIT

_LEAST_ROWS_TO_STRATIFY = 10
"""Of the rarer class, so that a stratified split leaves some in each part."""


def suggest_split(
    frame: pl.DataFrame, schema: Schema, *, only_positives: bool = False
) -> tuple[SplitSettings, str]:
    """A suitable split for a table, and the reason: by time, else at random.

    With `only_positives` every row is positive, and negatives will be sampled.

    Errors:
        DataError: too few rows or only one class, so that no split is possible.

    >>> from fieldwise import Categorical, Label
    >>> schema = Schema(fields=(Categorical("x"),), label=Label("y"), time="day")
    >>> rows = pl.DataFrame({"x": [1, 2] * 20, "day": range(40), "y": [0, 1, 1, 0] * 10})
    >>> suggest_split(rows, schema)[0].kind
    'time'
    """
    rows = read_labels(
        with_event_label(frame, schema, only_positives),
        schema.labels,
        missing=schema.missing,
        budget=NO_LIMIT,
    )
    why_not = "no column orders the rows"
    if schema.time is not None:
        why_not = _fault(rows, schema, TimeSplit(), only_positives)
        if not why_not:
            return (
                TimeSplit(),
                f"the latest rows by {schema.time!r} are test rows, those before them validation rows",
            )
        why_not = f"a split by {schema.time!r} is not possible: {why_not}"
    least = int(np.unique(rows.main, return_counts=True)[1].min())
    has_classes = schema.label.task == "binary" and schema.label.trials is None
    stratify = has_classes and least >= _LEAST_ROWS_TO_STRATIFY and not only_positives
    split = RandomSplit(stratify=stratify)
    fault = _fault(rows, schema, split, only_positives)
    if fault:
        raise DataError(f"a recipe needs training, validation and test rows: {fault}")
    return split, f"rows are split at random: {why_not}"


def _fault(rows: LabelledRows, schema: Schema, split: SplitSettings, only_positives: bool) -> str:
    """The reason why a split does not work, or an empty text."""
    try:
        with renumbering_rows(rows.row_numbers):
            parts = split_table(rows.frame, split, schema, y=rows.main, budget=NO_LIMIT)
    except DataError as e:
        return str(e)
    if schema.label.task == "binary" and not only_positives:
        for name in ("train", "valid", "test"):
            y = rows.main[getattr(parts, name)]
            if y.min() == y.max():
                return f"all {len(y)} {name} rows would be {'positive' if y[0] else 'negative'}"
    return ""
