"""The direction of each field: the mean prediction by its value (partial dependence, Friedman 2001).

Letters: K sample rows, V values.
"""

from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.columns import as_list, as_text, field_numbers, vector_texts
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import DataError
from fieldwise.schema import Field, Schema
from fieldwise.schema.ids import named_id

MAX_QUANTILES = 8
"""Of a field of numbers."""
MAX_VALUES = 10
"""Of another field."""


def effects(
    bundle: Bundle, rows: TableLike | None = None, *, label: str | None = None
) -> list[dict[str, Any]]:
    """The `effect` of every field that is no id, the one with the widest range of predictions first.

    >>> from fieldwise import LR, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(1000, users=50, items=30)
    >>> schema = Schema(fields=(Categorical("device"), Categorical("gender")), label=Label("liked"))
    >>> model = Recommender(schema, LR(), training=TrainingSettings(epochs=1)).fit(log)
    >>> sorted(effects(model.bundle_)[0])
    ['field', 'predictions', 'values']
    """
    return widest_first(
        [effect(bundle, field, rows, label=label) for field in shown_fields(bundle.schema)]
    )


def widest_first(effects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Effects by the range of their predictions, without those of a single value."""
    varying = [effect for effect in effects if len(effect["predictions"]) > 1]
    return sorted(varying, key=lambda effect: -float(np.ptp(effect["predictions"])))


def shown_fields(schema: Schema) -> list[Field]:
    """The fields that are no ids of users or items, nor lists of such ids: those say nothing about other ids."""
    ids = {named_id("user", schema), named_id("item", schema)}
    names = {field.name for field in schema.fields if field.column in ids}
    return [
        field for field in schema.fields if field.name not in names and field.shares not in names
    ]


def effect(
    bundle: Bundle, field: Field, rows: TableLike | None = None, *, label: str | None = None
) -> dict[str, Any]:
    """The mean prediction over sample rows that all have one value of a field, for several of its values.

    Values are at most eight quantiles of the rows if they are numbers that have an order (also
    given as `numbers`), else the ten most frequent ones, for a list each of them alone; of vectors,
    the first ten. Other fields that read the same column change with it.
    """
    rows = (
        bundle.samples if rows is None else as_table(rows, text_columns=bundle.schema.text_columns)
    )
    if not rows.height:
        raise DataError(
            "a field's effect is a mean over rows, but the bundle has no sample rows: give some"
        )
    column = rows.get_column(field.column)
    plain: dict[str, Any] = {"field": field.name}
    if field.cell == "number" and field.is_ordered:
        numbers = field_numbers(field, column, bundle.schema.missing).to_numpy()
        quantile_rows = _quantile_rows(numbers)
        cells = column.gather(quantile_rows)
        plain["values"] = _number_texts(numbers[quantile_rows], cells)
        plain["numbers"] = numbers[quantile_rows].tolist()
    elif field.cell == "vector":
        cells = column.drop_nulls().unique(maintain_order=True).head(MAX_VALUES)
        plain["values"] = vector_texts(cells).fill_null("").to_list()
    elif field.cell == "number":
        is_present = field_numbers(field, column, bundle.schema.missing).is_not_null()
        cells = _most_frequent(column.filter(is_present)).sort()
        plain["values"] = as_text(cells).to_list()
    else:
        texts = _frequent_values(bundle, field, column)
        cells = pl.Series(texts, dtype=pl.String)
        if field.cell == "list":
            cells = pl.Series([[text] for text in texts], dtype=pl.List(pl.String))
        plain["values"] = texts
    plain["predictions"] = _mean_predictions(bundle, rows, field.column, cells, label)
    return plain


def _number_texts(numbers: np.ndarray, cells: pl.Series) -> list[str]:
    """Numbers as text, or the times that they stand for."""
    if cells.dtype.is_temporal():
        return [str(cell) for cell in cells]
    return [f"{number:.6g}" for number in numbers]


def _quantile_rows(numbers: np.ndarray) -> np.ndarray:
    """The numbers of rows with quantiles of the numbers present, each number once, ascending."""
    ascending = np.argsort(numbers, kind="stable")[: np.count_nonzero(~np.isnan(numbers))]
    last = max(len(ascending) - 1, 0)
    positions = np.linspace(0, last, min(MAX_QUANTILES, len(ascending))).round().astype(int)
    rows = ascending[np.unique(positions)]
    _, first = np.unique(numbers[rows], return_index=True)
    distinct: np.ndarray = rows[first]
    return distinct


def _frequent_values(bundle: Bundle, field: Field, column: pl.Series) -> list[str]:
    """The most frequent values of a field: of its vocabulary, or of the rows if it has none."""
    fitted = bundle.encoder.fitted[bundle.schema.fields.index(field)]
    if isinstance(fitted, Vocabulary):
        return list(fitted.values[:MAX_VALUES])
    values = as_list(column, field.separator).explode() if field.cell == "list" else as_text(column)
    return _most_frequent(values).to_list()


def _most_frequent(values: pl.Series) -> pl.Series:
    """The most frequent of some values, of equally frequent ones the first in their order."""
    counts = values.drop_nulls().value_counts(name="rows")
    most_frequent = counts.sort("rows", values.name, descending=[True, False])
    return most_frequent.get_column(values.name).head(MAX_VALUES)


def _mean_predictions(
    bundle: Bundle, rows: pl.DataFrame, column: str, cells: pl.Series, label: str | None
) -> list[float]:
    """The mean prediction of the rows with each of the cells [V] in the column."""
    values = len(cells)
    repeated = pl.concat([rows] * values) if values else rows.head(0)
    cell_of_row = np.repeat(np.arange(values), rows.height)
    prediction = bundle.predict(repeated.with_columns(cells.gather(cell_of_row).alias(column)))
    position = bundle.schema.label_number(label)
    if bundle.schema.more_labels:
        prediction = prediction[:, position]
    by_value = prediction.reshape(values, rows.height)
    means: list[float] = by_value.mean(1).tolist()
    return means
