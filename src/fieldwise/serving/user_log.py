"""Data of users from a log: the items of their rows, and the context of the latest row."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.prepare.ordering import latest_rows
from fieldwise.schema import Label, Schema
from fieldwise.serving.stores.plain import plain_table

__all__ = ["Seen", "UserLog"]

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
        timed = next((schema for schema in schemas if schema.time in log.columns), None)
        label = schemas[-1].label
        self.positive = label.rule if label.column in log.columns else None
        pairs = pl.DataFrame([as_text(log.get_column(user)).alias("user"), as_text(log.get_column(item)).alias("item")])
        pairs = pairs.with_columns(positive=True if self.positive is None else _positive(log, label))
        rows = pairs.drop_nulls().group_by("user", "item").agg(pl.col("positive").any())
        of_users = rows.sort("user", "item").group_by("user", maintain_order=True)
        used = of_users.agg("item", liked=pl.col("item").filter("positive"))
        self._used: dict[Seen, pl.Series] = {True: used.get_column("item"), "positive": used.get_column("liked")}
        self._users = {name: row for row, name in enumerate(used.get_column("user"))}
        named = {field.column for schema in schemas for field in schema.fields if field.role == "context"} - {
            user,
            item,
        }
        time = (None, None) if timed is None else (timed.time, timed.time_format)
        latest = latest_rows(log, user, *time)
        self._contexts = plain_table(latest.select(column for column in log.columns if column in named))
        self._rows = {name: row for row, name in enumerate(as_text(latest.get_column(user)))}

    def used(self, user: str, which: Seen = True) -> list[str]:
        """The ids of the items in a user's rows, or in the `positive` ones alone; none for an unknown user.

        Every row counts as positive if the log does not say which are.
        """
        row = self._users.get(user)
        return [] if row is None or not which else self._used[which][row].to_list()

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
