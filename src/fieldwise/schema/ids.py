"""Which columns name the users and the items of a table: one rule for reports, ranking and the server."""

from collections.abc import Collection, Sequence
from typing import Literal

from fieldwise.config import nearest
from fieldwise.errors import ConfigError
from fieldwise.schema import Categorical, Schema
from fieldwise.schema.names import words_of

__all__ = ["id_column", "id_columns"]

USUAL = {"user": "user_id", "item": "item_id"}  # where the schema names none
IDS = frozenset(("id", "ids", "key", "no", "nr", "number", "uuid"))
USERS = frozenset(("user", "member", "customer", "client", "visitor", "viewer", "reader", "buyer", "person", "account"))


def id_column(
    role: Literal["user", "item"], schemas: Sequence[Schema], columns: Sequence[str] | None, given: str | None
) -> str:
    """The column that names a user, or an item.

    A given one counts before all. Users are named by the schemas' group, unless an item's field reads it, then by the
    first category of role user whose name says that it is an id, then by `user_id`, then by the first category of
    role user. Items are named by the first category of role item, then by `item_id`.

    Args:
        role: who is named.
        schemas: of the bundles, the most telling first.
        columns: of the table that has the column; None where it is not known.
        given: by the user of the program.

    Errors:
        ConfigError: the table has none of these columns, or none of the one given.

    >>> from fieldwise import Label
    >>> fields = Categorical("gender", role="user"), Categorical("viewer", role="user")
    >>> schema = Schema(fields=fields, label=Label("click"))
    >>> id_column("user", [schema], None, None), id_column("user", [schema], ["gender", "user_id"], None)
    ('viewer', 'user_id')
    """
    option = f"--{role}-id"
    if given is not None:
        if columns is not None and given not in columns:
            raise ConfigError(f"{option} must be a column of the table, found {given!r} among {', '.join(columns)}")
        return given
    possible = _possible(role, schemas)
    found = [one for one in possible if columns is None or one in columns]
    if not found:
        raise ConfigError(
            f"the table must have a column that names {role}s: by the schema {' or '.join(map(repr, possible))}, found "
            f"{', '.join(columns or ())}; give {option}"
        )
    return found[0]


def id_columns(
    columns: Collection[str], schema: Schema, *, user: str | None = None, item: str | None = None
) -> dict[str, str | None]:
    """The columns of `user` and `item`: as given, or by the rule of `id_column`; None where the table has none.

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
    given: dict[Literal["user", "item"], str | None] = {"user": user, "item": item}
    found: dict[str, str | None] = {}
    for role, name in given.items():
        if name is not None and name not in columns:
            raise ConfigError(f"--{role} must be a column of the rows, found {name!r}: {nearest(name, columns)}")
        found[role] = name if name is not None else next((c for c in _possible(role, [schema]) if c in columns), None)
    return found


def _possible(role: Literal["user", "item"], schemas: Sequence[Schema]) -> list[str]:
    categories = [f.column for schema in schemas for f in schema.with_role(role) if isinstance(f, Categorical)]
    if role == "item":
        return list(dict.fromkeys([*categories, USUAL[role]]))
    of_items = {f.column for schema in schemas for f in schema.with_role("item")}
    groups = [schema.group for schema in schemas if schema.group is not None and schema.group not in of_items]
    named = [column for column in categories if _says_id(column)]
    return list(dict.fromkeys([*groups, *named, USUAL[role], *categories]))


def _says_id(name: str) -> bool:
    words = words_of(name)
    return bool(words) and (words[-1] in IDS or words[-1].removesuffix("s") in USERS or words[-1].endswith("id"))
