"""The direction of each field: the mean prediction by its value (partial dependence, Friedman 2001).

Letters: K sample rows, V values.
"""

from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.columns import as_list, as_number, as_text
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import DataError
from fieldwise.schema import Field, Schema
from fieldwise.schema.ids import named_id

NUMBERS = 8  # maximum number of quantiles of a numeric field
VALUES = 10  # maximum number of values of another field


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
    several = [one for one in effects if len(one["predictions"]) > 1]
    return sorted(several, key=lambda one: -float(np.ptp(one["predictions"])))


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

    Values are at most eight quantiles of the rows if they are numbers (also given as `numbers`),
    else the ten most frequent ones, for a list each of them alone. Other fields that read the same
    column change with it.
    """
    rows = (
        bundle.samples if rows is None else as_table(rows, text_columns=bundle.schema.text_columns)
    )
    if not rows.height:
        raise DataError(
            "a field's effect is a mean over rows, but the bundle has no sample rows: give some"
        )
    texts, cells, numbers = _values(bundle, field, rows)
    repeated = pl.concat([rows] * len(texts)) if texts else rows.head(0)
    places = np.repeat(np.arange(len(texts)), rows.height)
    prediction = bundle.predict(repeated.with_columns(cells.gather(places).alias(field.column)))
    if bundle.schema.more_labels:
        names = [one.name for one in bundle.schema.labels]
        prediction = prediction[:, 0 if label is None else names.index(label)]
    mean = prediction.reshape(len(texts), rows.height).mean(1)
    more = {} if numbers is None else {"numbers": numbers}
    return {"field": field.name, "values": texts, **more, "predictions": mean.tolist()}


def _values(
    bundle: Bundle, field: Field, rows: pl.DataFrame
) -> tuple[list[str], pl.Series, list[float] | None]:
    """Values as text and as cells [V], and as numbers if they are."""
    column = rows.get_column(field.column)
    if field.cell == "number":
        what = f"column {field.column!r}"
        missing = bundle.schema.missing
        number = as_number(column, what, form=field.number_format, missing=missing).to_numpy()
        order = np.argsort(number, kind="stable")[: np.count_nonzero(~np.isnan(number))]
        order = order[
            np.unique(
                np.linspace(0, max(len(order) - 1, 0), min(NUMBERS, len(order))).round().astype(int)
            )
        ]
        numbers, first = np.unique(number[order], return_index=True)
        cells = column.gather(order[first])
        texts = [
            str(cell) if column.dtype.is_temporal() else f"{n:.6g}"
            for cell, n in zip(cells, numbers, strict=True)
        ]
        return texts, cells, numbers.tolist()
    fitted = bundle.encoder.fitted[bundle.schema.fields.index(field)]
    if isinstance(fitted, Vocabulary):
        texts = list(fitted.values[:VALUES])
    else:
        each = (
            as_list(column, field.separator).explode() if field.cell == "list" else as_text(column)
        )
        counts = (
            each.drop_nulls()
            .value_counts(name="rows")
            .sort("rows", each.name, descending=[True, False])
        )
        texts = counts.get_column(each.name).head(VALUES).to_list()
    if field.cell == "list":
        return texts, pl.Series([[text] for text in texts], dtype=pl.List(pl.String)), None
    return texts, pl.Series(texts, dtype=pl.String), None
