"""A field with its fitted part as an entry of an encoder's JSON."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import make_dataclass, replace
from functools import cache, reduce
from operator import or_
from typing import Any
from weakref import WeakValueDictionary

import polars as pl

from fieldwise.config import parse, to_plain
from fieldwise.data.encode.kinds import KINDS, Fitted
from fieldwise.data.encode.vector_table import VectorTable
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.errors import DataError
from fieldwise.schema import Field

WITH_VALUES = (Vocabulary, VectorTable)
"""The fitted parts with texts as their `values`, of which there may be millions."""
_VOCABULARY_OF_HASH: "WeakValueDictionary[int, Vocabulary]" = WeakValueDictionary()


def write_entry(f: Field, fitted: Fitted) -> dict[str, Any]:
    """The entry of a field, as what JSON holds; one that shares another's rows has no fitted part."""
    if f.shares:
        return {"field": to_plain(f)}
    if not isinstance(fitted, WITH_VALUES):
        return {"field": to_plain(f), "fitted": to_plain(fitted)}
    # Millions of values bypass the general code, which processes each separately.
    without_values = to_plain(replace(fitted, values=()))
    return {"field": to_plain(f), "fitted": without_values | {"values": fitted.values}}


def read_entry(data: Mapping[str, Any], where: str) -> tuple[Field, Fitted | None]:
    """A field of an encoder's JSON, and its fitted part, None if it shares another field's rows."""
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
    field, part = _parse_entry(without_values, where)
    assert isinstance(part, WITH_VALUES), "no other has values"
    complete = replace(part, values=tuple(values))
    return field, _interned(complete) if isinstance(complete, Vocabulary) else complete


def _parse_entry(data: Mapping[str, Any], where: str) -> tuple[Field, Fitted | None]:
    forms = dict.fromkeys(form for kind in KINDS.values() for form in kind.forms)
    entry = parse(_entry_class(tuple(KINDS), tuple(forms)), data, where, DataError)
    return entry.field, entry.fitted


@cache
def _entry_class(fields: tuple[type, ...], forms: tuple[type, ...]) -> type[Any]:
    """The dataclass of an entry, by whose annotations `parse` chooses the classes of a kind."""
    field = ("field", reduce(or_, fields))
    fitted = ("fitted", reduce(or_, forms) | None, None)
    return make_dataclass("Entry", [field, fitted], kw_only=True)


def _interned(vocabulary: Vocabulary) -> Vocabulary:
    """An equal vocabulary that is in memory already, if there is one: bundles of one log share theirs."""
    stored = _VOCABULARY_OF_HASH.setdefault(hash(vocabulary), vocabulary)
    return stored if stored == vocabulary else vocabulary
