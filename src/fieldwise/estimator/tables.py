"""Input of the estimator: arrays, whose columns have no names, tables without a schema, and labels beside them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from scipy.sparse import issparse
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_array

from fieldwise.data.encode.columns import as_text
from fieldwise.data.encode.encoder import check_table
from fieldwise.data.infer.label import guess_label
from fieldwise.data.infer.schema import Inference, infer_schema
from fieldwise.data.prepare.labels import LabelledRows, read_labels
from fieldwise.data.read.tables import as_table
from fieldwise.errors import DataError
from fieldwise.evaluation.binary import weight_column
from fieldwise.schema import Numeric, Schema

__all__ = ["array_columns", "estimator_table", "infer_from", "is_array", "label_column", "labelled"]


def is_array(X: Any) -> bool:
    """Whether X is an array or a list of rows without names, rather than a table."""
    if isinstance(X, list | tuple) or issparse(X):
        return not (X and isinstance(X[0], Mapping)) if isinstance(X, list) else True
    return hasattr(X, "__array__") and type(X).__module__.partition(".")[0] not in ("pandas", "polars", "pyarrow")


def array_columns(count: int) -> list[str]:
    """The column names of an array.

    >>> array_columns(2)
    ['x0', 'x1']
    """
    return [f"x{k}" for k in range(count)]


def estimator_table(X: Any) -> pl.DataFrame:
    """A table from anything that `as_table` accepts, or from an array [N, K] with columns x0, x1 and so on.

    Errors:
        DataError: as for `as_table`; an array that is sparse, complex, empty or not two-dimensional.

    >>> estimator_table(np.zeros((2, 3))).columns
    ['x0', 'x1', 'x2']
    """
    if not is_array(X):
        return as_table(X)
    try:
        array = check_array(X, dtype=None, ensure_all_finite=False)
    except (TypeError, ValueError) as e:
        raise DataError(f"X must be a table, or rows of equal length: {' '.join(str(e).split())}") from None
    return pl.DataFrame([_series(name, array[:, k]) for k, name in enumerate(array_columns(array.shape[1]))])


def _series(name: str, values: np.ndarray) -> pl.Series:
    if values.dtype.kind in "biuf":
        return pl.Series(name, np.ascontiguousarray(values))
    try:
        return pl.Series(name, values.tolist())
    except (TypeError, pl.exceptions.PolarsError) as e:
        raise DataError(
            f"a column must hold values of one kind, argument must be a string or a real number: column {name!r} does "
            f"not ({str(e).splitlines()[0]}); convert it"
        ) from None


def infer_from(X: Any, frame: pl.DataFrame, y: pl.Series | None) -> Inference:
    """The inferred schema of a table or an array, with labels in one of its columns or given separately.

    An array of numbers has a numeric field per column; for anything else see `infer_schema`.

    Args:
        X: the table or array as given.
        frame: the result of `estimator_table`.
        y: separate labels, under a name that no column has.

    Errors:
        SchemaError: the schema cannot be inferred. DataError: an array without labels, or more than two classes.
    """
    if y is None:
        if is_array(X):
            raise DataError("an array has no label: Recommender requires y to be passed, but the target y is None")
        found = infer_schema(frame)
    elif is_array(X) and all(kind.is_numeric() or kind == pl.Boolean for kind in frame.dtypes):
        _check_two_classes(y)
        guess = guess_label(y)
        notes = dict.fromkeys(frame.columns, "numeric: a column of an array of numbers") | {y.name: guess.reason}
        schema = Schema(fields=tuple(Numeric(name) for name in frame.columns), label=guess.label)
        return Inference(schema=schema, notes=notes, doubts={y.name: guess.doubt} if guess.doubt else {})
    else:
        found = infer_schema(frame.with_columns(y), label=y.name)
    if found.schema.label.task != "binary":
        column = frame.get_column(found.schema.label.column) if y is None else y
        _check_two_classes(column)
    return found


def _check_two_classes(y: pl.Series) -> None:
    values = as_text(y).n_unique()
    if values != 2:
        kind = type_of_target(y.drop_nulls().to_numpy()) if values > 2 else "one class"
        raise DataError(
            f"Only binary classification is supported without a schema, found {kind} labels of {values} "
            f"value{'s' if values > 1 else ''} in {y.name!r}: give a Schema whose label defines the positive values, "
            "or has task = 'regression'"
        )


def labelled(X: Any, y: Any, schema: Schema, weight: Any = None) -> LabelledRows:
    """A table's rows with targets, from the label's column or from raw labels `y`.

    Args:
        X: the table.
        y: one label's values [N]; with several labels a table of N rows with their columns.
        schema: the schema.
        weight: row weights [N], or None.

    Errors:
        DataError: not one label or finite weight per row, labels of several types, labels outside the label's rule, or
            a table that does not fit the schema; rows are counted from 0 in X.
    """
    frame = estimator_table(X)
    check_table(frame, schema)
    if y is not None and schema.more_labels:
        frame = frame.with_columns(_columns(y, schema, frame.height))
    elif y is not None:
        frame = frame.with_columns(label_column(y, schema.label.column, frame.height))
    try:
        weights = None if weight is None else weight_column(weight, frame.height)
    except DataError as e:
        raise DataError(f"sample_weight: {e}") from None
    return read_labels(frame, schema.labels, weight=weights)


def _columns(y: Any, schema: Schema, rows: int) -> list[pl.Series]:
    names = list(dict.fromkeys(label.column for label in schema.labels))
    rule = f"with several labels y must be a table with their columns {', '.join(names)}"
    try:
        table = as_table(y)
    except DataError as e:
        raise DataError(f"{rule}, or be omitted if X has them: {e}") from None
    absent = [name for name in names if name not in table.columns]
    if absent:
        raise DataError(f"{rule}, found no {absent[0]!r} among {', '.join(table.columns)}")
    if table.height != rows:
        raise DataError(f"{rule}, one row for each of the table's {rows} rows, found {table.height} rows")
    return [table.get_column(name) for name in names]


def label_column(y: Any, name: str, rows: int) -> pl.Series:
    """One label's values as a column for a table with `rows` rows."""
    try:
        values = np.asarray(y)
        if values.shape != (rows,):
            raise DataError(f"y must hold one label for each of the table's {rows} rows, found shape {values.shape}")
        return pl.Series(name, values.tolist() if values.dtype.kind in "OU" else values)
    except (TypeError, pl.exceptions.PolarsError) as e:
        raise DataError(f"y must hold labels of one kind: {str(e).splitlines()[0]}; convert them") from e
