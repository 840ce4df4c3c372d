"""The schema of a table, or of an array and its labels, and the rule of a label, where an estimator was given none."""

import dataclasses
import warnings
from typing import Any

import polars as pl
from sklearn.utils.multiclass import type_of_target

from fieldwise.data.encode.columns import as_text
from fieldwise.data.infer.findings import Note
from fieldwise.data.infer.inference import Inference
from fieldwise.data.infer.label import LabelCandidate, guess_label
from fieldwise.data.infer.schema import infer_schema
from fieldwise.errors import DataError, SchemaError
from fieldwise.estimator.tables import estimator_table, is_array, label_column
from fieldwise.schema import Numeric, Schema

PLAIN_LABELS = ("0", "1", "true", "false")
LEAST_SHARE_OF_CLASSES = 0.05
"""Of cells that are not plain: fewer are single wrong cells, whose rows an error names."""


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
    if label.dtype == pl.String:
        _checked_guess(label)
    if is_array(X) and all(dtype.is_numeric() or dtype == pl.Boolean for dtype in frame.dtypes):
        _check_binary(label)
        return _numeric_fields(frame, label)
    inference = infer_schema(frame.with_columns(label), label=label.name)
    if inference.schema.label.task != "binary":
        _check_binary(label)
    return inference


def with_label_rule(schema: Schema, frame: pl.DataFrame, y: Any) -> Schema:
    """The schema with a rule for its one label where that has none and the cells are text, by the words' meaning.

    Warns where it is unknown which of two texts is positive.

    Errors:
        DataError: the label has more than two classes.

    >>> from fieldwise import Label
    >>> schema = Schema(fields=(Numeric("price"),), label=Label("bought"))
    >>> with_label_rule(schema, pl.DataFrame({"price": [1.0, 2.0]}), ["no", "yes"]).label.positive_values
    ('yes',)
    """
    label = schema.label
    has_rule = label.positive_values or label.drop_values or label.positive_above is not None
    if label.trials is not None or label.task != "binary" or has_rule or schema.more_labels:
        return schema
    if y is None and label.column not in frame.columns:
        return schema
    column = frame[label.column] if y is None else label_column(y, label.column, frame.height)
    is_plain = as_text(column).str.to_lowercase().is_in(PLAIN_LABELS)
    if not is_plain.any() and column.dtype in (pl.String, pl.Categorical, pl.Enum):
        guess = _checked_guess(column.cast(pl.String))
        if guess.doubt:
            warnings.warn(guess.doubt, stacklevel=3)
        ruled = dataclasses.replace(
            label,
            positive_values=guess.label.positive_values,
            positive_above=guess.label.positive_above,
            drop_values=guess.label.drop_values,
        )
        return dataclasses.replace(schema, label=ruled)
    share_of_others = (~is_plain).mean()
    if isinstance(share_of_others, float) and share_of_others > LEAST_SHARE_OF_CLASSES:
        _check_binary(column)
    return schema


def _checked_guess(label: pl.Series) -> LabelCandidate:
    """What a label of texts means; a DataError if it has several classes that no words order."""
    try:
        return guess_label(label)
    except SchemaError:
        _check_binary(label)
        raise


def _check_binary(label: pl.Series) -> None:
    """Check that a label has two values."""
    count = as_text(label).n_unique()
    if count == 2:
        return
    kind = type_of_target(label.drop_nulls().to_numpy()) if count > 2 else "one class"
    values = "values" if count > 1 else "value"
    of_each = ""
    if kind == "multiclass":
        of_each = "; sklearn.multiclass.OneVsRestClassifier fits one Recommender for each class"
    raise DataError(
        f"Only binary classification is supported without a label's rule, found {kind} labels of {count} "
        f"{values} in {label.name!r}: give a Schema whose label defines the positive values, or has "
        f"task = 'regression'{of_each}"
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
