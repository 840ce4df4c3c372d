"""Words whose meaning as the outcome of a row is known, such as `yes`, `not clicked` and `fail`."""

import re
from collections.abc import Sequence

from fieldwise.schema.ids import WORDS, without_accents

_YES = frozenset(WORDS["positive"])
_NO = frozenset(WORDS["negative"])
_PASSES = frozenset(WORDS["passes"])
_FAILURES = frozenset(WORDS["failures"])
_DENIAL = re.compile(r"(?:non|not|no|un|did not|didn't|never|nicht|kein|pas|не|nie|não|未|不) ?")


def word_meaning(text: str) -> bool | None:
    """Whether a word means positive (True) or negative (False), ignoring case; None if its meaning is unknown.

    >>> [word_meaning(word) for word in ("Yes", "not clicked", "NO", "50000+")]
    [True, False, False, None]
    """
    word = _known_form(text)
    if word in _YES:
        return True
    if word in _NO:
        return False
    denial = _DENIAL.match(word)
    denied = word[denial.end() :] if denial else ""
    if denied in _NO:
        return True
    if denied in _YES:
        return False
    return None


def _known_form(text: str) -> str:
    """A cell as the lists of words have it: in lower case, without accents unless a list has them."""
    parts = re.split(r"[\s_]+|(?<=\w)-(?=\w)", text.strip().casefold())
    word = " ".join(part for part in parts if part)
    if word in _YES or word in _NO:
        return word
    return without_accents(word)


def word_meanings(values: Sequence[str]) -> dict[str, bool | None]:
    """The meaning of each word of a column, beside the others: `pass` is a success beside `fail`, else no like.

    >>> word_meanings(["pass", "fail"]), word_meanings(["like", "pass"]), word_meanings(["pass", "other"])
    ({'pass': True, 'fail': False}, {'like': True, 'pass': False}, {'pass': None, 'other': None})
    """
    meanings = {value: word_meaning(value) for value in values}
    passes = []
    others = []
    for value in values:
        if _known_form(value) in _PASSES:
            passes.append(value)
        else:
            others.append(value)
    if any(_is_failure(value) for value in others):
        return meanings
    is_liked = any(meanings[value] for value in others)
    return meanings | dict.fromkeys(passes, False if is_liked else None)


def _is_failure(value: str) -> bool:
    """Whether a word is the contrary of `pass`: a failure, or a denied pass."""
    word = _known_form(value)
    return word in _FAILURES or word.endswith(tuple(_PASSES))
