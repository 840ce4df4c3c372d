"""Point-in-time histories: for every row, the earlier items of its user, from training rows only."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.settings import HistorySettings
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Schema

__all__ = ["add_histories", "check_history"]


def check_history(frame: pl.DataFrame, schema: Schema, settings: HistorySettings) -> str:
    """Check that histories can be made from a table, and that a field reads them.

    Args:
        frame: the table.
        schema: its schema.
        settings: columns and length.

    Returns:
        The column that orders rows.

    Errors:
        ConfigError: neither the settings nor the schema have a column of the order, of users or of items.
        DataError: a column is missing, the new one exists already, or a row has no valid order value.
        SchemaError: no field reads the new column, or a column is a label's.
    """
    order = settings.order or schema.time
    if order is None:
        raise ConfigError("a history needs an order: give history.order, or the schema's time, a column of times")
    user, item = settings.of_schema(schema).ids
    for what, name in (("user", user), ("item", item), ("order", order)):
        if name not in frame.columns:
            hint = nearest(name, frame.columns)
            raise DataError(f"a history's {what} column must be in the table: {name!r} is not; {hint}")
        if name in {label.column for label in schema.labels}:  # a row's history would depend on its own label
            raise SchemaError(f"a history's {what} must not be the label's column {name!r}: choose another column")
    if settings.column in frame.columns:
        raise DataError(
            f"a history needs a new column, but the table has {settings.column!r} already: set history.column to "
            "another name, or read the table's own without [history]"
        )
    if settings.column not in schema.columns:
        raise SchemaError(
            f"a field must read the histories: the schema has none of column {settings.column!r}; add {{ kind = "
            f'"sequence", name = "{settings.column}", shares = NAME_OF_THE_ITEM_FIELD }}'
        )
    order_values(frame, order, "order", schema.time_format if order == schema.time else None)
    return order


def add_histories(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    settings: HistorySettings,
    *,
    order: str,
    order_format: str | None = None,
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with a column of histories.

    Args:
        frames: tables with the same columns; the rows of `train` are the events.
        targets: targets of the main label, [N] each.
        settings: columns and length, including the columns of users and items (`HistorySettings.of_schema`).
        order: the column that orders rows, from `check_history`.
        order_format: format of its text, if it is the schema's time and that has a format.

    Errors:
        DataError: a row has no valid order value.

    >>> log = pl.DataFrame({"user": [1, 1, 1, 2], "film": ["a", "b", "c", "d"], "day": [1, 2, 2, 1]})
    >>> ask = HistorySettings(user="user", item="film")
    >>> made = add_histories({"train": log}, {"train": np.array([1, 1, 0, 1])}, ask, order="day")
    >>> made["train"]["history"].to_list()
    [[], ['a'], ['a'], []]
    """
    user_column, item_column = settings.ids
    # All parts at once, so that a text column of times is parsed the same way in each.
    rows = pl.concat([f.select(list(dict.fromkeys((user_column, item_column, order)))) for f in frames.values()])
    event = np.concatenate(
        [
            (targets[name] > 0) | (not settings.positives_only) if name == "train" else np.zeros(f.height, dtype=bool)
            for name, f in frames.items()
        ]
    )
    user = as_text(rows.get_column(user_column)).rank("dense")  # from 1; missing users are 0
    event &= (user.is_not_null() & as_text(rows.get_column(item_column)).is_not_null()).to_numpy()
    moment = np.unique(order_values(rows, order, "order", order_format), return_inverse=True)[1]
    # One number that increases by user and then by time: searching for it counts the events before a row.
    base = user.fill_null(0).to_numpy().astype(np.int64) * (rows.height + 1)
    events = np.flatnonzero(event)
    events = events[np.argsort((base + moment)[events], kind="stable")]
    places = (base + moment)[events]
    end = np.searchsorted(places, base + moment, side="left")
    start = np.maximum(np.searchsorted(places, base, side="left"), end - settings.max_length)
    lists = _lists(rows.get_column(item_column).gather(events), start, end).alias(settings.column)
    made, first = {}, 0
    for name, f in frames.items():
        made[name] = f.with_columns(lists.slice(first, f.height))
        first += f.height
    return made


def _lists(values: pl.Series, start: np.ndarray, end: np.ndarray) -> pl.Series:
    """`values[start[n]:end[n]]` for every n, as one column of lists."""
    empty = start == end
    # Temporarily an empty list holds one null, stored after the values, so that every row is a group.
    values = values.extend_constant(None, 1)
    start, lengths = np.where(empty, len(values) - 1, start), np.where(empty, 1, end - start)
    row = np.repeat(np.arange(len(start)), lengths)
    place = np.arange(len(row)) + np.repeat(start - (np.cumsum(lengths) - lengths), lengths)
    flat = pl.DataFrame({"row": row, "value": values.gather(place)}).with_columns(pl.col("row").set_sorted())
    lists = flat.group_by("row", maintain_order=True).agg("value").get_column("value")
    none = pl.lit([], dtype=pl.List(values.dtype))
    return pl.select(pl.when(pl.Series(empty)).then(none).otherwise(lists)).to_series()
