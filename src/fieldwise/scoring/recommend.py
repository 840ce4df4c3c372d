"""Recommendations: the best items for users, by scoring every item of a log in each user's latest context."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

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
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema import Schema
from fieldwise.schema.ids import id_column
from fieldwise.scoring import EXCLUDE_SEEN, Seen
from fieldwise.scoring.candidates import Model
from fieldwise.scoring.items import ItemTable, top_k_indices
from fieldwise.scoring.ranker import PREDICTION, Ranker

__all__ = ["Catalogue", "recommend", "recommended_blocks"]

RANK = "rank"
SOURCE = "source"
MODEL = "model"
POPULARITY = "popularity"
PAIRS_AT_ONCE = 131_072  # pairs of users and items per block


@dataclass(frozen=True, kw_only=True)
class Catalogue:
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
    catalogue: Catalogue | None = None,
    user: object = None,
    *,
    users: Iterable[object] | None = None,
    n: int = 10,
    exclude_seen: Seen = EXCLUDE_SEEN,
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
        catalogue: the columns of users, items and titles, if they are not in the schema.
        user: one user; a list of users is the same as `users`.
        users: several users, in any order; duplicates count once. Without `user` and `users`: every
            user of the log.
        n: number of items; fewer if the log has no more.
        exclude_seen: which items of a user's rows to exclude: those of `positive` rows (of all
            without a binary label), all (True) or none (False). An item that was only shown to the
            user can be recommended.

    Returns:
        A row per user and item: user, item, title (if there is one), rank (from 1), prediction and
        source. The users are in the order given (in the order of ids for every user), their items
        best first, ties in the order of the items' ids. `source` is `model` or `popularity`; a
        `prediction` is a probability, or a number for a regression label, and null by popularity.
        For one `user` without columns of user and rank, and in the log's library.

    Errors:
        ConfigError: no log, no column of users or items, both `user` and `users`, an n below 1,
            another `exclude_seen`.
        DataError: a column is missing, a user who cannot be in its column, or a row of the log has
            no time.

    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(1000, users=50, items=30)
    >>> fields = Categorical("user_id", role="user"), Categorical("item_id", role="item")
    >>> schema = Schema(fields=fields, label=Label("liked"), user="user_id", item="item_id")
    >>> model = Recommender(schema, FM(embedding_dim=4), training=TrainingSettings(epochs=1)).fit(log)
    >>> result = recommend(model.bundle_, log, users=["u0001", "nobody"], n=2)
    >>> result.columns, result["source"].to_list()
    (['user_id', 'item_id', 'rank', 'prediction', 'source'], ['model', 'model', 'popularity', 'popularity'])
    """
    if log is None or not isinstance(catalogue, Catalogue | None):
        absent = "no log" if log is None else f"the catalogue {catalogue!r}"
        raise ConfigError(
            f"recommendations need a log, whose items are the candidates, found {absent}: use "
            "recommend(log, user=...) or recommend(log, Catalogue(user='USER COLUMN', item='ITEM COLUMN'), user=...)"
        )
    if user is not None and users is not None:
        raise ConfigError(
            "recommendations are for one user or for several: give user or users, found both"
        )
    if isinstance(user, Iterable) and not isinstance(user, str | bytes):
        user, users = None, user
    wanted = users if user is None else [user]
    given = catalogue or Catalogue()
    rows = as_table(
        log, text_columns=(*model.schema.text_columns, *filter(None, (given.user, given.item)))
    )
    result = pl.concat(
        recommended_blocks(model, rows, given, wanted, n=n, exclude_seen=exclude_seen)
    )
    return as_given(result if user is None else result.drop(result.columns[0], RANK), log)


