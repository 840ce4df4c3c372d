"""Tables with labels and weights from what scikit-learn's methods take: X, y and sample_weight."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from scipy.sparse import issparse
from sklearn.utils.validation import check_array

from fieldwise.data.encode.columns import as_text
from fieldwise.data.encode.encoder import check_table
from fieldwise.data.prepare.labels import LabelledRows, labelled_rows
from fieldwise.data.read.tables import as_table
from fieldwise.errors import ConfigError, DataError, Row, first_line
from fieldwise.evaluation.binary import weight_column
from fieldwise.schema import Schema
from fieldwise.storage.scratch import NO_LIMIT


def is_array(X: Any) -> bool:
    """Whether X is an array or a list of rows without names, rather than a table."""
    if isinstance(X, list | tuple) or issparse(X):
        return not (isinstance(X, list) and X and isinstance(X[0], Mapping))
    return hasattr(X, "__array__") and type(X).__module__.partition(".")[0] not in (
        "pandas",
        "polars",
        "pyarrow",
    )


def array_columns(count: int) -> list[str]:
    """The column names of an array: x0, x1 and so on."""
    return [f"x{k}" for k in range(count)]


def estimator_table(X: Any, schema: Schema | None = None) -> pl.DataFrame:
    """A table from anything that `as_table` accepts, or from an array [N, K]; a DataError if it is none.

    A file is read as the schema says, if there is one.
    """
    if not is_array(X):
        return as_table(X, text_columns=() if schema is None else schema.text_columns)

    try:
        array = check_array(X, dtype=None, ensure_all_finite=False)
    except (TypeError, ValueError) as e:
        raise DataError(
            f"X must be a table, or rows of equal length: {' '.join(str(e).split())}"
        ) from None

    columns = []
    for name, values in zip(array_columns(array.shape[1]), array.T, strict=True):
        try:
            cells = np.ascontiguousarray(values) if values.dtype.kind in "biuf" else values.tolist()
            columns.append(pl.Series(name, cells))
        except (TypeError, pl.exceptions.PolarsError) as e:
            raise DataError(
                f"a column must hold values of one kind, argument must be a string or a real number: column {name!r} "
                f"does not ({first_line(e)}); convert it"
            ) from None
    return pl.DataFrame(columns)


def labelled(X: Any, y: Any, schema: Schema, weight: Any = None) -> LabelledRows:
    """A table's rows with targets, from the label's column or from raw labels `y`, and with row weights.

    Errors:
        DataError: labels, weights or the table do not fit each other or the schema; rows are
            counted from 0 in X.
    """
    frame = estimator_table(X, schema)
    check_table(frame, schema, budget=NO_LIMIT)

    if y is None:
        given_labels = []
    elif schema.more_labels:
        given_labels = _columns_of_several_labels(y, schema, frame.height)
    else:
        given_labels = [label_column(y, schema.label.column, frame.height)]
    for column in given_labels:
        frame = _with_label(frame, column)

    try:
        weights = None if weight is None else weight_column(weight, frame.height)
    except DataError as e:
        raise DataError("sample_weight: ", *e.args) from None
    return labelled_rows(frame, schema, weight=weights, budget=NO_LIMIT)


def evaluation_rows(eval_set: Any, schema: Schema) -> LabelledRows:
    """The labelled rows of `eval_set`: a table with the label, (X, y), (X, y, sample_weight), or a list of one tuple.

    Errors:
        ConfigError: several sets, or a tuple of another length.
        DataError: as for `labelled`.
    """
    sets = eval_set if isinstance(eval_set, list) else [eval_set]
    if not all(isinstance(part, tuple) for part in sets):
        return labelled(eval_set, None, schema)
    if len(sets) != 1 or len(sets[0]) not in (2, 3):
        raise ConfigError(
            f"eval_set must be a table, (X, y) or (X, y, sample_weight), as early stopping reads one set; found "
            f"{len(sets)} of {[len(part) for part in sets]} parts: give one"
        )
    X, y, *weights = sets[0]
    return labelled(X, y, schema, *weights)


def _columns_of_several_labels(y: Any, schema: Schema, rows: int) -> list[pl.Series]:
    """The labels' columns of a table `y`, which must have one row for each of a table's `rows`."""
    names = list(dict.fromkeys(label.column for label in schema.labels))
    rule = f"with several labels y must be a table with their columns {', '.join(names)}"
    try:
        table = as_table(y)
    except DataError as e:
        raise DataError(f"{rule}, or be omitted if X has them: ", *e.args) from None

    absent = [name for name in names if name not in table.columns]
    if absent:
        raise DataError(f"{rule}, found no {absent[0]!r} among {', '.join(table.columns)}")
    if table.height != rows:
        raise DataError(
            f"{rule}, one row for each of the table's {rows} rows, found {table.height} rows"
        )
    return [table.get_column(name) for name in names]


def _with_label(frame: pl.DataFrame, given: pl.Series) -> pl.DataFrame:
    """The table with a label's column from y; a DataError if it has another one of that name already."""
    if given.name in frame.columns:
        column_of_X = frame.get_column(given.name)
        differs = _label_texts(column_of_X).ne_missing(_label_texts(given))
        if differs.any():
            row = int(differs.arg_max() or 0)
            raise DataError(
                f"y and the label's column {given.name!r} of X must agree, found {given[row]!r} in y "
                f"and {column_of_X[row]!r} in X in ",
                Row(row),
                f", and {int(differs.sum()):,} such rows of {frame.height:,}: leave out y, or "
                "remove the column from X",
            )
    return frame.with_columns(given)


def _label_texts(labels: pl.Series) -> pl.Series:
    """Labels as text; true and 1 are one label, as in a column without a rule."""
    return as_text(labels.cast(pl.Int8) if labels.dtype == pl.Boolean else labels)


def label_column(y: Any, name: str, rows: int) -> pl.Series:
    """One label's values as a column for a table of `rows` rows."""
    try:
        values = np.asarray(y)
        if values.shape != (rows,):
            raise DataError(
                f"y must hold one label for each of the table's {rows} rows, found shape {values.shape}"
            )
        return pl.Series(name, values.tolist() if values.dtype.kind in "OU" else values)
    except (TypeError, pl.exceptions.PolarsError) as e:
        raise DataError(f"y must hold labels of one kind: {first_line(e)}; convert them") from e
