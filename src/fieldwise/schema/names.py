"""Inferring roles, label and time from column names."""

import re

from fieldwise.schema import Role

__all__ = [
    "HISTORIES",
    "LABELS",
    "LIKELY_LABELS",
    "MOMENTARY",
    "TIMES",
    "id_rank",
    "is_label_name",
    "name_matches",
    "role_of",
    "words_of",
]

LABELS = ("label", "click", "clicked", "like", "liked", "rating", "stars", "target", "y")
LIKELY_LABELS = (  # labels if there is no other; besides a label they may be fields
    *("bought", "buy", "purchase", "purchased", "ordered", "conversion", "converted", "churn", "churned"),
    *("class", "outcome", "overall", "score", "response", "income", "survived"),
)
TIMES = (
    *("timestamp", "time", "datetime", "date", "ts", "unix_time", "event_time", "event_date", "created_at"),
    *("created", "clicked_at", "viewed_at", "order_date", "purchase_date", "review_time", "unix_review_time"),
)
HISTORIES = ("history", "hist", "sequence", "seq", "recent", "past", "last", "previous")

_USERS = """
user users uid member customer client visitor buyer viewer reader reviewer subscriber player listener guest username
person account
"""
_OF_USERS = """
age gender sex occupation job education income marital relationship race zip zipcode postcode city state country region
history hist workclass
"""
_ITEMS = """
item items iid sku asin isbn ean upc article hotel restaurant venue business place poi recipe show anime game listing
property offer offering podcast movie film product ad ads advert banner creative book song track artist album app video
news
"""
_OF_ITEMS = """
campaign title genre genres category categories brand price author publisher director actors release length
duration
"""
_ENTITIES = frozenset((_USERS + _ITEMS).split())
_USER, _ITEM = frozenset((_USERS + _OF_USERS).split()), frozenset((_ITEMS + _OF_ITEMS).split())
# Context, even if each user in the table has only one value.
MOMENTARY = frozenset(
    ("hour", "weekday", "day", "month", "week", "minute", "season", "daytime", "weekend", "holiday", "position", "rank")
)
_IDS = frozenset(("id", "ids", "key", "no", "nr", "number", "code"))
_IDS_OF_UNKNOWN = frozenset(("id", "ids", "key", "no", "nr", "number", "uid", "guid", "uuid"))


def words_of(name: str) -> list[str]:
    """The words of a column's name, in lower case.

    >>> words_of("userAge_group2")
    ['user', 'age', 'group2']
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [w for w in re.split(r"[^0-9a-z]+", parted.lower()) if w]


def name_matches(name: str, known: tuple[str, ...]) -> bool:
    """Whether the name, split into words, is one of the known ones."""
    return "_".join(words_of(name)) in known


def is_label_name(name: str, known: tuple[str, ...] = LABELS) -> bool:
    """Whether the name is one of the known ones, with or without an `is` or `has` before it.

    >>> is_label_name("isClicked"), is_label_name("clicks_before")
    (True, False)
    """
    words = words_of(name)
    return "_".join(words[1:] if words[:1] in (["is"], ["has"], ["was"], ["did"]) else words) in known


def role_of(name: str) -> tuple[Role, str]:
    """The role of a column and the reason, from the first known word of its name.

    >>> role_of("movie_id"), role_of("weekday")[0]
    (('item', "its whole name is 'movie'"), 'context')
    """
    words = words_of(name)
    for word in words:
        stem = word.rstrip("0123456789").removesuffix("id") or word
        for role, known in (("user", _USER), ("item", _ITEM)):
            hit = next((w for w in (word, stem) if w in known), None)
            if hit is not None:
                whole = all(w in (word, *_IDS) for w in words)
                return role, f"its {'whole name is' if whole else 'name has'} {hit!r}"  # type: ignore[return-value]
    return "context", "its name indicates neither user nor item"


def id_rank(name: str) -> int:
    """How likely a column's name is an id of users or items, from 3 to 0.

    3: an entity's id (`movie_id`), 2: the entity itself (`movie`), 1: an id of something unknown (`cust_id`), 0:
    anything else (`genre_id`, `age`).

    >>> [id_rank(name) for name in ("movie_id", "movie", "cust_id", "genre_id", "age")]
    [3, 2, 1, 0, 0]
    """
    words = words_of(name)
    role, reason = role_of(name)
    if role == "context":
        return int(not _IDS_OF_UNKNOWN.isdisjoint(words[-1:]))
    if not any(w in _ENTITIES or w.removesuffix("id") in _ENTITIES for w in words):
        return 0
    if name.lower().endswith("id") or words[-1] in ("key", "no", "nr", "number", "code"):
        return 3
    return 2 if reason.startswith("its whole name") else 0
