"""Columns by their names: what names tell of roles, labels, times and kinds, and the columns of user and item ids.

Names are a prior that the rows may overturn. Columns of ids are those set in the schema, or found
by one rule.
"""

import re
import tomllib
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from fieldwise.config import nearest
from fieldwise.errors import ConfigError
from fieldwise.schema import Field, Role, Schema

Who = Literal["user", "item"]
SIDES: tuple[Who, ...] = ("user", "item")

_TEXTS = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
WORDS = {what: tuple(words.split()) for what, words in _TEXTS.items()}
LABELS, LIKELY_LABELS, TIMES, HISTORIES = (
    WORDS[what] for what in ("labels", "likely_labels", "times", "histories")
)
MOMENTARY = frozenset(WORDS["momentary"])
ENTITIES = frozenset(WORDS["users"] + WORDS["items"])
_IDS, _IDS_BEFORE, _OF = (frozenset(WORDS[what]) for what in ("ids", "ids_before", "of"))
_COMPOUND_ENDS = tuple(sorted(_IDS - {"id", "ids"}, key=len, reverse=True))
"""Of names in which nothing parts the words; `visitorid` is one word."""
_QUANTITY_ENDS = tuple(word for word in WORDS["quantities"] if len(word) >= 5 or not word.isascii())
_BEFORE_LABELS = frozenset(("is", "has", "was", "did"))
_REMEMBERED_NAMES = 1 << 16
"""Names of columns whose words, role and kind are kept: inference asks for them many times."""
_WORDS_OF_SIDES: dict[Role, frozenset[str]] = {
    "user": frozenset(WORDS["users"] + WORDS["of_users"]),
    "item": frozenset(WORDS["items"] + WORDS["of_items"]),
}


def without_accents(text: str) -> str:
    """Text without the accents of Latin and Greek letters; other scripts have letters that differ by such a mark.

    >>> without_accents("Größe, café, μέλος, рейтинг, ユーザー")
    'Große, cafe, μελος, рейтинг, ユーザー'
    """
    columns: list[str] = []
    for letter in unicodedata.normalize("NFKD", text):
        is_accent = (
            unicodedata.combining(letter)
            and columns
            and (columns[-1].isascii() or "α" <= columns[-1].lower() <= "ω")
        )
        if not is_accent:
            columns.append(letter)
    return unicodedata.normalize("NFC", "".join(columns))


