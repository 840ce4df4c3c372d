"""Columns and rows that are derived from a log: histories, the mean label of each category, sampled negatives.

A history holds the earlier items of the row's user. The mean label of a category, such as an item's
mean rating, is for numeric fields (target encoding). Negatives are items that a user of an implicit
log never used.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text, missing_as_null
from fieldwise.data.prepare.labels import read_labels
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.settings import PARTS, HistorySettings, NegativeSampling, TargetEncoding
from fieldwise.data.prepare.splits import distinct_rows, group_rows, rank_texts
from fieldwise.data.read.arrow_files import join_rows, take_rows
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Scalar, Schema
from fieldwise.storage import scratch

Frames = Mapping[str, pl.DataFrame]
"""The tables of all parts, by name."""
Targets = Mapping[str, np.ndarray]
"""The targets of all parts, by name."""


def check_history(frame: pl.DataFrame, schema: Schema, settings: HistorySettings) -> None:
    """Check that histories can be made from a table, and that a field reads them."""
    order = settings.order or schema.time
    if order is None:
        raise ConfigError(
            "a history needs an order: give history.order, or the schema's time, a column of times"
        )
    user, item = settings.of_schema(schema).ids
    for what, name in (("user", user), ("item", item), ("order", order)):
        if name not in frame.columns:
            hint = nearest(name, frame.columns)
            raise DataError(
                f"a history's {what} column must be in the table: {name!r} is not; {hint}"
            )
        # a row's history would depend on its own label
        if name in {label.column for label in schema.labels}:
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
    order_values(frame, order, "order", schema.format_of(order), schema.missing)


def add_histories(
    frames: Frames,
    targets: Targets,
    settings: HistorySettings,
    *,
    order: str,
    order_format: str | None = None,
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with a column of histories; `targets` are those of the main label.

    The rows of `train` are the events. `order` is the column that orders rows, `order_format` the
    format of its text.

    >>> log = pl.DataFrame({"user": [1, 1, 1, 2], "film": ["a", "b", "c", "d"], "day": [1, 2, 2, 1]})
    >>> ask = HistorySettings(user="user", item="film")
    >>> made = add_histories({"train": log}, {"train": np.array([1, 1, 0, 1])}, ask, order="day")
    >>> made["train"]["history"].to_list()
    [[], ['a'], ['a'], []]
    """
    user_column, item_column = settings.ids
    # All parts at once, so that a text column of times is parsed the same way in each.
    rows = pl.concat(
        [f.select(list(dict.fromkeys((user_column, item_column, order)))) for f in frames.values()]
    )
    event = scratch.empty(rows.height, np.bool_)
    first = 0
    for name, f in frames.items():
        for at in scratch.chunk_slices(f.height):
            items = as_text(f[item_column][at]).is_not_null().to_numpy()
            own = (
                (targets[name][at] > 0) | (not settings.positives_only)
                if name == "train"
                else False
            )
            event[first + at.start : first + at.stop] = items & own
        first += f.height
    events, start, end = _spans(
        rows, event, user_column, (order, order_format), settings.max_length
    )
    numbers = (events[at] for at in scratch.chunk_slices(len(events)))
    values = join_rows(rows.select(pl.col(item_column).gather(one)) for one in numbers).to_series()
    made = {}
    first = 0

    def lists(at: slice) -> pl.DataFrame:
        """`values[start[n]:end[n]]` for some rows n, as a column of lists."""
        places = pl.select(
            place=pl.int_ranges(pl.Series(start[at]), pl.Series(end[at]))
        ).with_row_index("row")
        places = places.explode("place", empty_as_null=True)
        # null for a row without values
        flat = places.select("row", value=values.gather(places["place"]))
        cells = flat.group_by("row", maintain_order=True).agg(
            pl.col("value").drop_nulls().alias(settings.column)
        )
        return cells.select(settings.column)

    for name, f in frames.items():
        chunks = (slice(first + at.start, first + at.stop) for at in scratch.chunk_slices(f.height))
        made[name] = f.with_columns(join_rows(map(lists, chunks)).to_series())
        first += f.height
    return made


