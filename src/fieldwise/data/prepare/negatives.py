"""Sampled negatives: items that a user of an implicit log never used, with the items' values at the time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import missing_as_null
from fieldwise.data.prepare.labels import read_labels
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.rows_by_value import distinct_rows, group_rows
from fieldwise.data.prepare.settings import PARTS, NegativeSampling
from fieldwise.data.read.mapped_rows import join_rows, take_rows
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema import Schema
from fieldwise.schema.label import Scalar
from fieldwise.storage.scratch import MemoryBudget

COPIES = 1 << 16


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
        cls,
        log: pl.DataFrame,
        settings: NegativeSampling,
        schema: Schema | None = None,
        *,
        budget: MemoryBudget,
    ) -> "ItemValues":
        """The values in a log, whose times are those of the schema; without a time each item needs one value."""
        _, item = settings.ids
        items = distinct_rows(log.select(item), budget=budget).to_series().sort()
        fixed: dict[str, pl.Series] = {}
        changing: dict[str, pl.Series] = {}
        for name in settings.item_columns:
            cells = _known_cells(distinct_rows(log.select(item, name), budget=budget), schema)
            pairs = cells.drop_nulls(name).unique()
            if pairs.height == pairs.get_column(item).n_unique():
                joined = items.to_frame().join(pairs, on=item, how="left", maintain_order="left")
                fixed[name] = joined.get_column(name)
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
        times = order_values(
            log, schema.time, "time", schema.time_format, schema.missing, budget=budget
        )
        moments = (
            distinct_rows(pl.DataFrame({"time": times}), budget=budget)
            .to_series()
            .sort()
            .to_numpy()
        )
        ranks = budget.fill(log.height, np.int64, lambda chunk: _codes(log[item][chunk], items) + 1)
        rows = {
            name: _rows_with_value(
                log.select(name), schema, ranks, len(items), times, budget=budget
            )
            for name in changing
        }
        keys = {
            name: _item_moments(numbers, ranks, times, moments, budget=budget)
            for name, numbers in rows.items()
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
        columns = [cells.gather(item) for cells in self.fixed.values()]
        for name, cells in self.changing.items():
            assert time is not None, "values that change need times"
            keys = self.keys[name]
            moment = np.searchsorted(self.moments, time, side="right") - 1
            latest = np.searchsorted(keys, item * len(self.moments) + moment, side="right") - 1
            is_known = (latest >= 0) & (keys[latest] // len(self.moments) == item)
            values = cells.gather(self.rows[name][latest.clip(min=0)])
            columns.append(values.zip_with(pl.Series(is_known), values.clear(len(values))))
        return columns


def _rows_with_value(
    cells: pl.DataFrame,
    schema: Schema,
    ranks: np.ndarray,
    items: int,
    times: np.ndarray,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """The rows of a column that have a value, by item (its rank, from 1) and time."""
    counts = np.zeros(items + 1, dtype=np.int64)
    for chunk in budget.chunk_slices(len(ranks)):
        counts += np.bincount(ranks[chunk], minlength=len(counts))

    def known() -> Iterator[np.ndarray]:
        for rows, _, _ in group_rows(ranks, counts, times, budget=budget):
            row_cells = _known_cells(cells.select(pl.all().gather(rows)), schema)
            yield rows[row_cells.to_series().is_not_null().to_numpy()]

    return budget.concatenate(known(), np.int64)


def _item_moments(
    rows: np.ndarray,
    ranks: np.ndarray,
    times: np.ndarray,
    moments: np.ndarray,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """Item (its rank, from 1) and moment of each row as one number."""

    def of_chunk(chunk: slice) -> np.ndarray:
        numbers = rows[chunk]
        moment = np.searchsorted(moments, times[numbers])
        return np.asarray((ranks[numbers] - 1) * len(moments) + moment)

    return budget.fill(len(rows), np.int64, of_chunk)


def _known_cells(cells: pl.DataFrame, schema: Schema | None) -> pl.DataFrame:
    """The cells with null for those that the schema's fields read as missing."""
    if schema is None:
        return cells
    fields = [f for f in schema.fields if f.column in cells.columns]
    return missing_as_null(cells, fields, schema.missing)


