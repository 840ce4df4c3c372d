"""Recommendations: the best items for users, by scoring every item of a table in each user's context."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import latest_rows, order_values
from fieldwise.data.read.tables import TableLike, as_given, as_table
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema.ids import id_column
from fieldwise.scoring.ranking import best_places

__all__ = ["Catalogue", "recommend"]

SCORE, RANK = "score", "rank"
ROWS_AT_ONCE = 131_072  # rows of users and items per block


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
    bundle: Bundle,
    log: TableLike | None = None,
    catalogue: Catalogue | None = None,
    user: object = None,
    *,
    users: Iterable[object] | None = None,
    n: int = 10,
    exclude_seen: bool = True,
) -> Any:
    """The n items with the highest score (main label) for one or several users, each in the context of the last row.

    Items have the values of their last rows. A server with the same bundle and log (`fieldwise serve BUNDLE --log LOG`)
    recommends the same to a user in the same context.

    Args:
        bundle: scores the rows.
        log: raw rows with the columns of the bundle's schema; every item in it is a candidate. Required.
        catalogue: the columns of users, items and titles, if they are not in the schema.
        user: the user.
        users: several users instead, in any order; duplicates count once.
        n: number of items; fewer if the log has no more.
        exclude_seen: exclude items that the log has for the user.

    Returns:
        For one user: item, title (if there is one) and score, best first; ties in the order of the items' ids. For
        several users the same rows in the order of `users`, with the user and the rank (from 1) as first columns. A
        pandas or pyarrow table if the log is one, else a polars DataFrame.

    Errors:
        ConfigError: no log, no column of users or items, both or neither of `user` and `users`.
        DataError: a column is missing, a user is not in the log, or a row of the log has no time.

    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(1000, users=50, items=30)
    >>> fields = Categorical("user_id", role="user"), Categorical("item_id", role="item")
    >>> schema = Schema(fields=fields, label=Label("liked"), user="user_id", item="item_id")
    >>> model = Recommender(schema, FM(embedding_dim=4), training=TrainingSettings(epochs=1)).fit(log)
    >>> found = recommend(model.bundle_, log, users=log["user_id"], n=2)
    >>> found.columns
    ['user_id', 'rank', 'item_id', 'score']
    """
    if log is None or not isinstance(catalogue, Catalogue | None):
        absent = "no log" if log is None else f"the catalogue {catalogue!r}"
        raise ConfigError(
            f"recommendations need a log, whose items are the candidates, found {absent}: use "
            "recommend(log, user=...) or recommend(log, Catalogue(user='USER COLUMN', item='ITEM COLUMN'), user=...)"
        )
    if (user is None) == (users is None):
        given = "neither" if user is None else "both"
        raise ConfigError(f"recommendations are for one user or for several: give user or users, found {given}")
    table = as_table(log)
    names = _names([user] if users is None else users)
    catalogue = catalogue or Catalogue()
    user_column = id_column("user", [bundle.schema], table.columns, catalogue.user, option="Catalogue(user=COLUMN)")
    item_column = id_column("item", [bundle.schema], table.columns, catalogue.item, option="Catalogue(item=COLUMN)")
    columns = _Columns(user=user_column, item=item_column, title=catalogue.title or item_column)
    found = _ranked(bundle, table, columns, names, n=n, exclude_seen=exclude_seen)
    return as_given(found.drop(user_column, RANK) if users is None else found, log)


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """The columns of user ids, item ids and titles in a log."""

    user: str
    item: str
    title: str


def _ranked(
    bundle: Bundle, table: pl.DataFrame, catalogue: _Columns, names: list[str], *, n: int, exclude_seen: bool
) -> pl.DataFrame:
    """User, rank, item, title and score of each user's best items."""
    shown = list(dict.fromkeys([catalogue.item, catalogue.title]))
    _check_log(table, (catalogue.user, *shown), bundle)
    rows_of = _rows_of(table, catalogue.user, names)
    time = bundle.schema.time
    moments = (
        None
        if time is None or time not in table.columns
        else order_values(table, time, "time", bundle.schema.time_format)
    )
    last = table[[_last(rows, moments) for rows in rows_of]]
    items = latest_rows(table, catalogue.item, time, bundle.schema.time_format)
    taken = {f.column for f in bundle.schema.with_role("item")} | {catalogue.item, catalogue.title}
    others = [c for c in bundle.schema.columns if c not in taken]
    kept = items.select([c for c in items.columns if c in taken])
    unseen = _unseen(table, catalogue.item, items, rows_of) if exclude_seen else None
    best: list[pl.DataFrame] = []
    ranked: list[int] = []
    for first, end in _stretches(len(names), max(1, items.height)):
        wanted = [np.arange(items.height) if unseen is None else unseen[k] for k in range(first, end)]
        sizes = [len(rows) for rows in wanted]
        rows = kept[np.concatenate(wanted)]
        if others:
            rows = rows.hstack(last.select(others)[np.repeat(np.arange(first, end), sizes)])
        score = bundle.score(rows)
        score = score if score.ndim == 1 else score[:, 0]
        chosen = [a + best_places(score[a:b], n) for a, b in pairwise(np.cumsum([0, *sizes]))]
        ranked += map(len, chosen)
        every = np.concatenate(chosen)
        best.append(rows.select(shown)[every].with_columns(pl.Series(SCORE, bundle.main_prediction(score[every]))))
    who = last.select(catalogue.user)[np.repeat(np.arange(len(names)), ranked)]
    ranks = pl.Series(RANK, np.concatenate([np.arange(1, count + 1) for count in ranked]))
    return pl.concat([who.with_columns(ranks), pl.concat(best)], how="horizontal")