def _spans(
    rows: pl.DataFrame, event: np.ndarray, user: str, order: tuple[str, str | None], most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows [M] of all events, by user and time, and the `start` and `end` [N] among them of each row's history."""
    values = order_values(rows, order[0], "order", order[1])
    # Rows without a user have no history.
    start, end = (
        scratch.fill(rows.height, np.int64, lambda _: np.zeros(1, np.int64)) for _ in range(2)
    )

    def events() -> Iterator[np.ndarray]:
        earlier = 0
        for some, users, _ in group_rows(*rank_texts(rows.get_column(user)), values):
            happened = event[some]
            moment = values[some]
            # events of these and of earlier users
            before = earlier + np.cumsum(happened) - happened
            new_user = np.append(True, users[1:] != users[:-1])
            new_time = new_user | np.append(True, moment[1:] != moment[:-1])
            place = np.arange(len(some))
            end[some] = until = before[np.maximum.accumulate(np.where(new_time, place, 0))]
            since = before[np.maximum.accumulate(np.where(new_user, place, 0))]
            start[some] = np.maximum(since, until - most)
            earlier += int(happened.sum())
            yield some[happened]

    return scratch.concatenate(events(), np.int64), start, end


def check_target_encoding(frame: pl.DataFrame, schema: Schema, settings: TargetEncoding) -> None:
    """Check that a table can be target-encoded, and that a field reads each new column."""
    for name, made in zip(settings.columns, settings.made, strict=True):
        if name not in frame.columns:
            raise DataError(
                f"target_encoding needs column {name!r}, which the table does not have: {nearest(name, frame.columns)}"
            )
        if name in {label.column for label in schema.labels}:
            raise SchemaError(
                f"target_encoding must not encode the label's column {name!r}: choose another column"
            )
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
    frames: Frames, targets: Targets, settings: TargetEncoding, *, seed: int
) -> dict[str, pl.DataFrame]:
    """The tables of all parts with the target-encoded columns, float64, null for categories without rows."""
    made = dict(frames)
    folds = scratch.fill(frames["train"].height, np.int64, lambda at: np.arange(at.start, at.stop))
    np.random.default_rng(seed).shuffle(folds)
    for at in scratch.chunk_slices(len(folds)):
        folds[at] %= settings.folds
    for column, new in zip(settings.columns, settings.made, strict=True):
        # As text, the cells of parts of other types are equal.
        texts = (
            as_text(f[column][at]).to_frame()
            for f in frames.values()
            for at in scratch.chunk_slices(f.height)
        )
        ranks, counts = rank_texts(join_rows(texts).to_series())
        ends = np.cumsum([frame.height for frame in frames.values()])
        codes = dict(zip(frames, np.split(ranks, ends[:-1]), strict=True))
        for name in frames:
            sources = [one for one in _means_over(name, settings) if one in frames]
            source_codes = codes[sources[0]]
            source_targets = targets[sources[0]]
            if len(sources) > 1:
                source_codes = scratch.concatenate((codes[source] for source in sources), np.int32)
                source_targets = scratch.concatenate(
                    (targets[source] for source in sources), np.float64
                )
            own_folds = folds if name == "train" and settings.source == "train" else None
            means = _mean_labels(source_codes, source_targets, len(counts), own_folds, settings)
            slices = scratch.chunk_slices(frames[name].height)
            chunks = (
                means(codes[name][at], None if own_folds is None else own_folds[at])
                for at in slices
            )
            joined = join_rows(pl.DataFrame({new: one}).fill_nan(None) for one in chunks)
            made[name] = made[name].with_columns(joined.to_series())
    return made


def _means_over(part: str, settings: TargetEncoding) -> tuple[str, ...]:
    """The parts whose rows a part's mean labels are over."""
    if settings.source == "train":
        return ("train",)
    if settings.source == "own-side" and part != "test":
        return ("train", "valid")
    return (part,)


