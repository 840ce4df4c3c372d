"""Inferring the label and its rule from names, words of known meaning, and values."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_number, as_text
from fieldwise.data.read.number_format import number_formats
from fieldwise.errors import SchemaError
from fieldwise.schema import Label
from fieldwise.schema.names import LABELS, LIKELY_LABELS, is_label_name

__all__ = ["GuessedLabel", "guess_label", "label_name", "word_meaning"]

_SHOWN = 5
_POSITIVE = """
true t yes y 1 on ok click clicked like liked love loved positive pos good buy bought purchase purchased ordered
convert converted conversion success successful win won pass passed accept accepted approve approved relevant
recommended install installed watch watched ja oui si sí sim да 是 👍 + ✓ ✔ ✅
"""
_NEGATIVE = """
false f no n 0 off dislike disliked hate hated negative neg bad fail failed failure lose lost loss reject rejected
decline declined deny denied irrelevant skip skipped ignore ignored none never nein non não nao нет 否 👎 - − ✗ ✘ ❌
"""
_YES, _NO = frozenset(_POSITIVE.split()), frozenset(_NEGATIVE.split())
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:_duplicated_\d+)?")
_DENIED = re.compile(r"(?:non|not|no|un|did not|didn't|never) ?")
_STARS = re.compile(r"([0-5](?:[.,]5|[.,]0)?)(?: ?stars?| ?★| ?/ ?5| out of 5)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class GuessedLabel:
    """A label with its rule, the reason, and a doubt that the user must check, if any."""

    label: Label
    note: str
    doubt: str = ""


def word_meaning(text: str) -> bool | None:
    """Whether a word means positive (True) or negative (False), ignoring case; None if its meaning is unknown.

    >>> [word_meaning(word) for word in ("Yes", "not clicked", "NO", "50000+")]
    [True, False, False, None]
    """
    word = " ".join(part for part in re.split(r"[\s_]+|(?<=\w)-(?=\w)", text.strip().casefold()) if part)
    if word in _YES or word in _NO:
        return word in _YES
    denied = _DENIED.match(word)
    rest = word[denied.end() :] if denied else ""
    return rest in _NO if rest in _YES or rest in _NO else None


def label_name(frame: pl.DataFrame, label: str | None) -> str:
    """The label's column: as given, else recognised by its name.

    Errors:
        SchemaError: it is not in the table, no column looks like a label, or several do.
    """
    if label is not None:
        if label not in frame.columns:
            raise SchemaError(f"the label's column {label!r} must be in the table: {nearest(label, frame.columns)}")
        return label
    found = [c for c in frame.columns if is_label_name(c)]
    found = found or [c for c in frame.columns if is_label_name(c, LIKELY_LABELS)]
    if not found:
        bare = any(_NUMBER.fullmatch(name) for name in frame.columns)
        header = "; if the file has no header line, give the names of its columns (--columns)" if bare else ""
        raise SchemaError(
            f"no column looks like a label ({', '.join(LABELS)}) among {', '.join(frame.columns)}: give it as label "
            f"(--label){header}"
        )
    if len(found) > 1:
        raise SchemaError(
            f"several columns look like a label, {', '.join(found)}: give the right one as label (--label)"
        )
    return found[0]


def guess_label(column: pl.Series, positive: Sequence[str] = ()) -> GuessedLabel:
    """The label inferred from a column, with its rule.

    Args:
        column: the label's column.
        positive: positive values, if known.

    Errors:
        SchemaError: a row has no label, the column cannot be a label, or its positive values cannot be inferred.

    >>> guess_label(pl.Series("bought", ["no", "yes", "yes"])).label.positive_values
    ('yes',)
    """
    name = column.name
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise SchemaError(
            f"every row needs a label: column {name!r} has none in {column.null_count()} of {len(column)} rows, the "
            f"first is row {row} (counting from 0); remove or fill them"
        )
    kind = column.dtype
    if kind.is_nested() or kind.is_temporal() or kind in (pl.Binary, pl.Object):
        raise SchemaError(f"a label must hold numbers, text or booleans: column {name!r} is of type {kind}")
    text = as_text(column)
    if positive:
        return _as_told(text, positive)
    if kind == pl.Boolean:
        _check_two(name, text)
        return GuessedLabel(label=Label(name), note="label: binary, as it is true or false")
    number = column if kind.is_numeric() else text.str.strip_chars().cast(pl.Float64, strict=False)
    return _of_texts(text) if number.null_count() else _of_numbers(number)


def _check_two(name: str, values: pl.Series) -> None:
    if values.n_unique() < 2:
        only = f"{values[0]:g}" if values.dtype.is_float() else repr(values[0])
        raise SchemaError(
            f"a label needs at least two values: column {name!r} only holds {only}, from which nothing can be "
            "learned; give rows of both classes, or another label (--label)"
        )


def _as_told(text: pl.Series, positive: Sequence[str]) -> GuessedLabel:
    absent = [value for value in positive if not text.is_in([value]).any()]
    if absent:
        raise SchemaError(
            f"a positive value must occur in the label's column {text.name!r}: "
            f"{nearest(absent[0], text.drop_nulls().unique().sort().head(100).to_list())}"
        )
    if text.is_in(list(positive)).all():
        raise SchemaError(f"a label needs two classes: all values of column {text.name!r} are given as positive")
    return GuessedLabel(label=Label(text.name, positive_values=tuple(positive)), note="label: binary, as given")


def _of_numbers(column: pl.Series) -> GuessedLabel:
    name = column.name
    values = column.cast(pl.Float64).unique().sort()
    _check_two(name, values)
    if values.to_list() == [0, 1]:
        return GuessedLabel(label=Label(name), note="label: binary, as it is 0 or 1")
    if values.to_list() == [-1, 1]:
        return GuessedLabel(label=Label(name, positive_above=0), note="label: binary, as it is -1 or 1")
    if values.is_in([k / 2 for k in range(1, 11)]).all() and values.max() == 5 and len(values) > 2:
        middle = int((column == 3).sum())
        return GuessedLabel(
            label=Label(name, positive_above=3, drop_values=(3,)), note=_stars_note(middle, len(column))
        )
    if len(values) == 2:
        low, high = (_short(value) for value in values)
        return GuessedLabel(
            label=Label(name, positive_values=(high,)),
            note="label: binary, the greater of its two values assumed positive",
            doubt=f"it is unknown which of {low} and {high} in column {name!r} is positive: {high}, the greater,"
            f" was assumed; if it is {low}, write positive_values = [{low}], or run this again with --positive {low}",
        )
    note = f"label: regression, since it holds {len(values)} different numbers; give positive_above for a binary task"
    return GuessedLabel(label=Label(name, task="regression"), note=note)


def _stars_note(middle: int, rows: int) -> str:
    return (
        f"label: ratings up to 5; above 3 is positive, and rows with 3 ({middle:,} of {rows:,}) are neutral and "
        "dropped; change the rule if needed, or write task = 'regression' to predict the rating itself"
    )


def _of_texts(text: pl.Series) -> GuessedLabel:
    _check_two(text.name, text)
    values = [str(v) for v in text.value_counts().sort(["count", text.name]).get_column(text.name)]
    if len(values) <= 11 and all(_STARS.fullmatch(v.strip()) for v in values):
        return _of_stars(text, values)
    if {value.lower() for value in values} == {"true", "false"}:
        return GuessedLabel(label=Label(text.name), note="label: binary, as it is true or false")
    forms = number_formats(text)
    if len(forms) and not ("1,234.5" in forms and "1.234,5" in forms):
        found = _of_numbers(as_number(text, "label", form=forms[0]))
        return replace(found, label=replace(found.label, number_format=forms[0]))
    meant = {value: word_meaning(value) for value in values}
    yes = tuple(v for v in values if meant[v])
    no = [v for v in values if meant[v] is False]
    rest = [v for v in values if meant[v] is None]
    if len(values) == 2 and len(rest) == 1:
        return _by_one_word(text, rest[0], yes or tuple(rest))
    if yes and no:
        note = f"label: binary, {_listed(yes)} positive by the meaning of the words"
        return GuessedLabel(
            label=Label(text.name, positive_values=yes), note=note, doubt=_unknown_doubt(text, rest) if rest else ""
        )
    if len(values) == 2:
        return _by_frequency(text, values)
    raise SchemaError(
        f"a text label needs two values to be binary: column {text.name!r} holds {len(values)}, "
        f"{_listed(values)}; give the positive ones with --positive VALUE (in Python positive=[...]); all others are "
        "negative"
    )


def _of_stars(text: pl.Series, values: list[str]) -> GuessedLabel:
    def stars(value: str) -> float:
        found = _STARS.fullmatch(value.strip())
        assert found is not None, "checked by the caller"
        return float(found[1].replace(",", "."))

    ordered = sorted(values, key=stars)
    yes, middle = tuple(v for v in ordered if stars(v) > 3), tuple(v for v in ordered if stars(v) == 3)
    if not yes or not any(stars(v) < 3 for v in ordered):
        raise SchemaError(
            f"stars make a binary label if some are above 3 and some below: column {text.name!r} only holds "
            f"{_listed(ordered)}; give the positive ones with --positive VALUE"
        )
    rule = Label(text.name, positive_values=yes, drop_values=middle)
    return GuessedLabel(label=rule, note=_stars_note(int(text.is_in(list(middle)).sum()), len(text)))


def _unknown_doubt(text: pl.Series, rest: list[str]) -> str:
    return (
        f"the meaning of {_listed(rest)} in the label's column {text.name!r} is unknown, and "
        f"{int(text.is_in(rest).sum()):,} rows have it: they were assumed negative; add such values to "
        "positive_values, or to drop_values to drop the rows"
    )


def _by_one_word(text: pl.Series, unknown: str, yes: tuple[str, ...]) -> GuessedLabel:
    """A label of two words of which one is known: the other is assumed to be its opposite."""
    known = next(value for value in text.unique() if value != unknown)
    taken, other = ("positive", known) if unknown in yes else ("negative", unknown)
    doubt = (
        f"the meaning of {unknown!r} in the label's column {text.name!r} is unknown: it was assumed {taken}, the "
        f"opposite of {known!r}; if it is not, write positive_values = [{_toml(other)}], or run this again with "
        f"--positive {shlex.quote(other)}, else every prediction means the opposite"
    )
    note = f"label: binary, {_listed(yes)} positive by the meaning of {known!r}"
    return GuessedLabel(label=Label(text.name, positive_values=yes), note=note, doubt=doubt)


def _by_frequency(text: pl.Series, values: list[str]) -> GuessedLabel:
    rare, common = values
    doubt = (
        f"it is unknown which of {rare!r} and {common!r} in column {text.name!r} is positive: "
        f"{rare!r}, the rarer, was assumed; if it is {common!r}, write positive_values = [{_toml(common)}], or run "
        "this "
        f"again with --positive {shlex.quote(common)}, else every prediction means the opposite"
    )
    return GuessedLabel(
        label=Label(text.name, positive_values=(rare,)),
        note="label: binary, the rarer of its two values assumed positive",
        doubt=doubt,
    )


def _listed(values: Sequence[str]) -> str:
    shown = ", ".join(repr(v) for v in values[:_SHOWN])
    return f"{shown} and {len(values) - _SHOWN} more" if len(values) > _SHOWN else shown


def _toml(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else value
