"""Recommendations: the best items for users, by scoring every item of a log in each user's latest context."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch

from fieldwise.data.encode.columns import as_text, empty_as_null
from fieldwise.data.encode.portable import UNKNOWN
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.prepare.labels import positive_rows
from fieldwise.data.prepare.ordering import latest_values
from fieldwise.data.read.frames import as_given
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.errors import ConfigError, DataError, first_line
from fieldwise.schema import Schema
from fieldwise.schema.ids import id_column
from fieldwise.scoring import EXCLUDE_SEEN, Seen
from fieldwise.scoring.candidates import Model
from fieldwise.scoring.items import ItemTable, top_k_indices
from fieldwise.scoring.list_options import ListOptions
from fieldwise.scoring.ranker import BY_SCORE, PREDICTION, Ranker

__all__ = ["BatchRecommender", "IdColumns", "recommend"]

RANK = "rank"
SOURCE = "source"
MODEL = "model"
POPULARITY = "popularity"
PAIRS_PER_BLOCK = 131_072
"""Of users and items."""


@dataclass(frozen=True, kw_only=True)
class IdColumns:
    """The columns of user ids, item ids and titles.

    Args:
        user: column of user ids; the schema's if omitted (`fieldwise.schema.ids`).
        item: column of item ids, likewise.
        title: column of items' display names; the item column if omitted.
    """

    user: str | None = None
    item: str | None = None
    title: str | None = None


def recommend(
    model: Model,
    log: TableLike | None = None,
    columns: IdColumns | None = None,
    user: object = None,
    *,
    users: Iterable[object] | None = None,
    n: int = 10,
    exclude_seen: Seen = EXCLUDE_SEEN,
    limits: Mapping[str, int] = MappingProxyType({}),
    pinned: Mapping[int, Any] = MappingProxyType({}),
) -> Any:
    """The n items with the highest prediction (main label) for users of a log, each in the context of the last row.

    Items have their latest values. A server with the same bundle and log
    (`fieldwise serve BUNDLE --log LOG`) gives the same to a user whom the model knows, in the same
    context. A user without a row in the log, or whose id the model has not learned, gets the items
    with the most rows of a positive label, or the most rows without a binary label.

    Args:
        model: the bundle that scores.
        log: raw rows with the columns of the bundle's schema; every item in it is a candidate.
            Required.
        columns: the columns of users, items and titles, if they are not in the schema.
        user: one user; a list of users is the same as `users`.
        users: several users, in any order; duplicates count once. Without `user` and `users`: every
            user of the log.
        n: number of items; fewer if the log has no more.
        exclude_seen: which items of a user's rows to exclude: those of `positive` rows (of all
            without a binary label), all (True) or none (False). An item that was only shown to the
            user can be recommended.
        limits: by column of the log that is an item's (no label, user or context field), the
            largest number of a list's items with one value.
        pinned: ids of items by their place in every list, from 1; not for a user who has seen it.

    Returns:
        A row per user and item: user, item, title (if there is one), rank (from 1), prediction and
        source. The users are in the order given (in the order of ids for every user), their items
        best first, ties in the order of the items' ids. `source` is `model` or `popularity`; a
        `prediction` is a probability, or a number for a regression label, and null by popularity.
        For one `user` without columns of user and rank, and in the log's library. With limits or
        pinned items `by_score` has an item's place without them: where it is not the rank, they
        changed the list.

    Errors:
        ConfigError: no log, no column of users or items, both `user` and `users`, an n below 1,
            another `exclude_seen`, limits or places that cannot be.
        DataError: a column is missing, a user who cannot be in its column, a row of the log has no
            time, or an unknown pinned item.

    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(1000, users=50, items=30)
    >>> fields = Categorical("user_id", role="user"), Categorical("item_id", role="item")
    >>> schema = Schema(fields=fields, label=Label("liked"), user="user_id", item="item_id")
    >>> model = Recommender(schema, FM(embedding_dim=4), training=TrainingSettings(epochs=1)).fit(log)
    >>> result = recommend(model.bundle_, log, users=["u0001", "nobody"], n=2)
    >>> result.columns, result["source"].to_list()
    (['user_id', 'item_id', 'rank', 'prediction', 'source'], ['model', 'model', 'popularity', 'popularity'])
    """
    options = ListOptions(n=n, exclude_seen=exclude_seen, limits=limits, pinned=pinned)
    if log is None or not isinstance(columns, IdColumns | None):
        absent = "no log" if log is None else f"the columns {columns!r}"
        raise ConfigError(
            f"recommendations need a log, whose items are the candidates, found {absent}: use "
            "recommend(log, user=...) or recommend(log, IdColumns(user='USER COLUMN', item='ITEM COLUMN'), user=...)"
        )
    if user is not None and users is not None:
        raise ConfigError(
            "recommendations are for one user or for several: give user or users, found both"
        )
    if isinstance(user, Iterable) and not isinstance(user, str | bytes):
        users = user
        user = None
    given = columns or IdColumns()
    id_columns = filter(None, (given.user, given.item))
    rows = as_table(log, text_columns=(*model.schema.text_columns, *id_columns))
    batch = BatchRecommender(model, rows, given, users if user is None else [user], options)
    result = pl.concat(lists.rows for lists in batch.blocks())
    if user is not None:
        result = result.drop(result.columns[0], RANK)
    return as_given(result, log)


class ListsOfUsers(NamedTuple):
    """Lists of some users: the rows of `recommend`, the items' numbers in the catalogue, and each list's length."""

    rows: pl.DataFrame
    items: np.ndarray
    lengths: list[int]


class _UserList(NamedTuple):
    """A user's list: its items by number, their places by score alone from 1, and their predictions."""

    items: np.ndarray
    by_score: np.ndarray
    prediction: np.ndarray