def sample_negatives(
    positives: pl.DataFrame,
    *,
    log: pl.DataFrame,
    settings: NegativeSampling,
    seed: int,
    label: tuple[str, Scalar],
    values: ItemValues | None = None,
    times: np.ndarray | None = None,
    budget: MemoryBudget,
) -> pl.DataFrame:
    """Sample negatives: for each positive row, n copies with items that its user never used anywhere in the log.

    Items are sampled from the log's catalogue, uniformly or by their numbers of rows there
    (`NegativeSampling.kind`), without replacement among one positive's n. "Never used" refers to
    the whole log, including test rows: otherwise a negative could be a test positive. So the sample
    depends on the test rows' items, as in every evaluation with such negatives. `log` has all
    positive rows of all parts, and `label` is its column and the value for "not used". The
    negatives of one positive are together.

    `values` are those of the log's items, each of which has one value if they are omitted. Where
    values change, `times` has the time of each positive row: a drawn item has the value that it had
    then.

    >>> log = pl.DataFrame({"user": [1, 1, 2], "app": ["a", "b", "c"], "used": [1, 1, 1]})
    >>> ask = NegativeSampling(user="user", item="app", per_positive=1)
    >>> sample_negatives(log.head(1), log=log, settings=ask, seed=0, label=("used", 0), budget=MemoryBudget()).rows()
    [(1, 'c', 0)]
    """
    _check(positives, log, settings)
    user_column, item_column = settings.ids
    n = settings.per_positive
    values = values or ItemValues.of_log(log, settings, budget=budget)
    items = values.items
    users = distinct_rows(log.select(user_column), budget=budget).to_series().sort()
    used = _used_items(log[user_column], log[item_column], users, items, budget=budget)
    positive_users = budget.fill(
        positives.height, np.int64, lambda chunk: _codes(positives[user_column][chunk], users)
    )
    used_by = _used_by(used, positive_users, users, len(items), n, budget=budget)
    rng = np.random.default_rng(seed)
    copies_of_item = np.ones(len(items), np.int64)
    if settings.kind != "uniform":
        copies_of_item = _copies(log[item_column], items, settings, budget=budget)
    unused = _Unused.of(used, used_by, copies_of_item, budget=budget)
    if settings.kind == "uniform":
        drawn = _distinct(unused.counts, positive_users, n, rng, budget=budget)
    else:
        drawn = _distinct_by_copies(unused, positive_users, n, rng, budget=budget)
    columns = list(dict.fromkeys([*positives.columns, label[0]]))

    def sampled() -> Iterator[pl.DataFrame]:
        for chunk in budget.chunk_slices(len(positive_users)):
            user = positive_users[chunk].repeat(n)
            item = unused.items_of(user, drawn[chunk].reshape(-1))
            time = None if times is None else times[chunk].repeat(n)
            cells = [items.gather(item).alias(item_column), *values.cells(item, time)]
            copies = positives[chunk].select(pl.all().repeat_by(n).explode(empty_as_null=False))
            copies = copies.with_columns(
                column.cast(positives.schema[column.name]) for column in cells
            )
            yield mark_negative(copies, *label).select(columns)

    return join_rows(sampled(), budget=budget)


