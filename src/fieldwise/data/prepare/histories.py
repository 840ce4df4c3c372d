"""Histories: the earlier items of each row's user, as a column of lists."""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.rows_by_value import group_rows, rank_texts
from fieldwise.data.prepare.settings import HistorySettings
from fieldwise.data.read.mapped_rows import join_rows
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import MemoryBudget


def check_history(
    frame: pl.DataFrame, schema: Schema, settings: HistorySettings, *, budget: MemoryBudget
) -> None:
    """Check that histories can be made from a table, and that a field reads them."""
    order = settings.order or schema.time
    if order is None:
        raise ConfigError(
            "a history needs an order: give history.order, or the schema's time, a column of times"
        )
    user, item = settings.of_schema(schema).ids
    label_columns = {label.column for label in schema.labels}
    for what, name in (("user", user), ("item", item), ("order", order)):
        if name not in frame.columns:
            hint = nearest(name, frame.columns)
            raise DataError(
                f"a history's {what} column must be in the table: {name!r} is not; {hint}"
            )
        # a row's history would depend on its own label
        if name in label_columns:
            raise SchemaError(
                f"a history's {what} must not be the label's column {name!r}: choose another column"
            )
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
    order_values(frame, order, "order", schema.format_of(order), schema.missing, budget=budget)


def add_histories(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    settings: HistorySettings,
    *,
    order: str,
    order_format: str | None = None,
    budget: MemoryBudget,
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with a column of histories; `targets` are those of the main label.

    The rows of `train` are the events. `order` is the column that orders rows, `order_format` the
    format of its text.

    >>> log = pl.DataFrame({"user": [1, 1, 1, 2], "film": ["a", "b", "c", "d"], "day": [1, 2, 2, 1]})
    >>> ask = HistorySettings(user="user", item="film")
    >>> made = add_histories({"train": log}, {"train": np.array([1, 1, 0, 1])}, ask, order="day", budget=MemoryBudget())
    >>> made["train"]["history"].to_list()
    [[], ['a'], ['a'], []]
    """
    user_column, item_column = settings.ids
    columns = list(dict.fromkeys((user_column, item_column, order)))
    # All parts at once, so that a text column of times is parsed the same way in each.
    rows = pl.concat([frame.select(columns) for frame in frames.values()])
    times = order_values(rows, order, "order", order_format, budget=budget)
    is_event = _which_are_events(
        frames, targets, item_column, settings.positives_only, budget=budget
    )
    events, start, end = _history_bounds(
        rows.get_column(user_column), times, is_event, settings.max_length, budget=budget
    )
    item_cells = (
        rows.select(pl.col(item_column).gather(events[chunk]))
        for chunk in budget.chunk_slices(len(events))
    )
    items = join_rows(item_cells, budget=budget).to_series()

    def lists(chunk: slice) -> pl.DataFrame:
        return _lists(items, start[chunk], end[chunk], settings.column)

    frames_with_histories = {}
    first = 0
    for name, frame in frames.items():
        chunks = (
            slice(first + chunk.start, first + chunk.stop)
            for chunk in budget.chunk_slices(frame.height)
        )
        histories = join_rows(map(lists, chunks), budget=budget).to_series()
        frames_with_histories[name] = frame.with_columns(histories)
        first += frame.height
    return frames_with_histories


def _which_are_events(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    item_column: str,
    positives_only: bool,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """Which rows of all parts, one after another, are events [N]: training rows with an item, positive if asked."""
    is_event = budget.empty(sum(frame.height for frame in frames.values()), np.bool_)
    first = 0
    for name, frame in frames.items():
        for chunk in budget.chunk_slices(frame.height):
            rows = slice(first + chunk.start, first + chunk.stop)
            if name != "train":
                is_event[rows] = False
                continue
            is_event[rows] = as_text(frame[item_column][chunk]).is_not_null().to_numpy()
            if positives_only:
                is_event[rows] &= targets[name][chunk] > 0
        first += frame.height
    return is_event


def _history_bounds(
    users: pl.Series,
    times: np.ndarray,
    is_event: np.ndarray,
    max_length: int,
    *,
    budget: MemoryBudget,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows [M] of all events, by user and time, and the `start` and `end` [N] among them of each row's history."""

    def zeros(_: slice) -> np.ndarray:
        return np.zeros(1, np.int64)

    # Rows without a user have no history.
    start = budget.fill(len(users), np.int64, zeros)
    end = budget.fill(len(users), np.int64, zeros)

    def events() -> Iterator[np.ndarray]:
        events_of_earlier_users = 0
        for rows, user, _ in group_rows(*rank_texts(users, budget=budget), times, budget=budget):
            happened = is_event[rows]
            time = times[rows]
            events_before = events_of_earlier_users + np.cumsum(happened) - happened

            is_new_user = np.append(True, user[1:] != user[:-1])
            is_new_time = is_new_user | np.append(True, time[1:] != time[:-1])
            before_user = events_before[_last_true(is_new_user)]
            before_time = events_before[_last_true(is_new_time)]
            start[rows] = np.maximum(before_user, before_time - max_length)
            end[rows] = before_time

            events_of_earlier_users += int(happened.sum())
            yield rows[happened]

    return budget.concatenate(events(), np.int64), start, end


def _last_true(flags: np.ndarray) -> np.ndarray:
    """The index of the last true flag up to and with each one [N]; the first flag is true."""
    return np.asarray(np.maximum.accumulate(np.where(flags, np.arange(len(flags)), 0)))


def _lists(items: pl.Series, start: np.ndarray, end: np.ndarray, name: str) -> pl.DataFrame:
    """`items[start[n]:end[n]]` for each row n, as a column of lists."""
    numbers = pl.select(number=pl.int_ranges(pl.Series(start), pl.Series(end)))
    # null for a row without items
    flat = numbers.with_row_index("row").explode("number", empty_as_null=True)
    cells = flat.select("row", item=items.gather(flat["number"]))
    lists = cells.group_by("row", maintain_order=True).agg(pl.col("item").drop_nulls().alias(name))
    return lists.select(name)
