"""Columns that are derived from training rows: each row's history, and the mean label of each category.

A history holds the earlier items of the row's user. The mean label of a category, such as an item's mean rating, is for
numeric fields (target encoding).
"""

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import group_rows, order_values, rank_texts
from fieldwise.data.prepare.settings import HistorySettings, TargetEncoding
from fieldwise.data.read.arrow_files import join_rows
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Schema
from fieldwise.storage.scratch import IN_MEMORY, Scratch


def check_history(frame: pl.DataFrame, schema: Schema, settings: HistorySettings, scratch: Scratch = IN_MEMORY) -> str:
    """Check that histories can be made from a table, and that a field reads them.

    Returns:
        The column that orders rows.
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
    order_values(frame, order, "order", schema.time_format if order == schema.time else None, scratch)
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

    The rows of `train` are the events; `targets` are those of the main label, [N] each. `order` comes from
    `check_history`, and `order_format` is the format of its text.

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
    events, start, end = _spans(rows, event, user_column, (order, order_format), settings.max_length, scratch)
    numbers = (events[at] for at in scratch.pieces(len(events)))
    values = join_rows((rows.select(pl.col(item_column).gather(one)) for one in numbers), scratch).to_series()
    made, first = {}, 0
    for name, f in frames.items():
        pieces = [slice(first + at.start, first + at.stop) for at in scratch.pieces(f.height)]
        lists = (_lists(values, start[at], end[at]).alias(settings.column).to_frame() for at in pieces)
        made[name] = f.with_columns(join_rows(lists, scratch).to_series())
        first += f.height
    return made


def _spans(
    rows: pl.DataFrame, event: np.ndarray, user: str, order: tuple[str, str | None], most: int, scratch: Scratch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows [M] of all events, by user and time, and the `start` and `end` [N] among them of each row's history."""
    values = order_values(rows, order[0], "order", order[1], scratch)

    def none(at: slice) -> np.ndarray:
        return np.zeros(at.stop - at.start, np.int64)

    start, end = (scratch.fill(rows.height, np.int64, none) for _ in range(2))  # rows without a user have no history
    events = scratch.growing(np.int64)
    for some, users, _ in group_rows(*rank_texts(rows.get_column(user), scratch), values, scratch):
        happened, moment = event[some], values[some]
        before = events.length + np.cumsum(happened) - happened  # events of these and of earlier users
        new_user = np.append(True, users[1:] != users[:-1])
        new_time = new_user | np.append(True, moment[1:] != moment[:-1])
        place = np.arange(len(some))
        end[some] = until = before[np.maximum.accumulate(np.where(new_time, place, 0))]
        since = before[np.maximum.accumulate(np.where(new_user, place, 0))]
        start[some] = np.maximum(since, until - most)
        events.add(some[happened])
    return events.whole(), start, end


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


def check_target_encoding(frame: pl.DataFrame, schema: Schema, settings: TargetEncoding) -> None:
    """Check that a table can be target-encoded, and that a field reads each new column."""
    for name, made in zip(settings.columns, settings.made, strict=True):
        if name not in frame.columns:
            raise DataError(
                f"target_encoding needs column {name!r}, which the table does not have: {nearest(name, frame.columns)}"
            )
        if name in {label.column for label in schema.labels}:
            raise SchemaError(f"target_encoding must not encode the label's column {name!r}: choose another column")
        if made in frame.columns:
            raise DataError(
                f"target_encoding makes column {made!r}, but the table has one already: read the table's own without "
                "[target_encoding], or rename it"
            )
        if made not in schema.columns:
            raise SchemaError(
                f"a field must read the encoded column: the schema has none of column {made!r}; add "
                f'{{ kind = "numeric", name = "{made}" }}'
            )


def add_target_encoding(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    settings: TargetEncoding,
    *,
    seed: int,
    scratch: Scratch = IN_MEMORY,
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with the target-encoded columns, float64, null for categories without rows.

    `targets` are those of the main label, [N] for each part.
    """
    made = dict(frames)
    folds = scratch.numbers(frames["train"].height)
    np.random.default_rng(seed).shuffle(folds)
    for at in scratch.pieces(len(folds)):
        folds[at] %= settings.folds
    for column, new in zip(settings.columns, settings.made, strict=True):
        ranks, counts = rank_texts(pl.concat([_texts(frame, column, scratch) for frame in frames.values()]), scratch)
        ends = np.cumsum([frame.height for frame in frames.values()])
        codes = dict(zip(frames, np.split(ranks, ends[:-1]), strict=True))
        for name in frames:
            source = name if settings.source == "own-part" else "train"
            own_folds = folds if name == "train" and settings.source == "train" else None
            means = _mean_labels(codes[source], targets[source], len(counts), own_folds, settings, scratch)
            pieces = (
                means(codes[name][at], None if own_folds is None else own_folds[at])
                for at in scratch.pieces(frames[name].height)
            )
            joined = join_rows((pl.DataFrame({new: one}).fill_nan(None) for one in pieces), scratch)
            made[name] = made[name].with_columns(joined.to_series())
    return made


def _texts(frame: pl.DataFrame, column: str, scratch: Scratch) -> pl.Series:
    """A column's cells as text, so that those of parts of other types are equal."""
    pieces = (as_text(frame[column][at]).to_frame() for at in scratch.pieces(frame.height))
    return join_rows(pieces, scratch).to_series()


def _mean_labels(
    code: np.ndarray, y: np.ndarray, size: int, folds: np.ndarray | None, settings: TargetEncoding, scratch: Scratch
) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
    """A function that gives the mean label of the category [M] of rows; with folds [M], over the other folds' rows.

    Sums of the labels are added in the order of the rows, so that pieces do not matter.
    """
    number = settings.folds if folds is not None else 0
    count, total = np.zeros(size, np.int64), np.zeros(size)  # by category
    cells, cell_total = np.zeros(size * number, np.int64), np.zeros(size * number)  # by category and fold
    in_fold, fold_total = np.zeros(number, np.int64), np.zeros(number)
    for at in scratch.pieces(len(code)):
        count += np.bincount(code[at], minlength=size)
        np.add.at(total, code[at], y[at])
        if folds is not None:
            cell = code[at].astype(np.int64) * number + folds[at]
            cells += np.bincount(cell, minlength=len(cells))
            np.add.at(cell_total, cell, y[at])
            in_fold += np.bincount(folds[at], minlength=number)
            np.add.at(fold_total, folds[at], y[at])
    rows, whole = np.float64(len(y)), np.float64(y.sum())

    def means(asked: np.ndarray, fold: np.ndarray | None) -> np.ndarray:
        own_count, own_total, overall = count[asked], total[asked], np.full(len(asked), whole / rows)
        with np.errstate(invalid="ignore", divide="ignore"):  # a single training row leaves none in the other folds
            if fold is not None:
                cell = asked.astype(np.int64) * number + fold
                own_count, own_total = own_count - cells[cell], own_total - cell_total[cell]
                overall = ((whole - fold_total) / (rows - in_fold))[fold]
            weight = own_count + settings.prior_rows
            found = (own_total + settings.prior_rows * overall) / weight
        known: np.ndarray = np.where((weight > 0) & (asked > 0), found, np.nan)
        return known

    return means