def _used_items(
    user_cells: pl.Series,
    item_cells: pl.Series,
    users: pl.Series,
    items: pl.Series,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """The different pairs of a user and an item in a log, each as one number `user * len(items) + item`, ascending."""

    def pairs_of(chunk: slice) -> np.ndarray:
        codes = _codes(user_cells[chunk], users) * len(items) + _codes(item_cells[chunk], items)
        return np.asarray(codes)

    def is_first(chunk: slice) -> np.ndarray:
        before = pairs[chunk.start - 1] if chunk.start else -1
        return np.asarray(np.diff(pairs[chunk], prepend=before) != 0)

    pairs = budget.fill(len(user_cells), np.int64, pairs_of)
    pairs.sort()
    return budget.take(pairs, budget.where(len(pairs), is_first))


def _distinct(
    unused: np.ndarray,
    positive_users: np.ndarray,
    n: int,
    rng: np.random.Generator,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """For each row's user n different numbers below its `unused`, uniformly (Floyd's algorithm): [N, n] int64."""
    chosen = budget.empty((len(positive_users), n), np.int64)
    for k in range(n):
        for chunk in budget.chunk_slices(len(positive_users)):
            last = unused[positive_users[chunk]] - n + k
            number = rng.integers(0, last + 1, dtype=np.int64)
            is_taken = (chosen[chunk, :k] == number[:, None]).any(axis=1)
            chosen[chunk, k] = np.where(is_taken, last, number)
    return chosen


def _copies(
    item_cells: pl.Series, items: pl.Series, settings: NegativeSampling, *, budget: MemoryBudget
) -> np.ndarray:
    """How many copies of each item are drawn from, so that a uniform draw of a copy draws items as settings say [I].

    Item i has the share `n_i^a / sum n^a` of its n_i rows, or half of it and half of `1 / I`; the
    most frequent item gets 65,536 copies, and each at least one.
    """
    rows = np.zeros(len(items), np.int64)
    for chunk in budget.chunk_slices(len(item_cells)):
        rows += np.bincount(_codes(item_cells[chunk], items), minlength=len(items))
    share = rows**settings.exponent
    share = share / share.sum()
    if settings.kind == "mixed":
        share = (share + 1 / len(items)) / 2
    copies: np.ndarray = np.rint(share * (COPIES / share.max())).astype(np.int64).clip(min=1)
    return copies


@dataclass(frozen=True)
class _Unused:
    """The items that each user never used, as copies that are numbered from 0 in the order of the items.

    Args:
        counts: copies of each user's unused items, [U].
        ends: the first copies of the items, and the end, of the whole catalogue [I + 1].
        first_used: the first of each user's used items among all [U].
        used_copies: copies of the used items before each, and the end [M + 1].
        before: the number of unused copies before each used item of each user, as one increasing
            number [M].
    """

    counts: np.ndarray
    ends: np.ndarray
    first_used: np.ndarray
    used_copies: np.ndarray
    before: np.ndarray

    @classmethod
    def of(
        cls, used: np.ndarray, used_by: np.ndarray, copies: np.ndarray, *, budget: MemoryBudget
    ) -> "_Unused":
        """Of pairs of a user and an item as `_used_items`, each user's number of them, and the copies of each item."""
        items = len(copies)
        ends = np.append(0, copies.cumsum())
        first_used = np.cumsum(used_by) - used_by
        used_copies = budget.empty(len(used) + 1, np.int64)
        used_copies[0] = 0
        for chunk in budget.chunk_slices(len(used)):
            sums = copies[used[chunk] % items].cumsum()
            used_copies[chunk.start + 1 : chunk.stop + 1] = used_copies[chunk.start] + sums

        def before(chunk: slice) -> np.ndarray:
            user = used[chunk] // items
            used_below = used_copies[chunk] - used_copies[first_used[user]]
            unused_below = ends[used[chunk] % items] - used_below
            return np.asarray(user * (ends[-1] + 1) + unused_below)

        of_user = used_copies[first_used + used_by] - used_copies[first_used]
        return cls(
            counts=ends[-1] - of_user,
            ends=ends,
            first_used=first_used,
            used_copies=used_copies,
            before=budget.fill(len(used), np.int64, before),
        )

    def items_of(self, user: np.ndarray, copy: np.ndarray) -> np.ndarray:
        """The items of users' unused copies by number, both [N].

        One search over all users finds the used items below: without rejection sampling, users with
        few unused items cost no more than others.
        """
        wanted = user * (self.ends[-1] + 1) + copy
        used_below = np.searchsorted(self.before, wanted, side="right")
        copies_below = self.used_copies[used_below] - self.used_copies[self.first_used[user]]
        item: np.ndarray = np.searchsorted(self.ends, copy + copies_below, side="right") - 1
        return item


def _distinct_by_copies(
    unused: _Unused,
    positive_users: np.ndarray,
    n: int,
    rng: np.random.Generator,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """For each row's user n copies of different unused items: one of an item that the row has is drawn again [N, n]."""
    chosen = budget.empty((len(positive_users), n), np.int64)

    def rows_to_draw_again(rows: np.ndarray, k: int) -> np.ndarray:
        """Draw the k-th copy of some rows; returns those whose item they have already."""
        users = positive_users[rows]
        copy = rng.integers(0, unused.counts[users], dtype=np.int64)
        chosen[rows, k] = copy
        item = unused.items_of(users, copy)
        is_taken = np.zeros(len(rows), bool)
        for earlier in range(k):
            is_taken |= unused.items_of(users, chosen[rows, earlier]) == item
        return rows[is_taken]

    for k in range(n):
        chunks = budget.chunk_slices(len(positive_users))
        again = [rows_to_draw_again(np.arange(c.start, c.stop), k) for c in chunks]
        rows = np.concatenate(again)  # so that draws do not depend on the chunks
        while len(rows):
            rows = rows_to_draw_again(rows, k)
    return chosen


def mark_negative(frame: pl.DataFrame, label_column: str, negative_value: Scalar) -> pl.DataFrame:
    """The rows with `negative_value` in the label's column, in its type; a new last column if it is missing."""
    dtype = frame.schema.get(label_column)
    label = pl.lit(negative_value) if dtype is None else pl.lit(negative_value).cast(dtype)
    try:
        return frame.with_columns(label.alias(label_column))
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"the negatives' label must fit its column: {negative_value!r} is not of type {dtype}, as {label_column!r} "
            "is"
        ) from e


def _check(positives: pl.DataFrame, log: pl.DataFrame, settings: NegativeSampling) -> None:
    """Check that both tables have the columns of users and items without nulls, and those that describe items."""
    for what, frame in (("positives", positives), ("log", log)):
        for name in (*settings.ids, *settings.item_columns):
            if name not in frame.columns:
                raise DataError(
                    f"the {what} must have column {name!r}, found only: {', '.join(frame.columns)}"
                )
        for name in settings.ids:
            absent = frame.get_column(name).null_count()
            if absent:
                raise DataError(
                    f"every row needs a user and an item: column {name!r} of the {what} is empty in {absent:,} of "
                    f"{frame.height:,} positive rows; remove or fill such rows"
                )


def _codes(column: pl.Series, known: pl.Series) -> np.ndarray:
    """Index of each value in the sorted `known`, which has all of them; [N] int64 (missing values: len(known))."""
    codes = pl.int_range(len(known), eager=True)
    cells = column.cast(known.dtype)
    return cells.replace_strict(known, codes, default=len(known), return_dtype=pl.Int64).to_numpy()


def _used_by(
    used: np.ndarray,
    positive_users: np.ndarray,
    users: pl.Series,
    items: int,
    n: int,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """The number of items that each user used; a DataError if a user of a positive has fewer than n unused ones."""
    used_by = np.zeros(len(users), dtype=np.int64)
    for chunk in budget.chunk_slices(len(used)):
        used_by += np.bincount(used[chunk] // items, minlength=len(users))
    for chunk in budget.chunk_slices(len(positive_users)):
        counts = used_by[positive_users[chunk]]
        if len(counts) and counts.max() > items - n:
            user = int(positive_users[chunk.start + int(np.argmax(counts))])
            raise DataError(
                f"each user needs at least {n} unused items for {n} negatives per positive: user {users[user]!r} used "
                f"{used_by[user]} of {items}; lower per_positive"
            )
    return used_by


def with_negatives(
    frames: Mapping[str, pl.DataFrame],
    targets: Mapping[str, np.ndarray],
    schema: Schema,
    settings: NegativeSampling,
    seed: int,
    *,
    budget: MemoryBudget,
) -> tuple[dict[str, pl.DataFrame], dict[str, np.ndarray], dict[str, int]]:
    """Add sampled negatives to the parts in the settings; positives are the rows with a target above 0.

    With several labels the main one decides, and a sampled row is negative for every label. Also
    returns how many rows were sampled, and in how many of them a value that changes is missing, as
    the item has none at or before the time.
    """
    negative_values = _negative_values(frames, schema)
    main = {name: y[:, 0] for name, y in targets.items()}
    positives = {name: _positive_rows(frames[name], y, budget=budget) for name, y in main.items()}
    log = pl.concat(list(positives.values()))
    all_frames = dict(frames)
    all_targets = dict(targets)
    counts = {"negatives_drawn": 0, "negatives_without_value": 0}

    # in an order that does not depend on the settings
    parts = [name for name in PARTS if name in settings.parts and name in frames]
    parts = [name for name in parts if not positives[name].is_empty()]
    if settings.only_where_missing:
        parts = [name for name in parts if not (main[name] <= 0).any()]
    if not parts:
        return all_frames, all_targets, counts

    _check(log, log, settings)
    item_values = ItemValues.of_log(log, settings, schema, budget=budget)
    changing = list(item_values.changing)
    times = item_values.times_of({name: part.height for name, part in positives.items()})
    for name in parts:
        added = sample_negatives(
            positives[name],
            log=log,
            settings=settings,
            seed=seed * len(PARTS) + PARTS.index(name),
            label=(schema.label.column, negative_values[schema.label.column]),
            values=item_values,
            times=times.get(name),
            budget=budget,
        )
        counts["negatives_drawn"] += added.height
        if changing:
            is_without = added.select(pl.any_horizontal(pl.col(changing).is_null())).to_series()
            counts["negatives_without_value"] += int(is_without.sum())
        for label in schema.more_labels:
            if label.column != schema.label.column:
                added = mark_negative(added, label.column, negative_values[label.column])

        y = _negative_targets(added, schema, negative_values, budget=budget)
        rows = len(main[name])
        joined = budget.empty((rows + len(y), len(schema.labels)), np.float32)
        joined[:rows] = targets[name]
        joined[rows:] = y
        all_frames[name] = pl.concat([frames[name], added])
        all_targets[name] = joined
    return all_frames, all_targets, counts


def _positive_rows(frame: pl.DataFrame, y: np.ndarray, *, budget: MemoryBudget) -> pl.DataFrame:
    """The rows with a target [N] above 0."""
    return take_rows(frame, budget.where(len(y), lambda chunk: y[chunk] > 0), budget=budget)


def _negative_values(frames: Mapping[str, pl.DataFrame], schema: Schema) -> dict[str, int | float]:
    """The value of a sampled negative in each label's column: the smallest that is not positive, else 0."""
    regressions = [label.name for label in schema.more_labels if label.task == "regression"]
    if regressions:
        raise ConfigError(
            f"a sampled negative is negative for every label, but the label {regressions[0]!r} is a regression, which "
            "has no such value: remove the negatives or that label"
        )
    values: dict[str, int | float] = {}
    for label in schema.labels:
        column = pl.concat([frame.get_column(label.column) for frame in frames.values()])
        smallest = column.min() if column.dtype.is_numeric() else 0
        value: int | float = 0
        if isinstance(smallest, (int, float)) and smallest <= 0:
            value = smallest
        if value in label.drop_values:
            raise DataError(
                f"a sampled negative must not be dropped: {value!r} in column {label.column!r} is among "
                f"the drop_values of label {label.name!r}; change the rule, or remove the negatives"
            )
        values[label.column] = value
    return values


def _negative_targets(
    added: pl.DataFrame,
    schema: Schema,
    negative_values: Mapping[str, int | float],
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """The targets of sampled rows [N, T], none of which is positive."""
    y = read_labels(
        added, schema.labels, all_negative=True, missing=schema.missing, budget=budget
    ).y
    for label, target in zip(schema.labels, y.T, strict=True):
        if (target > 0).any():
            raise DataError(
                f"a sampled negative must not be positive: {negative_values[label.column]!r} in column "
                f"{label.column!r} is positive by the label's rule; change the rule"
            )
    return y
