"""A log of users' rows: the items in them, the latest contexts, and the tables of items and users made of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text, empty_as_null, missing_as_null
from fieldwise.data.prepare.labels import positive_rows
from fieldwise.data.prepare.ordering import latest_rows, latest_values
from fieldwise.errors import DataError
from fieldwise.schema import Role, Schema
from fieldwise.schema.ids import Who
from fieldwise.scoring import Seen
from fieldwise.serving.rows import plain_table

__all__ = ["UserLog", "tables_of_log", "varying_columns"]


class UserLog:
    """Items of users' rows, also of the positive ones alone, and users' latest contexts.

    Args:
        log: rows of users and items.
        schemas: schemas of the recommender's bundles, the ranking one last: its main label says
            which rows are positive. Their context fields form the context.
        user: the column of user ids.
        item: the column of item ids.

    Errors:
        DataError: the log lacks a column of ids, or a label or a time cannot be read.

    Attributes:
        label: the label of the log's rows; None if the log lacks it, or it is a regression's.
        positive: its rule of a positive row in words.

    >>> from fieldwise import Categorical, Label
    >>> rows = pl.DataFrame({"user": [7, 7], "item": ["b", "a"], "device": ["tv", "pc"], "click": [0, 1]})
    >>> schema = Schema(fields=(Categorical("user", role="user"), Categorical("device")), label=Label("click"))
    >>> log = UserLog(rows, [schema], "user", "item")
    >>> log.used("7"), log.used("7", "positive"), log.context("7"), log.used("8")
    (['a', 'b'], ['a'], {'device': 'pc'}, [])
    """

    def __init__(self, log: pl.DataFrame, schemas: Sequence[Schema], user: str, item: str) -> None:
        self.column = user
        log = empty_as_null(log, user, item)
        label = schemas[-1].label
        positive = positive_rows(log, label)
        self.label = None if positive is None else label
        self.positive = None if positive is None else label.rule
        items_of_users = _items_of_users(log, user, item, positive)

        latest = latest_rows(log, user, schemas)
        users = as_text(latest.get_column(user)).alias("user")
        self._rows = {name: row for row, name in enumerate(users)}
        items = users.to_frame().join(items_of_users, "user", how="left", maintain_order="left")
        self._used: dict[Seen, pl.Series] = {
            True: items.get_column("item"),
            "positive": items.get_column("positive_item"),
        }

        context_columns = _columns_of_role(schemas, "context") - {user, item}
        columns = [column for column in log.columns if column in context_columns]
        self._contexts = plain_table(latest.select(columns))

    def used(self, user: str, which: Seen = True) -> list[str]:
        """The ids of the items in a user's rows, or in the `positive` ones alone; none for an unknown user.

        Every row counts as positive if the log does not say which are.
        """
        row = self._rows.get(user)
        if row is None or not which:
            return []
        items = self._used[which][row]
        return [] if items is None else items.to_list()

    def context(self, user: str) -> dict[str, Any]:
        """The values of context fields in a user's latest row, by column; none for an unknown user."""
        row = self._rows.get(user)
        if row is None or not self._contexts.width:
            return {}
        return self._contexts.row(row, named=True)


def _items_of_users(
    log: pl.DataFrame, user: str, item: str, positive: np.ndarray | None
) -> pl.DataFrame:
    """A row per user: the sorted ids of the items in the user's rows, and of those in positive rows."""
    pairs = pl.DataFrame(
        {"user": as_text(log.get_column(user)), "item": as_text(log.get_column(item))}
    )
    pairs = pairs.with_columns(positive=True if positive is None else positive)
    pairs = pairs.drop_nulls().group_by("user", "item").agg(pl.col("positive").any())
    by_user = pairs.sort("user", "item").group_by("user", maintain_order=True)
    return by_user.agg("item", positive_item=pl.col("item").filter("positive"))


def varying_columns(log: pl.DataFrame, schemas: Sequence[Schema], item: str) -> list[str]:
    """The columns of item fields that have several values within an item of a log, of which the latest counts.

    >>> from fieldwise import Categorical, Label, Numeric
    >>> fields = Categorical("item", role="item"), Numeric("price", role="item"), Numeric("length", role="item")
    >>> log = pl.DataFrame({"item": ["a", "a"], "price": [9.5, 8.0], "length": [90, 90]})
    >>> varying_columns(log, [Schema(fields=fields, label=Label("liked"))], "item")
    ['price']
    """
    item_columns = _columns_of_role(schemas, "item") - {item}
    columns = [column for column in log.columns if column in item_columns]
    rows = empty_as_null(log.select(item, *columns), item).drop_nulls(item)
    for schema in schemas:
        fields = [field for field in schema.with_role("item") if field.column in columns]
        rows = missing_as_null(rows, fields, schema.missing)
    counts = rows.group_by(item).agg(pl.col(columns).drop_nulls().n_unique())
    if not counts.height:
        return []
    return [column for column in columns if counts.select(pl.col(column).max() > 1).item()]


def tables_of_log(
    log: pl.DataFrame, schemas: Sequence[Schema], item: str, user: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The items and the users of a log, each with its latest values: by the schemas' time, else from the last rows.

    The latest value of a field is one that is not missing. Histories are those of the latest row.

    Items have the columns of the item fields. They also have the columns that no schema names and
    that never have two values for the same item, such as titles. Users have the columns of the user
    fields. Rows without an id are ignored. Both tables are sorted by id.

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
            raise DataError(
                f"the log must have the column {column!r}: {nearest(column, log.columns)}"
            )
    log = empty_as_null(log, item, user)

    def latest(id_column: str, who: Who) -> pl.DataFrame:
        own_columns = {column for column, side in role.items() if side == who} - {item, user}
        rows = latest_values(log, id_column, schemas, who)
        return rows.select(id_column, *(column for column in log.columns if column in own_columns))

    named = {item, user}.union(*(schema.named for schema in schemas))
    unnamed = [column for column in log.columns if column not in named]
    cells_by_item = log.select(item, *unnamed).drop_nulls(item).group_by(item)
    counts = cells_by_item.agg(pl.col(unnamed).drop_nulls().n_unique())
    constant = [column for column in unnamed if counts.select(pl.col(column).max() <= 1).item()]
    constant_cells = cells_by_item.agg(pl.col(constant).drop_nulls().first())

    items = latest(item, "item").join(constant_cells, on=item, how="left", maintain_order="left")
    columns = [column for column in log.columns if column in items.columns and column != item]
    return items.select(item, *columns), latest(user, "user")


def _columns_of_role(schemas: Sequence[Schema], role: Role) -> set[str]:
    return {field.column for schema in schemas for field in schema.with_role(role)}
