"""Which columns name users and items: as the schema says, or by one rule for schemas that do not say."""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Literal

from fieldwise.config import nearest
from fieldwise.errors import ConfigError
from fieldwise.schema import Categorical, Field, Schema
from fieldwise.schema.names import id_rank

__all__ = ["Who", "id_column", "id_columns", "id_field", "ids_by_name"]

Who = Literal["user", "item"]
USUAL: dict[Who, str] = {"user": "user_id", "item": "item_id"}


def id_column(
    role: Who,
    schemas: Sequence[Schema],
    columns: Collection[str] | None,
    given: str | None = None,
    *,
    option: str | None = None,
) -> str:
    """The column that names users, or items.

    A given one counts before all, then what a schema says (`user`, `item`). For schemas that do not say it:

    1. users only: the schema's `group`, unless an item's field reads it,
    2. the categories of this role whose names look like ids (`id_rank`), those of highest rank first,
    3. `user_id` or `item_id`,
    4. the other categories of this role.

    Of these the first one is taken that the table has.

    Args:
        role: who is named.
        schemas: of the bundles, the most telling first.
        columns: of the table that has the column; None where it is not known.
        given: by the caller, in place of all this.
        option: what it is given by, for error messages; `--user-id` or `--item-id`, where left out.

    Errors:
        ConfigError: the table lacks the given column, the one that the schema says, or all of the rule's.

    >>> from fieldwise import Label
    >>> fields = Categorical("gender", role="user"), Categorical("viewer", role="user")
    >>> schema = Schema(fields=fields, label=Label("click"))
    >>> id_column("user", [schema], None), id_column("user", [schema], ["gender", "user_id"])
    ('viewer', 'user_id')
    >>> said = Schema(fields=fields, label=Label("click"), user="person")
    >>> id_column("user", [said], ["gender", "person", "user_id"])
    'person'
    """
    option = option or f"--{role}-id"
    found = _found(role, schemas, columns, given, option)
    if found is None:
        possible = " or ".join(map(repr, _by_rule(role, schemas)))
        raise ConfigError(
            f"the table must have a column that names {role}s: by the schema {possible}, found "
            f"{', '.join(columns or ())}; give {option}, or say {role} = COLUMN in the schema"
        )
    return found


def id_columns(
    columns: Collection[str], schema: Schema, *, user: str | None = None, item: str | None = None
) -> dict[str, str | None]:
    """The columns of `user` and `item` by `id_column`; None where the schema says none and the rule finds none.

    Args:
        columns: of the table.
        schema: what they mean.
        user: the column of users, if it is to be another.
        item: the column of items, likewise.

    Errors:
        ConfigError: the table lacks the given column, or the one that the schema says.

    >>> from fieldwise import Label
    >>> fields = Categorical("reader", role="user"), Categorical("book", role="item")
    >>> id_columns(["reader", "book", "liked"], Schema(fields=fields, label=Label("liked")))
    {'user': 'reader', 'item': 'book'}
    """
    return {
        "user": _found("user", [schema], columns, user, "--user"),
        "item": _found("item", [schema], columns, item, "--item"),
    }


def id_field(role: Who, schema: Schema) -> str | None:
    """The name of the role's categorical field that tells users, or items, apart; None where there is none.

    >>> from fieldwise import Label
    >>> fields = Categorical("age", role="user"), Categorical("who", role="user", column="user_id")
    >>> id_field("user", Schema(fields=fields, label=Label("click")))
    'who'
    """
    fields = {f.column: f.name for f in schema.with_role(role) if isinstance(f, Categorical)}
    said = getattr(schema, role)
    column = said if said is not None else _found(role, [schema], fields, None, "")
    return None if column is None else fields.get(column)


def ids_by_name(role: Who, fields: Iterable[Field]) -> list[tuple[int, tuple[str, ...]]]:
    """Columns of a role's categories by what their names tell (`id_rank`), the highest rank first, equals together.

    >>> names = "sku", "genre", "film_no", "title"
    >>> ids_by_name("item", [Categorical(name, role="item") for name in names])
    [(3, ('film_no',)), (2, ('sku',)), (0, ('genre', 'title'))]
    """
    columns = dict.fromkeys(f.column for f in fields if f.role == role and isinstance(f, Categorical))
    ranked = sorted(columns, key=id_rank, reverse=True)
    return [(rank, tuple(equals)) for rank, equals in groupby(ranked, key=id_rank)]


def _found(
    role: Who, schemas: Sequence[Schema], columns: Collection[str] | None, given: str | None, option: str
) -> str | None:
    if given is not None:
        if columns is not None and given not in columns:
            raise ConfigError(f"{option} must be a column of the table, found {given!r}: {nearest(given, columns)}")
        return given
    said = next((column for column in (getattr(schema, role) for schema in schemas) if column is not None), None)
    if said is not None:
        if columns is not None and said not in columns:
            raise ConfigError(
                f"the schema says that {said!r} names {role}s, but the table has no such column: "
                f"{nearest(said, columns)}; give {option}, or correct {role} in the schema"
            )
        return str(said)
    return next((one for one in _by_rule(role, schemas) if columns is None or one in columns), None)


def _by_rule(role: Who, schemas: Sequence[Schema]) -> list[str]:
    """What may name users or items where no schema says it, the likeliest first."""
    groups: list[str] = []
    if role == "user":
        of_items = {f.column for schema in schemas for f in schema.with_role("item")}
        groups = [schema.group for schema in schemas if schema.group is not None and schema.group not in of_items]
    ranked = ids_by_name(role, [f for schema in schemas for f in schema.fields])
    named = [column for rank, equals in ranked if rank for column in equals]
    others = [column for rank, equals in ranked if not rank for column in equals]
    return list(dict.fromkeys([*groups, *named, USUAL[role], *others]))