class BatchRecommender:
    """The lists of `recommend`, made for some users at a time, so that few scores are in memory.

    The arguments are those of `recommend`, and `ListOptions`.

    Attributes:
        ranker: ranks the log's items by the model.
        contexts: the latest rows of the users who have some.
        context_rows: the row in `contexts` of each user; -1 for one who gets the most popular.
        seen: the rows of the items that are excluded as seen, for each user.
        popularity: number of rows that count for each item of the catalogue (of a positive label,
            or all).
    """

    def __init__(
        self,
        model: Model,
        log: pl.DataFrame,
        columns: IdColumns | None = None,
        users: Iterable[object] | None = None,
        options: ListOptions | None = None,
    ) -> None:
        options = options or ListOptions()
        schema = model.schema
        given = columns or IdColumns()
        user = id_column("user", [schema], log.columns, given.user, option="IdColumns(user=COLUMN)")
        item = id_column("item", [schema], log.columns, given.item, option="IdColumns(item=COLUMN)")
        shown = list(dict.fromkeys([item, given.title or item]))
        _check_columns(log, schema, [user, *shown])

        log = empty_as_null(log, user, item)
        people, their_rows = _people(log, user, users)
        items = latest_values(log, item, [schema], "item")
        item_columns = {*shown, *(field.column for field in schema.with_role("item"))}
        # limits are of what belongs to items: not of a label or a user's column
        of_others = schema.named.difference(item_columns, [item])
        catalogue = ItemTable(id_column=item, items=items.drop(of_others, strict=False))
        self.ranker: Ranker[Any] = Ranker(model, catalogue, own=item_columns)
        self._rules = self.ranker.rules(options.limits, options.pinned)
        self._rules.check(options.n, np.arange(items.height))
        self._n = options.n
        self._people = people
        self._shown = items.select(shown)

        latest = latest_values(their_rows, user, [schema], "user")
        self.contexts = people.to_frame().join(latest, on=user, how="inner", maintain_order="left")
        self._encoded = self.ranker.encode(self.contexts)
        self.context_rows = _context_rows(model, people, self.contexts[user])
        excluded_rows = _excluded_rows(their_rows, schema, options.exclude_seen)
        self.seen = _seen(excluded_rows, people, items, item)
        self.popularity = item_popularity(log, items, item, schema)

    @property
    def lists_without_pinned(self) -> int:
        """The number of users whose list lacks a pinned item, since it is excluded as seen."""
        pinned = list(self._rules.pinned.values())
        return sum(bool(np.isin(pinned, seen).any()) for seen in self.seen)

    def blocks(self, reports: Reports = NO_REPORTS) -> Iterator[ListsOfUsers]:
        """The lists of some users at a time; `reports` counts the pairs of users and items that are done."""
        items = self._shown.height
        reports.begin("recommendation", len(self._people) * items)
        block_users = max(1, PAIRS_PER_BLOCK // max(1, items))
        for first in range(0, len(self._people), block_users):
            block = slice(first, min(first + block_users, len(self._people)))
            lists = self._lists(block)
            prediction = np.concatenate([user_list.prediction for user_list in lists])
            columns = {PREDICTION: pl.Series(prediction).fill_nan(None)}
            if self._rules:
                columns[BY_SCORE] = pl.Series(
                    np.concatenate([user_list.by_score for user_list in lists])
                )
            by_model = self.context_rows[block] >= 0
            best = [user_list.items for user_list in lists]
            yield _as_rows(self._people[block], self._shown, by_model, best, columns)
            reports.add(len(lists) * items)

    def _lists(self, block: slice) -> list[_UserList]:
        """The lists of some users; one without a context gets the most popular items, whose prediction is NaN."""
        every_item = np.arange(self._shown.height)
        candidates = [np.delete(every_item, excluded) for excluded in self.seen[block]]
        by_model = self.context_rows[block] >= 0
        by_score = self._by_model(block, [candidates[user] for user in np.flatnonzero(by_model)])

        lists = []
        for item_rows, is_known in zip(candidates, by_model, strict=True):
            if is_known:
                positions, prediction = next(by_score)
            else:
                count = self._rules.rows_needed(len(item_rows), self._n)
                positions = top_k_indices(self.popularity[item_rows], count)
                prediction = np.full(len(positions), np.nan)
            order = item_rows[positions]
            listed = self._rules.arrange(order, self._n).positions
            lists.append(_UserList(order[listed], listed + 1, prediction[listed]))
        return lists

    def _by_model(
        self, block: slice, candidates: list[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each user with a context, the positions of the best candidates, and their predictions."""
        if not candidates:
            return iter(())
        context_rows = self.context_rows[block]
        contexts, _ = self._encoded.batch(torch.from_numpy(context_rows[context_rows >= 0]))
        counts = [self._rules.rows_needed(len(rows), self._n) for rows in candidates]
        return self.ranker.rank(contexts, candidates, counts)


def _check_columns(log: pl.DataFrame, schema: Schema, shown: list[str]) -> None:
    """Check that a log has the columns shown and the schema's, and none shown with a name of the result's own."""
    for column in (*shown, *schema.columns):
        if column not in log.columns:
            raise DataError(
                f"the log must have the column {column!r}, found {', '.join(log.columns)}"
            )
    taken = sorted({RANK, PREDICTION, SOURCE, BY_SCORE}.intersection(shown))
    if taken:
        raise DataError(
            f"recommendations have a column {taken[0]!r}: rename the log's column of this name"
        )


def _as_rows(
    people: pl.Series,
    items: pl.DataFrame,
    by_model: np.ndarray,
    best: list[np.ndarray],
    columns: Mapping[str, pl.Series],
) -> ListsOfUsers:
    """A row per user and item, from the numbers of the items of each user's list, with further columns."""
    counts = [len(item_rows) for item_rows in best]
    numbers = np.concatenate(best)
    results = {
        RANK: np.concatenate([np.arange(1, count + 1) for count in counts]),
        **columns,
        SOURCE: pl.Series([POPULARITY, MODEL])[np.repeat(by_model.astype(int), counts)],
    }
    users = people[np.repeat(np.arange(len(people)), counts)].to_frame()
    rows = pl.concat([users, items[numbers], pl.DataFrame(results)], how="horizontal")
    return ListsOfUsers(rows, numbers, counts)


def _people(
    log: pl.DataFrame, column: str, users: Iterable[object] | None
) -> tuple[pl.Series, pl.DataFrame]:
    """The users as values of the log's column, each once, and their rows of the log."""
    ids = log.get_column(column)
    if users is None:
        people = ids.drop_nulls().unique().sort()
        if not len(people):
            raise DataError(f"the log has no user in column {column!r}")
        return people, log
    if isinstance(users, str):
        raise ConfigError(
            f"users must be a list of users, found the text {users!r}: write [{users!r}]"
        )
    try:
        names = as_text(pl.Series(list(users)))
    except (TypeError, pl.exceptions.PolarsError) as e:
        raise ConfigError(f"users must be a list of text or of numbers: {first_line(e)}") from None
    if not len(names) or names.null_count():
        raise ConfigError(
            f"users must not be empty, found {'no user' if not len(names) else 'an empty one'}"
        )
    names = names.unique(maintain_order=True)
    texts = as_text(ids)
    rows = texts.is_in(names.implode()).fill_null(value=False)
    their_rows = log.filter(rows)
    ids_of_names = pl.DataFrame({"name": texts.filter(rows), "id": their_rows.get_column(column)})
    named = names.to_frame("name").join(
        ids_of_names.unique("name"), on="name", how="left", maintain_order="left"
    )
    people = named["id"].fill_null(names.cast(ids.dtype, strict=False)).alias(column)
    if people.null_count():
        name = names[int(people.is_null().arg_max() or 0)]
        raise DataError(
            f"a user must be a value of the log's column {column!r}, of type {ids.dtype}, found {name!r}: correct it"
        )
    return people, their_rows


def _context_rows(model: Model, people: pl.Series, known: pl.Series) -> np.ndarray:
    """The row of each user's context; -1 for a user without one, or whom the model does not know."""
    rows = np.full(len(people), -1)
    has_context = people.is_in(known.implode()).to_numpy()
    rows[has_context] = np.where(_is_known(model, known), np.arange(len(known)), -1)
    return rows


def _is_known(model: Model, users: pl.Series) -> np.ndarray:
    """Whether the model has learned each user; all are known to a model that has learned no ids of users."""
    texts = as_text(users)
    is_known = np.ones(len(users), bool)
    for field, fitted in model.encoder.fitted_fields:
        if field.column == users.name and isinstance(fitted, Vocabulary):
            is_known &= fitted.ids(texts) != UNKNOWN
    return is_known


def _excluded_rows(rows: pl.DataFrame, schema: Schema, exclude_seen: Seen) -> pl.DataFrame:
    """The rows of users whose items are excluded."""
    if exclude_seen is False:
        return rows.clear()
    return rows if exclude_seen is True else _positive_rows(rows, schema)


def _positive_rows(rows: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """The rows with a positive label; all without a binary one."""
    is_positive = positive_rows(rows, schema.label)
    return rows if is_positive is None else rows.filter(is_positive)


def _seen(
    rows: pl.DataFrame, people: pl.Series, items: pl.DataFrame, item: str
) -> list[np.ndarray]:
    """The numbers of the items in some rows of each user."""
    user = people.name
    pairs = rows.select(pl.col(user).alias("user"), pl.col(item).alias("item")).unique()
    pairs = pairs.join(pl.DataFrame({"user": people}).with_row_index("u"), on="user")
    pairs = pairs.join(pl.DataFrame({"item": items[item]}).with_row_index("i"), on="item").sort(
        "u", "i"
    )
    ends = np.searchsorted(pairs["u"].to_numpy(), np.arange(1, len(people)))
    return np.split(pairs["i"].to_numpy().astype(np.int64), ends)


def item_popularity(
    log: pl.DataFrame, items: pl.DataFrame, item: str, schema: Schema
) -> np.ndarray:
    """The number of a log's rows that count for each item: of a positive label, or all."""
    counts = _positive_rows(log, schema).get_column(item).drop_nulls().value_counts(name="rows")
    of_items = (
        items.select(item)
        .join(counts, on=item, how="left", maintain_order="left")["rows"]
        .fill_null(0)
    )
    popularity: np.ndarray = of_items.to_numpy().astype(np.float64)
    return popularity
