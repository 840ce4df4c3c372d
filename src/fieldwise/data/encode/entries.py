"""A field and its fitted part as an entry of the encoder's JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from fieldwise.config import parse, to_plain
from fieldwise.data.encode.fitted import Fitted, Vocabulary
from fieldwise.errors import DataError
from fieldwise.schema import Field

__all__ = ["Entry", "plain_entry", "read_entry"]

_ALIVE: "WeakValueDictionary[int, Vocabulary]" = WeakValueDictionary()  # by hash


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A field with its fitted part, None if it shares another field's rows."""

    field: Field
    fitted: Fitted | None = None


def plain_entry(f: Field, fitted: Fitted | None) -> dict[str, Any]:
    """The entry as plain values for JSON."""
    if not isinstance(fitted, Vocabulary):
        plain: dict[str, Any] = to_plain(Entry(field=f, fitted=fitted))
        return plain
    # Millions of values bypass the general code, which processes each separately.
    plain = to_plain(Entry(field=f, fitted=replace(fitted, values=())))
    plain["fitted"]["values"] = fitted.values
    return plain


def read_entry(data: Mapping[str, Any], where: str) -> Entry:
    """The inverse of `plain_entry`.

    Errors:
        DataError: not an entry.
    """
    fitted = data.get("fitted") if isinstance(data, Mapping) else None
    values = fitted.get("values") if isinstance(fitted, Mapping) else None
    if not isinstance(fitted, Mapping) or not isinstance(values, list) or set(map(type, values)) != {str}:
        return parse(Entry, data, where, DataError)  # names the error
    entry = parse(Entry, {**data, "fitted": {**fitted, "values": []}}, where, DataError)
    assert isinstance(entry.fitted, Vocabulary), "no other has values"
    return replace(entry, fitted=_alive(replace(entry.fitted, values=tuple(values))))


def _alive(vocabulary: Vocabulary) -> Vocabulary:
    """An equal vocabulary that something uses already, else this one: bundles of one log have the same.

    >>> first = Vocabulary(values=("one", "of two"))
    >>> _alive(first) is first, _alive(Vocabulary(values=("one", "of two"))) is first
    (True, True)
    """
    found = _ALIVE.setdefault(hash(vocabulary), vocabulary)
    return found if found == vocabulary else vocabulary
