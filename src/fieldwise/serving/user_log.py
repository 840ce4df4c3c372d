"""Data from a log: the items of users' rows, the context of the latest one, and tables of items and users."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.prepare.ordering import latest_rows
from fieldwise.errors import DataError
from fieldwise.schema import Label, Schema
from fieldwise.serving.plain_values import plain_table

__all__ = ["Seen", "UserLog", "tables_of_log"]

Seen = bool | Literal["positive"]  # what to exclude: items of all rows, of none, or of positive ones


class UserLog:
    """Items of users' rows, also of the positive ones alone, and users' latest contexts.

    Args:
        log: rows of users and items.
        schemas: schemas of the recommender's bundles, the ranking one last: its main label says which rows are
            positive. Their context fields form the context.
        user: the column of user ids.
        item: the column of item ids.

    Errors:
        DataError: as for `order_values` and `read_label`; a context value that is invalid in requests.

    Attributes:
        positive: the rule of a positive row in words; None if the log lacks the label, or it is a regression's.

    >>> from fieldwise import Categorical, Label
    >>> rows = pl.DataFrame({"user": [7, 7], "item": ["b", "a"], "device": ["tv", "pc"], "click": [0, 1]})
    >>> schema = Schema(fields=(Categorical("user", role="user"), Categorical("device")), label=Label("click"))
    >>> log = UserLog(rows, [schema], "user", "item")
    >>> log.used("7"), log.used("7", "positive"), log.context("7"), log.used("8")
    (['a', 'b'], ['a'], {'device': 'pc'}, [])
    """

    def __init__(self, log: pl.DataFrame, schemas: Sequence[Schema], user: str, item: str) -> None:
        self.column = user
        label = schemas[-1].label
        self.positive = label.rule if label.column in log.columns else None
        pairs = pl.DataFrame([as_text(log.get_column(user)).alias("user"), as_text(log.get_column(item)).alias("item")])
        pairs = pairs.with_columns(positive=True if self.positive is None else _positive(log, label))
        rows = pairs.drop_nulls().group_by("user", "item").agg(pl.col("positive").any())
        of_users = rows.sort("user", "item").group_by("user", maintain_order=True)
        latest = latest_rows(log, user, *_time(log, schemas))
        names = as_text(latest.get_column(user)).alias("user")
        used = names.to_frame().join(
            of_users.agg("item", liked=pl.col("item").filter("positive")), "user", how="left", maintain_order="left"
        )
        self._used: dict[Seen, pl.Series] = {True: used.get_column("item"), "positive": used.get_column("liked")}
        self._rows = {name: row for row, name in enumerate(names)}
        context = {field.column for schema in schemas for field in schema.fields if field.role == "context"}
        self._contexts = plain_table(
            latest.select(column for column in log.columns if column in context - {user, item})
        )

    def used(self, user: str, which: Seen = True) -> list[str]:
        """The ids of the items in a user's rows, or in the `positive` ones alone; none for an unknown user.

        Every row counts as positive if the log does not say which are.
        """
        row = self._rows.get(user)
        items = None if row is None or not which else self._used[which][row]
        return [] if items is None else items.to_list()

    def context(self, user: str) -> dict[str, Any]:
        """The values of context fields in a user's latest row, by column; none for an unknown user."""
        row = self._rows.get(user)
        if row is None or not self._contexts.width:
            return {}
        return self._contexts.row(row, named=True)


def _positive(log: pl.DataFrame, label: Label) -> np.ndarray:
    """Which rows are positive [N]; a row without a label is not."""
    known = log.get_column(label.column).is_not_null().to_numpy()
    found = np.zeros(log.height, dtype=bool)
    if known.any():
        rows = read_label(log.filter(known), label, all_negative=True)
        numbers = np.flatnonzero(known)
        found[numbers if rows.kept is None else numbers[rows.kept]] = rows.main > 0
    return found


def tables_of_log(
    log: pl.DataFrame, schemas: Sequence[Schema], item: str, user: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The items and the users of a log, each with its latest values: by the schemas' time, else from the last row.

    Items have the columns of the item fields. They also have the columns that no schema names and that never have two
    values for the same item, such as titles. Users have the columns of the user fields. Rows without an id are
    ignored. Both tables are sorted by id.

    Args:
        log: rows of users and items.
        schemas: schemas of the bundles that will read the tables.
        item: column of the item ids.
        user: column of the user ids.

    Errors:
        DataError: a column is missing.

    >>> from fieldwise import Categorical, Label, simulate
    >>> fields = Categorical("gender", role="user"), Categorical("item_id", role="item")
    >>> log = simulate(500, users=20, items=10)
    >>> items, users = tables_of_log(log, [Schema(fields=fields, label=Label("liked"))], "item_id", "user_id")
    >>> items.columns, users.columns
    (['item_id', 'title', 'genres', 'release_decade', 'length'], ['user_id', 'gender'])
    """
    role = {field.column: field.role for schema in schemas for field in schema.fields}
    for column in (item, user, *role):
        if column not in log.columns:
            raise DataError(f"the log must have the column {column!r}: {nearest(column, log.columns)}")
    named = {item, user}.union(*(schema.named for schema in schemas))
    extra = [column for column in log.columns if column not in named]
    cells = log.select(item, *extra).drop_nulls(item).group_by(item)
    values = cells.agg(pl.col(extra).drop_nulls().n_unique())
    constant = [column for column in extra if values.select(pl.col(column).max() <= 1).item()]  # of each item

    def latest(id_column: str, side: str) -> pl.DataFrame:
        own = {column for column, one in role.items() if one == side} - {item, user}
        rows = latest_rows(log, id_column, *_time(log, schemas))
        return rows.select(id_column, *(column for column in log.columns if column in own))

    items = latest(item, "item").join(
        cells.agg(pl.col(constant).drop_nulls().first()), on=item, how="left", maintain_order="left"
    )
    return items.select(item, *(c for c in log.columns if c in items.columns and c != item)), latest(user, "user")


def _time(log: pl.DataFrame, schemas: Sequence[Schema]) -> tuple[str | None, str | None]:
    """The first schema's column of times that a log has, and its format."""
    return next(((one.time, one.time_format) for one in schemas if one.time in log.columns), (None, None))
