"""Point-in-time histories: for every row, the earlier items of its user, from training rows only."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.grouping import group_rows, rank_texts
from fieldwise.data.prepare.ordering import order_numbers
from fieldwise.data.prepare.raw_rows import join_rows
from fieldwise.data.prepare.settings import HistorySettings
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["add_histories", "check_history"]


def check_history(frame: pl.DataFrame, schema: Schema, settings: HistorySettings, scratch: Scratch = IN_MEMORY) -> str:
    """Check that histories can be made from a table, and that a field reads them.

    Args:
        frame: the table.
        schema: its schema.
        settings: columns and length.
        scratch: where the order's values lie, and how many rows are processed at once.

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
    order_numbers(frame, order, "order", schema.time_format if order == schema.time else None, scratch=scratch)
    return order


def add_histories(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    settings: HistorySettings,
    *,
    order: str,
    order_format: str | None = None,
    scratch: Scratch = IN_MEMORY,
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with a column of histories.

    Args:
        frames: tables with the same columns; the rows of `train` are the events.
        targets: targets of the main label, [N] each.
        settings: columns and length, including the columns of users and items (`HistorySettings.of_schema`).
        order: the column that orders rows, from `check_history`.
        order_format: format of its text, if it is the schema's time and that has a format.
        scratch: where the histories lie, and how many rows are processed at once.

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
    event, first = scratch.empty(rows.height, np.bool_), 0
    for name, f in frames.items():
        for at in scratch.pieces(f.height):
            items = as_text(f[item_column][at]).is_not_null().to_numpy()
            own = (targets[name][at] > 0) | (not settings.positives_only) if name == "train" else False
            event[first + at.start : first + at.stop] = items & own
        first += f.height
    spans = _spans(rows, event, user_column, (order, order_format), settings.max_length, scratch)
    numbers = (spans.events[at] for at in scratch.pieces(len(spans.events)))
    values = join_rows((rows.select(pl.col(item_column).gather(one)) for one in numbers), scratch).to_series()
    made, first = {}, 0
    for name, f in frames.items():
        pieces = [slice(first + at.start, first + at.stop) for at in scratch.pieces(f.height)]
        lists = (_lists(values, spans.start[at], spans.end[at]).alias(settings.column).to_frame() for at in pieces)
        made[name] = f.with_columns(join_rows(lists, scratch).to_series())
        first += f.height
    return made


@dataclass(frozen=True, eq=False)
class _Spans:
    """The events of all users, by user and time, and those in each row's history: `events[start[n]:end[n]]`.

    Shape:
        events: [M] int64, row numbers.
        start, end: [N] int64.
    """

    events: np.ndarray
    start: np.ndarray
    end: np.ndarray


def _spans(
    rows: pl.DataFrame,
    event: np.ndarray,
    user: str,
    order: tuple[str, str | None],
    most: int,
    scratch: Scratch,
) -> _Spans:
    values = order_numbers(rows, order[0], "order", order[1], scratch=scratch)
    start, end = (scratch.empty(rows.height, np.int64) for _ in range(2))
    for at in scratch.pieces(rows.height):  # rows without a user have no history
        start[at] = end[at] = 0
    events = scratch.growing(np.int64)
    for users in group_rows(rank_texts(rows.get_column(user), scratch), scratch):
        some = users.sorted_by(values)
        happened, moment = event[some.rows], values[some.rows]
        before = events.length + np.cumsum(happened) - happened  # events of these and of earlier users
        new_user = np.append(True, some.codes[1:] != some.codes[:-1])
        new_time = new_user | np.append(True, moment[1:] != moment[:-1])
        place = np.arange(len(some.rows))
        end[some.rows] = until = before[np.maximum.accumulate(np.where(new_time, place, 0))]
        since = before[np.maximum.accumulate(np.where(new_user, place, 0))]
        start[some.rows] = np.maximum(since, until - most)
        events.add(some.rows[happened])
    return _Spans(events.whole(), start, end)


def _lists(values: pl.Series, start: np.ndarray, end: np.ndarray) -> pl.Series:
    """`values[start[n]:end[n]]` for every n, as one column of lists."""
    lengths = end - start
    full = np.flatnonzero(lengths)
    lengths = lengths[full]
    row = np.repeat(np.arange(len(full)), lengths)
    place = np.arange(len(row)) + np.repeat(start[full] - (np.cumsum(lengths) - lengths), lengths)
    flat = pl.DataFrame({"row": row, "value": values.gather(place)}).with_columns(pl.col("row").set_sorted())
    lists = flat.group_by("row", maintain_order=True).agg("value").get_column("value")
    number = np.full(len(start), len(full), dtype=np.int64)
    number[full] = np.arange(len(full))
    return lists.append(pl.Series([[]], dtype=pl.List(values.dtype))).gather(number)
