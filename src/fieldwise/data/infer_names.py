"""What columns' names tell: whom they describe, which is the label, which the time."""

import re

from fieldwise.schema import Role

__all__ = ["HISTORIES", "LABELS", "LIKELY_LABELS", "TIMES", "is_label_name", "name_matches", "role_of", "words_of"]

LABELS = ("label", "click", "clicked", "like", "liked", "rating", "stars", "target", "y")
LIKELY_LABELS = (  # labels where nothing else is; beside a label they may be fields
    *("bought", "buy", "purchase", "purchased", "ordered", "conversion", "converted", "churn", "churned"),
    *("class", "outcome", "overall", "score", "response", "income", "survived"),
)
TIMES = ("timestamp", "time", "datetime", "date", "ts", "unix_time", "event_time", "created_at")
HISTORIES = ("history", "hist", "sequence", "seq", "recent", "past", "last", "previous")

_USER_WORDS = """
user users member customer client visitor buyer viewer reader person account age gender sex occupation job education
income marital relationship race zip zipcode postcode city state country region history hist workclass
"""
_ITEM_WORDS = """
item items movie film product ad ads advert campaign banner creative book song track artist album app article video news
title genre genres category categories brand price author publisher isbn director actors release length duration
"""
_USER, _ITEM = frozenset(_USER_WORDS.split()), frozenset(_ITEM_WORDS.split())
_IDS = frozenset(("id", "ids", "key", "no", "nr", "number", "code"))


def words_of(name: str) -> list[str]:
    """The words of a column's name, in lower case.

    >>> words_of("userAge_group2")
    ['user', 'age', 'group2']
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [w for w in re.split(r"[^0-9a-z]+", parted.lower()) if w]


def name_matches(name: str, known: tuple[str, ...]) -> bool:
    """Whether the name, written in words, is one of the known ones."""
    return "_".join(words_of(name)) in known


def is_label_name(name: str, known: tuple[str, ...] = LABELS) -> bool:
    """Whether the name is one of the known ones, with or without an `is` or `has` before it.

    >>> is_label_name("isClicked"), is_label_name("clicks_before")
    (True, False)
    """
    words = words_of(name)
    return "_".join(words[1:] if words[:1] in (["is"], ["has"], ["was"], ["did"]) else words) in known


def role_of(name: str) -> tuple[Role, str]:
    """Whom a column describes, and the reason: the first of its words that is known decides.

    >>> role_of("movie_id"), role_of("weekday")[0]
    (('item', "its whole name says 'movie'"), 'context')
    """
    words = words_of(name)
    for word in words:
        stem = word.rstrip("0123456789").removesuffix("id") or word
        for role, known in (("user", _USER), ("item", _ITEM)):
            hit = next((w for w in (word, stem) if w in known), None)
            if hit is not None:
                whole = all(w in (word, *_IDS) for w in words)
                return role, f"its {'whole ' if whole else ''}name says {hit!r}"  # type: ignore[return-value]
    return "context", "its name tells neither user nor item"
