"""The columns of user and item ids: as set in the schema, or by one rule for schemas without them."""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from fieldwise.config import nearest
from fieldwise.errors import ConfigError
from fieldwise.schema import Field, Schema
from fieldwise.schema.names import id_rank

Who = Literal["user", "item"]


def id_column(
    role: Who, schemas: Sequence[Schema], columns: Collection[str] | None, given: str | None = None, *, option: str = ""
) -> str:
    """The column of user or item ids.

    A given column comes first, then a schema's (`user`, `item`). For schemas without them:

    1. users only: the schema's `group`, unless an item field reads it,
    2. categorical fields of this role whose names look like ids (`id_rank`), highest rank first,
    3. `user_id` or `item_id`,
    4. the other categorical fields of this role.

    The first of these that the table has is used.

    Args:
        role: `user` or `item`.
        schemas: the bundles' schemas, the most important first.
        columns: columns of the table; None if unknown.
        given: a column given by the caller, which overrides the rule.
        option: what gives it, for error messages.

    Errors:
        ConfigError: the table lacks the given column, the schema's, or all of the rule's.

    >>> from fieldwise import Categorical, Label
    >>> fields = Categorical("gender", role="user"), Categorical("viewer", role="user")
    >>> schema = Schema(fields=fields, label=Label("click"))
    >>> id_column("user", [schema], None), id_column("user", [schema], ["gender", "user_id"])
    ('viewer', 'user_id')
    >>> said = Schema(fields=fields, label=Label("click"), user="person")
    >>> id_column("user", [said], ["gender", "person", "user_id"])
    'person'
    """
    result = _resolve(role, schemas, columns, given, option)
    if result is None:
        possible = " or ".join(map(repr, _by_rule(role, schemas)))
        raise ConfigError(
            f"the table must have a column of {role} ids: by the schema {possible}, found "
            f"{', '.join(columns or ())}; {_or_give(option)}set {role} = COLUMN in the schema"
        )
    return result


def id_columns(columns: Collection[str], schema: Schema) -> dict[str, str | None]:
    """The columns of `user` and `item` ids by `id_column`; None if neither the schema nor the rule gives one.

    Errors:
        ConfigError: the table lacks the schema's column.
    """
    return {
        "user": _resolve("user", [schema], columns, None, ""),
        "item": _resolve("item", [schema], columns, None, ""),
    }


def id_field(role: Who, schema: Schema) -> str | None:
    """The name of the role's categorical field of ids; None if there is none.

    >>> from fieldwise import Categorical, Label
    >>> fields = Categorical("age", role="user"), Categorical("who", role="user", column="user_id")
    >>> id_field("user", Schema(fields=fields, label=Label("click")))
    'who'
    """
    fields = {f.column: f.name for f in schema.with_role(role) if f.cell == "category"}
    said: str | None = getattr(schema, role)
    return fields.get(said or _resolve(role, [schema], fields, None, "") or "")


def named_id(role: Who, schema: Schema) -> str | None:
    """The column of ids that the schema states, else the one whose name looks most like ids; None if none does.

    >>> from fieldwise import Categorical, Label
    >>> fields = Categorical("gender", role="user"), Categorical("film_id", role="item")
    >>> schema = Schema(fields=fields, label=Label("click"))
    >>> named_id("user", schema), named_id("item", schema)
    (None, 'film_id')
    """
    said: str | None = getattr(schema, role)
    return said or next((column for column, rank in _ranked(role, schema.fields).items() if rank), None)


def _ranked(role: Who, fields: Iterable[Field]) -> dict[str, int]:
    """Columns of a role's categorical fields, each with its `id_rank`, the highest first."""
    columns = dict.fromkeys(f.column for f in fields if f.role == role and f.cell == "category")
    return {column: id_rank(column) for column in sorted(columns, key=id_rank, reverse=True)}


def _resolve(
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
                f"the schema's {role} column is {said!r}, but the table has no such column: "
                f"{nearest(said, columns)}; {_or_give(option)}correct {role} in the schema"
            )
        return str(said)
    return next((one for one in _by_rule(role, schemas) if columns is None or one in columns), None)


def _or_give(option: str) -> str:
    return f"give {option}, or " if option else ""


def _by_rule(role: Who, schemas: Sequence[Schema]) -> list[str]:
    """Candidates for the column of ids if no schema has one, the likeliest first."""
    groups: list[str] = []
    if role == "user":
        of_items = {f.column for schema in schemas for f in schema.with_role("item")}
        groups = [schema.group for schema in schemas if schema.group is not None and schema.group not in of_items]
    ranked = _ranked(role, [f for schema in schemas for f in schema.fields])
    named = [column for column, rank in ranked.items() if rank]
    return list(dict.fromkeys([*groups, *named, f"{role}_id", *ranked]))
