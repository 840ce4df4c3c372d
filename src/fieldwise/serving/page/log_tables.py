"""Makes a server's tables of items and users from a log."""

from collections.abc import Sequence

import polars as pl

from fieldwise.config import nearest
from fieldwise.data.prepare.ordering import latest_rows
from fieldwise.errors import DataError
from fieldwise.schema import Schema

__all__ = ["tables_of_log"]


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
    named = {label.column for schema in schemas for label in schema.labels}
    for schema in schemas:
        named |= {c for c in (schema.time, schema.user, schema.item, schema.group, *schema.keys) if c is not None}
    timed = next((schema for schema in schemas if schema.time in log.columns), None)
    time = (None, None) if timed is None else (timed.time, timed.time_format)
    extra = [column for column in log.columns if column not in {item, user, *role, *named}]
    constant = _constant(log, item, extra)
    own = {item, *(column for column, one in role.items() if one == "item")}
    theirs = {user, *(column for column, one in role.items() if one == "user")} - {item}
    items = _latest(latest_rows(log, item, *time), item, own).join(constant, on=item, how="left", maintain_order="left")
    items = items.select(column for column in log.columns if column in items.columns)
    return items.select([item, *(c for c in items.columns if c != item)]), _latest(
        latest_rows(log, user, *time), user, theirs
    )


def _constant(log: pl.DataFrame, item: str, columns: list[str]) -> pl.DataFrame:
    """Each item's value in the columns that never have two values for an item; empty cells do not count."""
    rows = log.select(item, *columns).drop_nulls(item)
    values = rows.group_by(item).agg(pl.col(columns).drop_nulls().n_unique()) if columns else rows.select(item)
    kept = [column for column in columns if values.height and (values[column].max() or 0) <= 1]  # type: ignore[operator]
    return rows.group_by(item).agg(pl.col(kept).drop_nulls().first()) if kept else rows.select(item).unique()


def _latest(rows: pl.DataFrame, name: str, columns: set[str]) -> pl.DataFrame:
    return rows.select([name, *(column for column in rows.columns if column in columns - {name})])
