"""A field with its fitted part as an entry of an encoder's JSON."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass, replace
from functools import cache, reduce
from operator import or_
from typing import Any
from weakref import WeakValueDictionary

import polars as pl

from fieldwise.config import parse, to_plain
from fieldwise.data.encode.kinds import Fitted, registered_kinds
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.errors import DataError
from fieldwise.schema import Field

_VOCABULARY_OF_HASH: "WeakValueDictionary[int, Vocabulary]" = WeakValueDictionary()


@dataclass(frozen=True, kw_only=True)
class FieldEntry:
    """A field with its fitted part, None if it shares another field's rows."""

    field: Field
    fitted: Fitted | None = None


def write_entry(f: Field, fitted: Fitted) -> dict[str, Any]:
    """The entry of a field, as what JSON holds; one that shares another's rows has no fitted part."""
    if f.shares:
        return _plain(f, None)
    if not isinstance(fitted, Vocabulary):
        return _plain(f, fitted)
    # Millions of values bypass the general code, which processes each separately.
    entry = _plain(f, replace(fitted, values=()))
    entry["fitted"]["values"] = fitted.values
    return entry


def _plain(f: Field, fitted: Fitted | None) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(FieldEntry(field=f, fitted=fitted))
    return plain


def read_entry(data: Mapping[str, Any], where: str) -> FieldEntry:
    """A field of an encoder's JSON."""
    fitted = data.get("fitted") if isinstance(data, Mapping) else None
    values = fitted.get("values") if isinstance(fitted, Mapping) else None
    if not isinstance(values, list) or set(map(type, values)) != {str}:
        return _parse_entry(data, where)  # names the error

    # twice as fast as a set for millions
    if pl.Series(values, dtype=pl.String).n_unique() < len(values):
        [(repeated, _)] = Counter(values).most_common(1)
        raise DataError(
            f"{where}.fitted.values must have each value once, found {repeated!r} more often"
        )

    assert isinstance(fitted, Mapping), "it has values"
    without_values = {**data, "fitted": {**fitted, "values": []}}
    entry = _parse_entry(without_values, where)
    assert isinstance(entry.fitted, Vocabulary), "no other has values"
    vocabulary = replace(entry.fitted, values=tuple(values))
    return replace(entry, fitted=_interned(vocabulary))


def _parse_entry(data: Mapping[str, Any], where: str) -> FieldEntry:
    kinds = registered_kinds()
    forms = dict.fromkeys(form for kind in kinds.values() for form in kind.forms)
    entry = parse(_entry_class(tuple(kinds), tuple(forms)), data, where, DataError)
    return FieldEntry(field=entry.field, fitted=entry.fitted)


@cache
def _entry_class(fields: tuple[type, ...], forms: tuple[type, ...]) -> type[Any]:
    """`FieldEntry` with the classes of the registered kinds as annotations, by which `parse` chooses."""
    annotations: list[Any] = [
        ("field", reduce(or_, fields)),
        ("fitted", reduce(or_, forms) | None, None),
    ]
    return make_dataclass("FieldEntry", annotations, kw_only=True)


def _interned(vocabulary: Vocabulary) -> Vocabulary:
    """An equal vocabulary that is in memory already, if there is one: bundles of one log share theirs."""
    stored = _VOCABULARY_OF_HASH.setdefault(hash(vocabulary), vocabulary)
    return stored if stored == vocabulary else vocabulary