def recommended_blocks(
    model: Model,
    log: pl.DataFrame,
    catalogue: Catalogue | None = None,
    users: Iterable[object] | None = None,
    *,
    n: int = 10,
    exclude_seen: Seen = EXCLUDE_SEEN,
    reports: Reports = NO_REPORTS,
) -> Iterator[pl.DataFrame]:
    """The rows of `recommend` for several users, some users at a time, so that few scores are in memory.

    `reports` counts the pairs of users and items that are done.
    """
    _check_options(n, exclude_seen)
    given = catalogue or Catalogue()
    schema = model.schema
    user = id_column("user", [schema], log.columns, given.user, option="Catalogue(user=COLUMN)")
    item = id_column("item", [schema], log.columns, given.item, option="Catalogue(item=COLUMN)")
    shown = list(dict.fromkeys([item, given.title or item]))
    for column in (user, *shown, *schema.columns):
        if column not in log.columns:
            raise DataError(
                f"the log must have the column {column!r}, found {', '.join(log.columns)}"
            )
    if taken := sorted({RANK, PREDICTION, SOURCE}.intersection((user, *shown))):
        raise DataError(
            f"recommendations have a column {taken[0]!r}: rename the log's column of this name"
        )
    log = empty_as_null(log, user, item)
    people, own = _people(log, user, users)
    items = latest_values(log, item, [schema], "item")
    latest = latest_values(own, user, [schema], "user")
    contexts = people.to_frame().join(latest, on=user, how="inner", maintain_order="left")
    own_columns = {*shown, *(f.column for f in schema.with_role("item"))}
    ranker = Ranker(model, ItemTable(id_column=item, items=items), own=own_columns)
    encoded = ranker.encode(contexts)
    place = np.full(len(people), -1)  # of a user's context, if the model knows the user
    known = _known(model, contexts[user])
    place[people.is_in(contexts[user].implode()).to_numpy()] = np.where(
        known, np.arange(len(known)), -1
    )
    seen = _seen(_excluded_rows(own, schema, exclude_seen), people, items, item)
    popular = np.empty(0) if (place >= 0).all() else _popularity(log, items, item, schema)
    reports.begin("recommendation", len(people) * items.height)
    size = max(1, PAIRS_AT_ONCE // max(1, items.height))
    for first in range(0, len(people), size):
        part = slice(first, min(first + size, len(people)))
        by_model = place[part] >= 0
        left = [np.delete(np.arange(items.height), gone) for gone in seen[part]]
        batch, _ = encoded.batch(torch.from_numpy(place[part][by_model]))
        of_known = [some for some, is_known in zip(left, by_model, strict=True) if is_known]
        ranked = ranker.rank(batch, of_known, [n] * len(of_known)) if of_known else iter(())
        best: list[np.ndarray] = []
        value: list[np.ndarray] = []
        for some, is_known in zip(left, by_model, strict=True):
            if is_known:
                places, score = next(ranked)
                value.append(model.main_prediction(score))
            else:
                places = top_k_indices(popular[some], n)
                value.append(np.full(len(places), np.nan))
            best.append(some[places])
        yield _as_rows(people[part], items.select(shown), by_model, best, np.concatenate(value))
        reports.add(len(best) * items.height)


def _check_options(n: int, exclude_seen: object) -> None:
    if n < 1:
        raise ConfigError(f"n must be at least 1, found {n}")
    if not isinstance(exclude_seen, bool) and exclude_seen != "positive":
        raise ConfigError(f"exclude_seen must be 'positive', True or False, found {exclude_seen!r}")


def _as_rows(
    people: pl.Series,
    items: pl.DataFrame,
    by_model: np.ndarray,
    best: list[np.ndarray],
    value: np.ndarray,
) -> pl.DataFrame:
    """A row per user and item, from the numbers of each user's best items."""
    counts = [len(one) for one in best]
    results = {
        RANK: np.concatenate([np.arange(1, count + 1) for count in counts]),
        PREDICTION: pl.Series(value).fill_nan(None),
        SOURCE: pl.Series([POPULARITY, MODEL])[np.repeat(by_model.astype(int), counts)],
    }
    who = people[np.repeat(np.arange(len(people)), counts)].to_frame()
    return pl.concat([who, items[np.concatenate(best)], pl.DataFrame(results)], how="horizontal")


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
        raise ConfigError(
            f"users must be a list of text or of numbers: {str(e).splitlines()[0]}"
        ) from None
    if not len(names) or names.null_count():
        raise ConfigError(
            f"users must not be empty, found {'no user' if not len(names) else 'an empty one'}"
        )
    names = names.unique(maintain_order=True)
    texts = as_text(ids)
    rows = texts.is_in(names.implode()).fill_null(value=False)
    own = log.filter(rows)
    known = pl.DataFrame({"name": texts.filter(rows), "id": own.get_column(column)}).unique("name")
    result = names.to_frame("name").join(known, on="name", how="left", maintain_order="left")
    people = result["id"].fill_null(names.cast(ids.dtype, strict=False)).alias(column)
    if people.null_count():
        name = names[int(people.is_null().arg_max() or 0)]
        raise DataError(
            f"a user must be a value of the log's column {column!r}, of type {ids.dtype}, found {name!r}: correct it"
        )
    return people, own


def _known(model: Model, users: pl.Series) -> np.ndarray:
    """Whether the model has learned each user; all are known to a model that has learned no ids of users."""
    pairs = zip(model.encoder.fields, model.encoder.fitted, strict=True)
    learned = [
        result for f, result in pairs if f.column == users.name and isinstance(result, Vocabulary)
    ]
    texts = as_text(users)
    known = np.ones(len(users), bool)
    for result in learned:
        known &= result.ids(texts) != UNKNOWN
    return known


def _excluded_rows(own: pl.DataFrame, schema: Schema, exclude_seen: Seen) -> pl.DataFrame:
    """The rows of users whose items are excluded."""
    if exclude_seen is False:
        return own.clear()
    if exclude_seen is True:
        return own
    positive = positive_rows(own, schema.label)
    return own if positive is None else own.filter(positive)


def _seen(own: pl.DataFrame, people: pl.Series, items: pl.DataFrame, item: str) -> list[np.ndarray]:
    """The numbers of the items in some rows of each user."""
    user = people.name
    pairs = own.select(pl.col(user).alias("user"), pl.col(item).alias("item")).unique()
    pairs = pairs.join(pl.DataFrame({"user": people}).with_row_index("u"), on="user")
    pairs = pairs.join(pl.DataFrame({"item": items[item]}).with_row_index("i"), on="item").sort(
        "u", "i"
    )
    ends = np.searchsorted(pairs["u"].to_numpy(), np.arange(1, len(people)))
    return np.split(pairs["i"].to_numpy().astype(np.int64), ends)


def _popularity(log: pl.DataFrame, items: pl.DataFrame, item: str, schema: Schema) -> np.ndarray:
    """The number of rows that count for each item."""
    positive = positive_rows(log, schema.label)
    rows = log if positive is None else log.filter(positive)
    counts = rows.get_column(item).drop_nulls().value_counts(name="rows")
    of_items = (
        items.select(item)
        .join(counts, on=item, how="left", maintain_order="left")["rows"]
        .fill_null(0)
    )
    result: np.ndarray = of_items.to_numpy().astype(np.float64)
    return result