@lru_cache(maxsize=_REMEMBERED_NAMES)
def words_of(name: str) -> tuple[str, ...]:
    """The words of a column's name, in lower case, without accents.

    >>> words_of("userAge_group2"), words_of("Müşteri-Nr.")
    (('user', 'age', 'group2'), ('musteri', 'nr'))
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = without_accents(parted) or parted
    words = [w for w in re.split(r"[\W_]+", plain.lower().replace("ı", "i")) if w]
    return tuple(part for word in words for part in _parts(word))


def _parts(word: str) -> list[str]:
    """A compound of an entity and a word of ids as two words, as in Kundennummer and 会員番号; else the word alone."""
    for end in _COMPOUND_ENDS:
        entity = word.removesuffix(end)
        if entity != word and entity in ENTITIES:
            return [entity, end]
    return [word]


def name_matches(name: str, known: tuple[str, ...]) -> bool:
    """Whether the name, split into words, is one of the known ones."""
    return "_".join(words_of(name)) in known


def is_label_name(name: str, known: tuple[str, ...] = LABELS) -> bool:
    """Whether the name is one of the known ones, with or without an `is` or `has` before it.

    >>> is_label_name("isClicked"), is_label_name("clicks_before")
    (True, False)
    """
    words = words_of(name)
    if words and words[0] in _BEFORE_LABELS:
        words = words[1:]
    return "_".join(words) in known


class NamedRole(NamedTuple):
    """The role that a column's name tells, and the reason.

    `is_whole_name` is whether the name has no other words than that of the role and words of ids.
    """

    role: Role
    reason: str
    is_whole_name: bool


@lru_cache(maxsize=_REMEMBERED_NAMES)
def role_of(name: str) -> NamedRole:
    """The role of a column and the reason, from the first known word of its name.

    >>> role_of("movie_id").role, role_of("movie_id").reason, role_of("weekday").role
    ('item', "its whole name is 'movie'", 'context')
    """
    words = words_of(name)
    for word in words:
        stem = word.rstrip("0123456789").removesuffix("id") or word
        for role, known in _WORDS_OF_SIDES.items():
            hit = next((w for w in (word, stem) if w in known), None)
            if hit is not None:
                is_whole_name = all(w in (word, *WORDS["ids"]) for w in words)
                reason = f"its {'whole name is' if is_whole_name else 'name has'} {hit!r}"
                return NamedRole(role, reason, is_whole_name)
    reason = "its name indicates neither user nor item"
    return NamedRole("context", reason, is_whole_name=False)


@lru_cache(maxsize=_REMEMBERED_NAMES)
def kind_of_name(name: str) -> Literal["code", "quantity", ""]:
    """Whether a name tells a code or a quantity; "" if neither.

    >>> [kind_of_name(name) for name in ("visitorid", "n_orders", "user_age", "Gesamtpreis", "banana")]
    ['code', 'quantity', 'quantity', 'quantity', '']
    """
    words = words_of(name)
    if not words:
        return ""
    last = words[-1]
    if last in WORDS["codes"] or last in MOMENTARY or id_rank(name) >= 2:
        return "code"
    quantity = not set(WORDS["quantities"]).isdisjoint(words) or words[0] in ("n", "nb", "num")
    quantity = quantity or last.endswith(_QUANTITY_ENDS)
    return "quantity" if quantity else ""


@lru_cache(maxsize=_REMEMBERED_NAMES)
def id_rank(name: str) -> int:
    """How likely a column's name is an id of users or items, from 3 to 0.

    3: an entity's id (`movie_id`), 2: the entity itself (`movie`), 1: an id of something unknown
    (`cust_id`), 0: anything else (`genre_id`, `age`).

    >>> [id_rank(name) for name in ("movie_id", "movie", "shelf_id", "genre_id", "age")]
    [3, 2, 1, 0, 0]
    """
    words = words_of(name)
    named = role_of(name)
    if named.role == "context":
        return int(bool(words) and words[-1] in WORDS["ids_of_unknown"])
    if not any(w in ENTITIES or w.removesuffix("id") in ENTITIES for w in words):
        return 0
    before = [word for word in words if word not in _OF]
    names_entity = len(before) == 2 and before[0] in _IDS_BEFORE and before[1] in ENTITIES
    if name.lower().endswith("id") or words[-1] in _IDS or names_entity:
        return 3
    return 2 if named.is_whole_name else 0


def id_column(
    role: Who,
    schemas: Sequence[Schema],
    columns: Collection[str] | None,
    given: str | None = None,
    *,
    option: str = "",
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
    return {role: _resolve(role, [schema], columns, None, "") for role in SIDES}


def id_field(role: Who, schema: Schema) -> str | None:
    """The name of the role's categorical field of ids; None if there is none.

    >>> from fieldwise import Categorical, Label
    >>> fields = Categorical("age", role="user"), Categorical("who", role="user", column="user_id")
    >>> id_field("user", Schema(fields=fields, label=Label("click")))
    'who'
    """
    fields = {f.column: f.name for f in schema.with_role(role) if f.has_own_ids}
    column: str | None = getattr(schema, role)
    return fields.get(column or _resolve(role, [schema], fields, None, "") or "")


def named_id(role: Who, schema: Schema) -> str | None:
    """The column of ids that the schema states, else the one whose name looks most like ids; None if none does.

    >>> from fieldwise import Categorical, Label
    >>> fields = Categorical("gender", role="user"), Categorical("film_id", role="item")
    >>> schema = Schema(fields=fields, label=Label("click"))
    >>> named_id("user", schema), named_id("item", schema)
    (None, 'film_id')
    """
    stated: str | None = getattr(schema, role)
    if stated:
        return stated
    for column, rank in _ranked(role, schema.fields).items():
        if rank:
            return column
    return None


def _ranked(role: Who, fields: Iterable[Field]) -> dict[str, int]:
    """Columns of a role's categorical fields, each with its `id_rank`, the highest first."""
    columns = dict.fromkeys(f.column for f in fields if f.role == role and f.cell == "category")
    return {column: id_rank(column) for column in sorted(columns, key=id_rank, reverse=True)}


def _resolve(
    role: Who,
    schemas: Sequence[Schema],
    columns: Collection[str] | None,
    given: str | None,
    option: str,
) -> str | None:
    if given is not None:
        if columns is not None and given not in columns:
            raise ConfigError(
                f"{option} must be a column of the table, found {given!r}: {nearest(given, columns)}"
            )
        return given

    stated = [getattr(schema, role) for schema in schemas if getattr(schema, role) is not None]
    if stated:
        column = str(stated[0])
        if columns is not None and column not in columns:
            raise ConfigError(
                f"the schema's {role} column is {column!r}, but the table has no such column: "
                f"{nearest(column, columns)}; {_or_give(option)}correct {role} in the schema"
            )
        return column

    for column in _by_rule(role, schemas):
        if columns is None or column in columns:
            return column
    return None


def _or_give(option: str) -> str:
    return f"give {option}, or " if option else ""


def _by_rule(role: Who, schemas: Sequence[Schema]) -> list[str]:
    """Candidates for the column of ids if no schema has one, the likeliest first."""
    groups: list[str] = []
    if role == "user":
        of_items = {f.column for schema in schemas for f in schema.with_role("item")}
        groups = [
            schema.group
            for schema in schemas
            if schema.group is not None and schema.group not in of_items
        ]
    ranked = _ranked(role, [f for schema in schemas for f in schema.fields])
    named = [column for column, rank in ranked.items() if rank]
    return list(dict.fromkeys([*groups, *named, f"{role}_id", *ranked]))


FEATURES_TIME = "features_time"
"""The column of a table for a server with the time as of which its features were computed, in seconds since 1970."""
FEATURES_TTL = "features_ttl"
"""The column with their time to live in seconds; the columns behind it are the features."""