def _check_log(log: pl.DataFrame, named: tuple[str, ...], bundle: Bundle) -> None:
    for column in (*named, *bundle.schema.columns):
        if column not in log.columns:
            raise DataError(f"the log must have the column {column!r}, found {', '.join(log.columns)}")
    taken = sorted({SCORE, RANK}.intersection(named))
    if taken:
        raise DataError(f"recommendations have a column {taken[0]!r}: rename the log's column of this name")


def _names(users: Iterable[object]) -> list[str]:
    """The users as text, each once."""
    if isinstance(users, str):
        raise ConfigError(f"users must be a list of users, found the text {users!r}: write [{users!r}]")
    try:
        texts = as_text(pl.Series(list(users)))
    except (TypeError, pl.exceptions.PolarsError) as e:
        raise ConfigError(f"users must be a list of text or of numbers: {str(e).splitlines()[0]}") from None
    if not len(texts) or texts.null_count():
        raise ConfigError(f"users must not be empty, found {'no user' if not len(texts) else 'an empty one'}")
    return [str(text) for text in texts.unique(maintain_order=True).to_list()]


def _rows_of(log: pl.DataFrame, column: str, names: list[str]) -> list[np.ndarray]:
    """The rows of each user."""
    texts = as_text(log.get_column(column))
    found = pl.DataFrame({"user": texts, "row": np.arange(log.height)}).filter(pl.col("user").is_in(names))
    rows = dict(found.group_by("user").agg("row").iter_rows())
    absent = [name for name in names if name not in rows]
    if absent:
        more = f", nor of {len(absent) - 1} others" if len(absent) > 1 else ""
        raise DataError(f"the log has no row of user {absent[0]!r} in column {column!r}{more}; choose users of the log")
    return [np.sort(np.asarray(rows[name])) for name in names]


def _unseen(log: pl.DataFrame, column: str, items: pl.DataFrame, rows_of: list[np.ndarray]) -> list[np.ndarray]:
    """The rows of `items` that are not in each user's rows."""
    place = items.select(column).with_row_index("place")
    at = log.select(column).join(place, on=column, how="left", maintain_order="left").get_column("place")
    places = at.fill_null(items.height).to_numpy()  # a missing item is not an item
    return [np.setdiff1d(np.arange(items.height), places[rows]) for rows in rows_of]


def _last(rows: np.ndarray, moments: np.ndarray | None) -> int:
    """The latest of the rows: by time if the log has it, else the last one, also among equal times."""
    if moments is None:
        return int(rows[-1])
    return int(rows[len(rows) - 1 - np.argmax(moments[rows][::-1])])


def _stretches(users: int, items: int) -> Iterator[tuple[int, int]]:
    """Ranges of users whose rows with all items are about `ROWS_AT_ONCE`."""
    size = max(1, ROWS_AT_ONCE // items)
    return ((first, min(first + size, users)) for first in range(0, users, size))
