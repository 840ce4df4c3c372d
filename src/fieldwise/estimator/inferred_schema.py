"""The schema of a table, or of an array and its labels, where an estimator was given none."""

from typing import Any

import polars as pl
from sklearn.utils.multiclass import type_of_target

from fieldwise.data.encode.columns import as_text
from fieldwise.data.infer.findings import Note
from fieldwise.data.infer.inference import Inference
from fieldwise.data.infer.label import guess_label
from fieldwise.data.infer.schema import infer_schema
from fieldwise.errors import DataError
from fieldwise.estimator.tables import estimator_table, is_array, label_column
from fieldwise.schema import Numeric, Schema


def inferred_schema(X: Any, y: Any) -> Inference:
    """The inferred schema, for a binary label; an array of numbers has a numeric field per column.

    Errors:
        DataError: an array without `y`, or a label that is not binary.
        SchemaError: as for `infer_schema`.
    """
    frame = estimator_table(X)
    if y is None:
        if is_array(X):
            raise DataError(
                "an array has no label: Recommender requires y to be passed, but the target y is None"
            )
        inference = infer_schema(frame)
        label = frame.get_column(inference.schema.label.column)
        if inference.schema.label.task != "binary":
            _check_binary(label)
        return inference

    name = getattr(y, "name", None)
    if not isinstance(name, str) or not name or name in frame.columns:
        name = "y"
    label = label_column(y, name, frame.height)
    if is_array(X) and all(dtype.is_numeric() or dtype == pl.Boolean for dtype in frame.dtypes):
        _check_binary(label)
        return _numeric_fields(frame, label)
    inference = infer_schema(frame.with_columns(label), label=label.name)
    if inference.schema.label.task != "binary":
        _check_binary(label)
    return inference


def _check_binary(label: pl.Series) -> None:
    """Check that a label has two values."""
    count = as_text(label).n_unique()
    if count == 2:
        return
    kind = type_of_target(label.drop_nulls().to_numpy()) if count > 2 else "one class"
    values = "values" if count > 1 else "value"
    raise DataError(
        f"Only binary classification is supported without a schema, found {kind} labels of {count} "
        f"{values} in {label.name!r}: give a Schema whose label defines the positive values, or has "
        "task = 'regression'"
    )


def _numeric_fields(frame: pl.DataFrame, label: pl.Series) -> Inference:
    """A schema with a numeric field for each column of an array of numbers."""
    guess = guess_label(label)
    notes = dict.fromkeys(frame.columns, Note("numeric", "a column of an array of numbers"))
    notes[label.name] = Note("label", guess.reason)
    return Inference(
        schema=Schema(
            fields=tuple(Numeric(name) for name in frame.columns),
            label=guess.label,
        ),
        column_notes=notes,
        column_doubts={label.name: guess.doubt} if guess.doubt else {},
    )