def _mean_labels(
    code: np.ndarray, y: np.ndarray, size: int, folds: np.ndarray | None, settings: TargetEncoding
) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
    """A function that gives the mean label of the category [M] of rows; with folds [M], over the other folds' rows.

    Sums of the labels are added in the order of the rows, so that chunks do not matter.
    """
    # a fold without rows, which leaves out nothing
    number = settings.folds if folds is not None else 1
    # by category
    count = np.zeros(size, np.int64)
    total = np.zeros(size)
    # by category and fold
    cells = np.zeros(size * number, np.int64)
    cell_total = np.zeros(size * number)
    in_fold = np.zeros(number, np.int64)
    fold_total = np.zeros(number)
    for at in scratch.chunk_slices(len(code)):
        count += np.bincount(code[at], minlength=size)
        np.add.at(total, code[at], y[at])
        if folds is not None:
            cell = code[at].astype(np.int64) * number + folds[at]
            cells += np.bincount(cell, minlength=len(cells))
            np.add.at(cell_total, cell, y[at])
            in_fold += np.bincount(folds[at], minlength=number)
            np.add.at(fold_total, folds[at], y[at])
    rows = np.float64(len(y))
    whole = np.float64(y.sum())

    def means(values: np.ndarray, fold: np.ndarray | None) -> np.ndarray:
        left_out = np.zeros(len(values), np.int64) if fold is None else fold
        cell = values.astype(np.int64) * number + left_out
        # a single training row leaves none in the other folds
        with np.errstate(invalid="ignore", divide="ignore"):
            overall = ((whole - fold_total) / (rows - in_fold))[left_out]
            weight = count[values] - cells[cell] + settings.prior_rows
            result = (total[values] - cell_total[cell] + settings.prior_rows * overall) / weight
        return np.asarray(np.where((weight > 0) & (values > 0), result, np.nan))

    return means


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemValues:
    """What columns that describe items hold for each item of a log: one value, or the latest one at each time.

    Args:
        items: the different items, ascending.
        fixed: the columns with one value for each item, and their cells in the order of `items`.
        changing: the columns whose values change, and their cells in the order of the log.
        moments: the different times of the log's rows, ascending, if some column changes.
        times: the time of each of them.
        keys: by column that changes, item and moment of each cell with a value as one number,
            ascending.
        rows: by column that changes, the row of each of these cells.
    """

    items: pl.Series
    fixed: Mapping[str, pl.Series] = field(default_factory=dict)
    changing: Mapping[str, pl.Series] = field(default_factory=dict)
    moments: np.ndarray = field(default_factory=lambda: np.empty(0))
    times: np.ndarray = field(default_factory=lambda: np.empty(0))
    keys: Mapping[str, np.ndarray] = field(default_factory=dict)
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of_log(
        cls, log: pl.DataFrame, settings: NegativeSampling, schema: Schema | None = None
    ) -> "ItemValues":
        """The values in a log, whose times are those of the schema; without a time each item needs one value."""
        _, item = settings.ids
        items = distinct_rows(log.select(item)).to_series().sort()
        fixed: dict[str, pl.Series] = {}
        changing: dict[str, pl.Series] = {}
        for name in settings.item_columns:
            pairs = (
                _known_cells(distinct_rows(log.select(item, name)), schema)
                .drop_nulls(name)
                .unique()
            )
            if pairs.height == pairs.get_column(item).n_unique():
                fixed[name] = (
                    items.to_frame()
                    .join(pairs, on=item, how="left", maintain_order="left")
                    .get_column(name)
                )
                continue
            if schema is None or schema.time is None:
                twice = pairs.filter(pairs.get_column(item).is_duplicated()).sort(item)
                raise DataError(
                    f"an item needs one description: item {twice[item][0]!r} has several different values in {name}; "
                    "fix the log, remove columns that change from item_columns, or give the schema the time of the "
                    "rows, by which each drawn item gets its latest value"
                )
            changing[name] = log.get_column(name)
        if schema is None or schema.time is None or not changing:
            return cls(items=items, fixed=fixed)
        times = order_values(log, schema.time, "time", schema.time_format, schema.missing)
        moments = distinct_rows(pl.DataFrame({"time": times})).to_series().sort().to_numpy()
        ranks = scratch.fill(log.height, np.int64, lambda at: _codes(log[item][at], items) + 1)
        rows = {
            name: _rows_with_value(log.select(name), schema, ranks, len(items), times)
            for name in changing
        }

        def keys_of(name: str, at: slice) -> np.ndarray:
            own = rows[name][at]
            return np.asarray(
                (ranks[own] - 1) * len(moments) + np.searchsorted(moments, times[own])
            )

        keys = {
            name: scratch.fill(len(own), np.int64, partial(keys_of, name))
            for name, own in rows.items()
        }
        return cls(
            items=items,
            fixed=fixed,
            changing=changing,
            moments=moments,
            times=times,
            keys=keys,
            rows=rows,
        )

    def times_of(self, rows: Mapping[str, int]) -> dict[str, np.ndarray]:
        """The times of the rows of each part, by the parts' numbers of rows in the order of the log; none if unused."""
        if not self.changing:
            return {}
        ends = np.cumsum(list(rows.values()))[:-1]
        return dict(zip(rows, np.split(self.times, ends), strict=True))

    def cells(self, item: np.ndarray, time: np.ndarray | None) -> list[pl.Series]:
        """The values of some items, by their numbers in `items`, each at or before a time; null where none is known."""
        results = [cells.gather(item) for cells in self.fixed.values()]
        for name, cells in self.changing.items():
            assert time is not None, "values that change need times"
            keys = self.keys[name]
            moment = np.searchsorted(self.moments, time, side="right") - 1
            place = np.searchsorted(keys, item * len(self.moments) + moment, side="right") - 1
            is_known = (place >= 0) & (keys[place] // len(self.moments) == item)
            latest = cells.gather(self.rows[name][place.clip(min=0)])
            results.append(latest.zip_with(pl.Series(is_known), latest.clear(len(latest))))
        return results


def _rows_with_value(
    cells: pl.DataFrame, schema: Schema, ranks: np.ndarray, items: int, times: np.ndarray
) -> np.ndarray:
    """The rows of a column that have a value, by item (its rank, from 1) and time."""
    counts = np.zeros(items + 1, dtype=np.int64)
    for at in scratch.chunk_slices(len(ranks)):
        counts += np.bincount(ranks[at], minlength=len(counts))

    def known() -> Iterator[np.ndarray]:
        for some, _, _ in group_rows(ranks, counts, times):
            own = _known_cells(cells.select(pl.all().gather(some)), schema)
            yield some[own.to_series().is_not_null().to_numpy()]

    return scratch.concatenate(known(), np.int64)


def _known_cells(cells: pl.DataFrame, schema: Schema | None) -> pl.DataFrame:
    """The cells with null for those that the schema's fields read as missing."""
    if schema is None:
        return cells
    return missing_as_null(
        cells, [f for f in schema.fields if f.column in cells.columns], schema.missing
    )


def sample_negatives(
    positives: pl.DataFrame,
    *,
    log: pl.DataFrame,
    settings: NegativeSampling,
    seed: int,
    label: tuple[str, Scalar],
    values: ItemValues | None = None,
    times: np.ndarray | None = None,
) -> pl.DataFrame:
    """Sample negatives: for each positive row, n copies with items that its user never used anywhere in the log.

    Items are sampled uniformly from the log's catalogue, without replacement among one positive's
    n. "Never used" refers to the whole log, including test rows: otherwise a negative could be a
    test positive. So the sample depends on the test rows' items, as in every evaluation with such
    negatives. `log` has all positive rows of all parts, and `label` is its column and the value for
    "not used". The negatives of one positive are together.

    `values` are those of the log's items, each of which has one value if they are omitted. Where
    values change, `times` has the time of each positive row: a drawn item has the value that it had
    then.

    >>> log = pl.DataFrame({"user": [1, 1, 2], "app": ["a", "b", "c"], "used": [1, 1, 1]})
    >>> ask = NegativeSampling(user="user", item="app", per_positive=1)
    >>> sample_negatives(log.head(1), log=log, settings=ask, seed=0, label=("used", 0)).rows()
    [(1, 'c', 0)]
    """
    user_column, item_column = _check(positives, log, settings)
    n = settings.per_positive
    values = values or ItemValues.of_log(log, settings)
    items = values.items
    users = distinct_rows(log.select(user_column)).to_series().sort()
    pairs = scratch.fill(  # of a user and an item in the log, each as one number
        log.height,
        np.int64,
        lambda at: (
            _codes(log[user_column][at], users) * len(items) + _codes(log[item_column][at], items)
        ),
    )
    pairs.sort()
    new = scratch.where(
        len(pairs),
        lambda at: np.diff(pairs[at], prepend=pairs[at.start - 1] if at.start else -1) != 0,
    )
    used = scratch.take(pairs, new)
    positive_users = scratch.fill(
        positives.height, np.int64, lambda at: _codes(positives[user_column][at], users)
    )
    used_by = _used_by(used, positive_users, users, len(items), n)
    unused = len(items) - used_by
    drawn = _distinct(unused, positive_users, n, np.random.default_rng(seed))
    start = np.cumsum(used_by) - used_by
    searched = _unused_before(used, used_by, len(items))
    columns = list(dict.fromkeys([*positives.columns, label[0]]))

    def sampled() -> Iterator[pl.DataFrame]:
        for at in scratch.chunk_slices(len(positive_users)):
            user = positive_users[at].repeat(n)
            rank = drawn[at].reshape(-1)
            result = np.searchsorted(searched, user * (len(items) + 1) + rank, side="right")
            item = rank + result - start[user]
            time = None if times is None else times[at].repeat(n)
            cells = [items.gather(item).alias(item_column), *values.cells(item, time)]
            copies = positives[at].select(pl.all().repeat_by(n).explode(empty_as_null=False))
            copies = copies.with_columns(
                column.cast(positives.schema[column.name]) for column in cells
            )
            yield mark_negative(copies, *label).select(columns)

    return join_rows(sampled())


def _distinct(
    unused: np.ndarray, positive_users: np.ndarray, n: int, rng: np.random.Generator
) -> np.ndarray:
    """For each row's user n different numbers below its `unused`, uniformly (Floyd's algorithm): [N, n] int64."""
    chosen = scratch.empty((len(positive_users), n), np.int64)
    for k in range(n):
        for at in scratch.chunk_slices(len(positive_users)):
            last = unused[positive_users[at]] - n + k
            number = rng.integers(0, last + 1, dtype=np.int64)
            taken = (chosen[at, :k] == number[:, None]).any(axis=1)
            chosen[at, k] = np.where(taken, last, number)
    return chosen


def _unused_before(used: np.ndarray, used_by: np.ndarray, items: int) -> np.ndarray:
    """For each used item of each user, the number of unused ones before it, as one increasing number [M].

    The j-th used item s_j of a user has s_j - j unused ones below it, so one search over all users
    counts the used items below a wanted unused one: without rejection sampling, users with few
    unused items cost no more than others.
    """
    start = np.cumsum(used_by) - used_by

    def before(at: slice) -> np.ndarray:
        owner = used[at] // items
        return np.asarray(
            owner * (items + 1) + used[at] % items - (np.arange(at.start, at.stop) - start[owner])
        )

    return scratch.fill(len(used), np.int64, before)


def mark_negative(frame: pl.DataFrame, label_column: str, negative_value: Scalar) -> pl.DataFrame:
    """The rows with `negative_value` in the label's column, in its type; a new last column if it is missing."""
    kind = frame.schema.get(label_column)
    label = pl.lit(negative_value) if kind is None else pl.lit(negative_value).cast(kind)
    try:
        return frame.with_columns(label.alias(label_column))
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"the negatives' label must fit its column: {negative_value!r} is not of type {kind}, as {label_column!r} "
            "is"
        ) from e


