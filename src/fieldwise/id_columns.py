"""Which columns name the users and the items of a table."""

from collections.abc import Collection

from fieldwise.config import nearest
from fieldwise.errors import ConfigError
from fieldwise.schema import Categorical, Schema

__all__ = ["id_columns"]


def id_columns(
    columns: Collection[str], schema: Schema, *, user: str | None = None, item: str | None = None
) -> dict[str, str | None]:
    """The columns of `user` and `item`: as given, or the schema's group and its first categories by role, or None.

    Args:
        columns: of the table.
        schema: what they mean.
        user: the column of users, if it is to be another.
        item: the column of items, likewise.

    Errors:
        ConfigError: one was given that the table does not have.

    >>> from fieldwise import Label
    >>> fields = Categorical("reader", role="user"), Categorical("book", role="item")
    >>> id_columns(["reader", "book", "liked"], Schema(fields=fields, label=Label("liked")))
    {'user': 'reader', 'item': 'book'}
    """
    found = {}
    for role, given in (("user", user), ("item", item)):
        if given is not None and given not in columns:
            raise ConfigError(f"--{role} must be a column of the rows, found {given!r}: {nearest(given, columns)}")
        categories = [f.column for f in schema.with_role(role) if isinstance(f, Categorical)]  # type: ignore[arg-type]
        usual = [*([schema.group] if role == "user" and schema.group in columns else []), *categories]
        found[role] = given if given is not None else next((c for c in usual if c is not None), None)
    return found
