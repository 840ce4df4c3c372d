"""Data of users from a log: the items of their rows, and the context of the latest row."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import latest_rows
from fieldwise.schema import Schema
from fieldwise.serving.stores.plain import plain_table

__all__ = ["UserLog"]


class UserLog:
    """Items that users have used, and their latest contexts.

    Args:
        log: rows of users and items; every row counts as use, regardless of its label.
        schemas: schemas of the recommender's bundles; their context fields form the context.
        user: the column of user ids.
        item: the column of item ids.

    Errors:
        DataError: as for `order_values`; a context value that is invalid in requests.

    >>> from fieldwise import Categorical, Label
    >>> rows = pl.DataFrame({"user": [7, 7], "item": ["b", "a"], "device": ["tv", "pc"], "click": [0, 1]})
    >>> schema = Schema(fields=(Categorical("user", role="user"), Categorical("device")), label=Label("click"))
    >>> log = UserLog(rows, [schema], "user", "item")
    >>> log.used("7"), log.context("7"), log.used("8")
    (['a', 'b'], {'device': 'pc'}, [])
    """

    def __init__(self, log: pl.DataFrame, schemas: Sequence[Schema], user: str, item: str) -> None:
        self.column = user
        timed = next((schema for schema in schemas if schema.time in log.columns), None)
        pairs = pl.DataFrame([as_text(log.get_column(user)).alias("user"), as_text(log.get_column(item)).alias("item")])
        used = pairs.drop_nulls().unique().sort("user", "item").group_by("user", maintain_order=True).agg("item")
        self._used = used.get_column("item")
        self._users = {name: row for row, name in enumerate(used.get_column("user"))}
        named = {field.column for schema in schemas for field in schema.fields if field.role == "context"} - {
            user,
            item,
        }
        time = (None, None) if timed is None else (timed.time, timed.time_format)
        latest = latest_rows(log, user, *time)
        self._contexts = plain_table(latest.select(column for column in log.columns if column in named))
        self._rows = {name: row for row, name in enumerate(as_text(latest.get_column(user)))}

    def used(self, user: str) -> list[str]:
        """The ids of the items in a user's rows; none for an unknown user."""
        row = self._users.get(user)
        return [] if row is None else self._used[row].to_list()

    def context(self, user: str) -> dict[str, Any]:
        """The values of context fields in a user's latest row, by column; none for an unknown user."""
        row = self._rows.get(user)
        if row is None or not self._contexts.width:
            return {}
        return self._contexts.row(row, named=True)