def _check(
    positives: pl.DataFrame, log: pl.DataFrame, settings: NegativeSampling
) -> tuple[str, str]:
    """The columns of users and items, after checking that both tables have them without nulls."""
    ids = settings.ids
    for what, frame in (("positives", positives), ("log", log)):
        for name in (*ids, *settings.item_columns):
            if name not in frame.columns:
                raise DataError(
                    f"the {what} must have column {name!r}, found only: {', '.join(frame.columns)}"
                )
        for name in ids:
            missing = frame.get_column(name).is_null()
            if missing.any():
                row = int(missing.arg_max() or 0)
                raise DataError(
                    f"every row needs a user and an item: column {name!r} of the {what} is empty in row {row} "
                    "(counting from 0); remove or fill such rows"
                )
    return ids


def _codes(column: pl.Series, known: pl.Series) -> np.ndarray:
    """Index of each value in the sorted `known`, which has all of them; [N] int64 (missing values: len(known))."""
    codes = pl.int_range(len(known), eager=True)
    cells = column.cast(known.dtype)
    return cells.replace_strict(known, codes, default=len(known), return_dtype=pl.Int64).to_numpy()


def _used_by(
    used: np.ndarray, positive_users: np.ndarray, users: pl.Series, items: int, n: int
) -> np.ndarray:
    """The number of items that each user used; a DataError if a user of a positive has fewer than n unused ones."""
    used_by = np.zeros(len(users), dtype=np.int64)
    for at in scratch.chunk_slices(len(used)):
        used_by += np.bincount(used[at] // items, minlength=len(users))
    for at in scratch.chunk_slices(len(positive_users)):
        most = used_by[positive_users[at]]
        if len(most) and most.max() > items - n:
            user = int(positive_users[at.start + int(np.argmax(most))])
            raise DataError(
                f"each user needs at least {n} unused items for {n} negatives per positive: user {users[user]!r} used "
                f"{used_by[user]} of {items}; lower per_positive"
            )
    return used_by


def with_negatives(
    frames: Frames, targets: Targets, schema: Schema, settings: NegativeSampling, seed: int
) -> tuple[dict[str, pl.DataFrame], dict[str, np.ndarray], dict[str, int]]:
    """Add sampled negatives to the parts in the settings; positives are the rows with a target above 0.

    With several labels the main one decides, and a sampled row is negative for every label. Also
    returns how many rows were sampled, and in how many of them a value that changes is missing, as
    the item has none at or before the time.
    """
    marks = _negative_marks(frames, schema)
    main = {name: y[:, 0] for name, y in targets.items()}
    positives = {
        name: take_rows(frames[name], scratch.where(len(y), lambda at, y=y: y[at] > 0))  # type: ignore[misc]
        for name, y in main.items()
    }
    log = pl.concat(list(positives.values()))
    all_frames = dict(frames)
    all_targets = dict(targets)
    counts = {"negatives_drawn": 0, "negatives_without_value": 0}
    wanted = [
        name
        for name in PARTS
        if name in settings.parts and name in frames and not positives[name].is_empty()
    ]
    if settings.only_where_missing:
        wanted = [name for name in wanted if not (main[name] <= 0).any()]
    if not wanted:
        return all_frames, all_targets, counts
    _check(log, log, settings)
    item_values = ItemValues.of_log(log, settings, schema)
    changing = list(item_values.changing)
    times = dict.fromkeys(positives, None) | item_values.times_of(
        {k: part.height for k, part in positives.items()}
    )
    for name in wanted:
        added = sample_negatives(
            positives[name],
            log=log,
            settings=settings,
            seed=seed * len(PARTS) + PARTS.index(name),
            label=(schema.label.column, marks[schema.label.column]),
            values=item_values,
            times=times[name],
        )
        counts["negatives_drawn"] += added.height
        if changing:
            is_without = added.select(pl.any_horizontal(pl.col(changing).is_null())).to_series()
            counts["negatives_without_value"] += int(is_without.sum())
        for label in schema.more_labels:
            if label.column != schema.label.column:
                added = mark_negative(added, label.column, marks[label.column])
        y = _negative_targets(added, schema, marks)
        all_frames[name] = pl.concat([frames[name], added])
        all_targets[name] = scratch.empty(
            (len(main[name]) + len(y), len(schema.labels)), np.float32
        )
        all_targets[name][: len(main[name])] = targets[name]
        all_targets[name][len(main[name]) :] = y
    return all_frames, all_targets, counts


def _negative_marks(frames: Frames, schema: Schema) -> dict[str, int | float]:
    """The value of a sampled negative in each label's column: the smallest that is not positive, else 0."""
    numbers = [label.name for label in schema.more_labels if label.task == "regression"]
    if numbers:
        raise ConfigError(
            f"a sampled negative is negative for every label, but the label {numbers[0]!r} is a regression, which has "
            "no such value: remove the negatives or that label"
        )
    marks: dict[str, int | float] = {}
    for label in schema.labels:
        column = pl.concat([part.get_column(label.column) for part in frames.values()])
        low = column.min() if column.dtype.is_numeric() else 0
        marks[label.column] = low if isinstance(low, (int, float)) and low <= 0 else 0
        if marks[label.column] in label.drop_values:
            raise DataError(
                f"a sampled negative must not be dropped: {marks[label.column]!r} in column {label.column!r} is among "
                f"the drop_values of label {label.name!r}; change the rule, or remove the negatives"
            )
    return marks


def _negative_targets(
    added: pl.DataFrame, schema: Schema, marks: Mapping[str, int | float]
) -> np.ndarray:
    """The targets of sampled rows [N, T], none of which is positive."""
    y = read_labels(added, schema.labels, all_negative=True, missing=schema.missing).y
    for label, target in zip(schema.labels, y.T, strict=True):
        if (target > 0).any():
            raise DataError(
                f"a sampled negative must not be positive: {marks[label.column]!r} in column {label.column!r} is "
                "positive by the label's rule; change the rule"
            )
    return y
