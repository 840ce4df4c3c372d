"""Inferring the label's rule from a column: words of known meaning, ratings, numbers."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_number, as_text
from fieldwise.data.encode.numbers import is_mark, marks_in, number_formats, plain_floats
from fieldwise.data.encode.portable import LARGEST_WHOLE
from fieldwise.data.infer.guess import joined_doubts
from fieldwise.data.infer.outcome_words import word_meaning, word_meanings
from fieldwise.data.infer.profile import is_scalar
from fieldwise.data.infer.written_numbers import thousands_doubt
from fieldwise.data.prepare.labels import may_be_thousands, read_label
from fieldwise.display import LISTED, listed
from fieldwise.errors import Argument, DataError, Row, SchemaError
from fieldwise.schema import Label
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import NO_LIMIT

RATING_TOPS = (5, 10, 100)
"""The tops of scales of ratings."""
_POSITIVE_SHARE_OF_TOP = 3 / 5
"""Ratings above this share of the top are positive."""
MOST_RATINGS = 11
"""Different values of a column that is read as a scale, unless its top is 100."""
_MOST_COUNTS = 4
"""Different numbers from 0 that are read as counts, of which all above 0 are positive."""
_TRUE_OR_FALSE = "binary, as it is true or false"
# Such as 4 stars, 4 Sterne.
_STARS = re.compile(
    r"([0-5](?:[.,]5|[.,]0)?)(?: ?★| ?/ ?5| out of 5| ?[^\W\d_]{4,})", re.IGNORECASE
)
_ROW_OF_STARS = r"^\s*(?:[★⭐*]+☆*|☆+)\s*$"
_MIDDLE_STARS = 3


@dataclass(frozen=True, kw_only=True)
class LabelCandidate:
    """A column that may be the label, with its rule.

    Args:
        label: the column and its rule.
        rate: the share of positives; None for a regression.
        reason: why it may be the label, and why this rule.
        reason_has_rate: whether the reason states the share of positives.
        doubt: what the user must check, if anything.
        score: how likely it is among those of its table.
    """

    label: Label
    rate: float | None = None
    reason: str
    reason_has_rate: bool = False
    doubt: str = ""
    score: float = 0.0


def guess_label(column: pl.Series, positive: Sequence[str] = ()) -> LabelCandidate:
    """The label inferred from a column, with its rule.

    >>> guess_label(pl.Series("bought", ["no", "yes", "yes"])).label.positive_values
    ('yes',)
    """
    if column.dtype == pl.String and not positive:
        marks = marks_of_no_label(column)
        if marks:
            return _dropping_marks(column, marks)

    _check_cells(column)
    if positive:
        return _with_rate(_as_given(column, positive), column)
    if column.dtype.is_numeric() and _has_plain_texts(column):
        return _of_numbers(column)
    if column.dtype == pl.Boolean:
        _check_two(column.name, column.n_unique(), repr(str(column[0]).lower()))
        rate = _mean_target(int(column.sum()), len(column))
        return LabelCandidate(label=Label(column.name), rate=rate, reason=_TRUE_OR_FALSE)
    return _with_rate(_of_cells(column), column)


def marks_of_no_label(column: pl.Series) -> dict[str, int]:
    """The marks of missing values in a label's text, if other cells are numbers or words of known meaning."""
    marks = marks_in(column, MISSING_MARKS)
    others = column.filter(~is_mark(column, MISSING_MARKS)).drop_nulls()
    if not marks or not len(others):
        return {}
    are_plain_numbers = not plain_floats(others).null_count()
    if are_plain_numbers or number_formats(others):
        return marks
    values = others.unique(maintain_order=True).head(MOST_RATINGS).to_list()
    if None in word_meanings(values).values():
        return {}
    return {mark: count for mark, count in marks.items() if word_meaning(mark) is None}


def _dropping_marks(column: pl.Series, marks: Mapping[str, int]) -> LabelCandidate:
    """The label of a column whose marks of missing values are dropped."""
    is_missing = column.str.strip_chars().is_in(list(marks))
    candidate = guess_label(column.filter(~is_missing))
    dropped = tuple(column.filter(is_missing).unique(maintain_order=True))
    doubt = (
        f"{sum(marks.values()):,} of {len(column):,} rows have no label but {_listed(dropped)} in column "
        f"{column.name!r}: they are dropped (drop_values); remove it if such a value is an outcome"
    )
    return replace(
        candidate,
        label=replace(candidate.label, drop_values=dropped),
        doubt=joined_doubts(doubt, candidate.doubt),
    )


def _check_cells(column: pl.Series) -> None:
    """Check that every row of a column can be a label."""
    name = column.name
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise SchemaError(
            f"every row needs a label: column {name!r} has none in {column.null_count()} of {len(column)} rows, the "
            "first is ",
            Row(row),
            "; remove or fill them",
        )
    if holds_no_label(column.dtype):
        raise SchemaError(
            f"a label must hold numbers, text or booleans: column {name!r} is of type {column.dtype}"
        )


def holds_no_label(dtype: pl.DataType) -> bool:
    """Whether cells of a type are no label."""
    return dtype.is_temporal() or not is_scalar(dtype)


def _has_plain_texts(column: pl.Series) -> bool:
    """Whether the text of every number of a column is that of its float, so that no rule of texts can miss it."""
    low = column.min()
    high = column.max()
    return low is not None and bool(low > -LARGEST_WHOLE) and bool(high < LARGEST_WHOLE)  # type: ignore[operator]


def _as_given(column: pl.Series, positive: Sequence[str]) -> LabelCandidate:
    """The label with these positive values."""
    text = as_text(column)
    absent = [value for value in positive if not text.is_in([value]).any()]
    if absent:
        known = text.drop_nulls().unique().sort().head(100).to_list()
        raise SchemaError(
            f"a positive value must occur in the label's column {column.name!r}: {nearest(absent[0], known)}"
        )
    if text.is_in(list(positive)).all():
        raise SchemaError(
            f"a label needs two classes: all values of column {column.name!r} are given as positive"
        )
    label = Label(column.name, positive_values=tuple(positive))
    return LabelCandidate(label=label, reason="binary, as given")


def _with_rate(candidate: LabelCandidate, column: pl.Series) -> LabelCandidate:
    """A candidate with the share of positives in the column."""
    if candidate.label.task == "regression":
        return candidate
    try:
        targets = read_label(column.to_frame(), candidate.label, budget=NO_LIMIT).main
    except DataError as e:
        raise SchemaError(*e.args) from None
    return replace(candidate, rate=float(targets.mean()))


def _of_cells(column: pl.Series) -> LabelCandidate:
    """The label of text, whose cells may all be numbers, or of numbers that are not read as such."""
    text = as_text(column)
    numbers = column if column.dtype.is_numeric() else plain_floats(text)
    candidate = _of_texts(text) if numbers.null_count() else _of_numbers(numbers)
    if not may_be_thousands(column, budget=NO_LIMIT):
        return candidate
    doubt = thousands_doubt(text, f"the label's column {text.name!r}")
    return replace(candidate, doubt=joined_doubts(candidate.doubt, doubt))


def _check_two(name: str, distinct: int, only: str) -> None:
    """Check that a label has two values, of which `only` is one."""
    if distinct < 2:
        raise SchemaError(
            f"a label needs at least two values: column {name!r} only holds {only}, from which nothing can be "
            "learned; give rows of both classes, another label, or, if every row is a positive event, a table without "
            "this column"
        )


def _of_numbers(column: pl.Series) -> LabelCandidate:
    name = column.name
    values, counts = np.unique(column.cast(pl.Float64).to_numpy(), return_counts=True)
    _check_two(name, len(values), f"{values[0]:g}")
    if len(values) == 2:
        return _of_two_numbers(name, values, counts)

    low = float(values[0])
    top = float(values[-1])
    are_few = len(values) <= MOST_RATINGS
    are_halves = bool(np.isfinite(values).all()) and bool((values % 0.5 == 0).all())
    are_whole = are_halves and bool((values % 1 == 0).all())
    is_scale = top in RATING_TOPS and 0 <= low <= top * _POSITIVE_SHARE_OF_TOP
    if are_halves and is_scale and (are_few or top == 100):
        return _of_ratings(name, values, counts)
    if are_whole and are_few and low >= 0 and top < 2 * MOST_RATINGS:
        return _of_few_numbers(name, values, counts)

    doubt = ""
    if are_whole and are_few and low < 0:
        doubt = (
            f"the {len(values)} whole numbers {low:g} to {top:g} of column {name!r} may be classes: they were "
            "taken for a number to predict; write task = 'binary' and positive_above = 0 if those above 0 are positive"
        )
    return LabelCandidate(
        label=Label(name, task="regression"),
        reason=f"regression, since it holds {len(values)} different numbers; give positive_above for a binary "
        "task",
        doubt=doubt,
    )


def _of_two_numbers(name: str, values: np.ndarray, counts: np.ndarray) -> LabelCandidate:
    low, high = values.tolist()
    rate = _mean_target(int(counts[1]), int(counts.sum()))
    if not np.isfinite(values).all():
        raise SchemaError(
            f"a label's numbers must be finite: column {name!r} holds {low:g} and {high:g}; remove such rows"
        )
    if (low, high) == (0, 1):
        reason = "binary, as it is 0 or 1"
        return LabelCandidate(label=Label(name), rate=rate, reason=reason)
    if (low, high) == (-1, 1):
        label = Label(name, positive_above=0)
        return LabelCandidate(label=label, rate=rate, reason="binary, as it is -1 or 1")

    lesser = _whole_as_int(low)
    greater = _whole_as_int(high)
    return LabelCandidate(
        label=Label(name, positive_values=(greater,)),
        rate=rate,
        reason="binary, the greater of its two values assumed positive",
        doubt=f"it is unknown which of {lesser} and {greater} in column {name!r} is positive: {greater}, the greater,"
        f" was assumed; if it is {lesser}, write positive_values = [{lesser}], or give {lesser} as positive",
    )


def _of_ratings(name: str, values: np.ndarray, counts: np.ndarray) -> LabelCandidate:
    top = float(values[-1])
    middle = top * _POSITIVE_SHARE_OF_TOP
    rows = int(counts.sum())
    above = int(counts[values > middle].sum())
    on_middle = int(counts[values == middle].sum())
    reason = (
        f"ratings up to {top:g}; above {middle:g} is positive ({above / rows:.0%} of the rows); "
        "task = 'regression' predicts the rating itself"
    )
    if on_middle:
        reason = f"{reason}; {_middle_note(above, on_middle, rows, f'{middle:g}')}"
    label = Label(name, positive_above=_whole_as_int(middle))
    return LabelCandidate(
        label=label, rate=_mean_target(above, rows), reason=reason, reason_has_rate=True
    )


def _of_few_numbers(name: str, values: np.ndarray, counts: np.ndarray) -> LabelCandidate:
    low = float(values[0])
    top = float(values[-1])
    are_counts = low == 0 and len(values) <= _MOST_COUNTS
    middle = 0 if are_counts else (low + top) // 2
    rows = int(counts.sum())
    above = int(counts[values > middle].sum())
    share = f"{above / rows:.0%}"
    return LabelCandidate(
        label=Label(name, positive_above=middle),
        rate=_mean_target(above, rows),
        reason=f"binary, numbers above {middle:g} assumed positive ({share} of the rows)",
        reason_has_rate=True,
        doubt=f"it is unknown which of the {len(values)} numbers {low:g} to {top:g} of column {name!r} are "
        f"positive: those above {middle:g} were assumed ({share} of the rows); correct positive_above, or write "
        "task = 'regression' and no rule to predict the number",
    )


def _mean_target(positives: int, rows: int) -> float:
    """The share of positives as the mean of targets gives it, which are of 32 bits."""
    return float(np.float32(positives) / np.float32(rows))


def _middle_note(above: int, on_middle: int, rows: int, shown: str) -> str:
    """The effect of a rule that drops the middle of the scale, from the rows above it and on it."""
    rate = above / max(1, rows - on_middle)
    return (
        f"rows with {shown} are negative, since they are {on_middle / rows:.0%} of the rows, which are met when "
        f"scoring too: drop_values = [{shown}] would leave them out as neutral, and make {rate:.0%} positive"
    )


def _of_texts(text: pl.Series) -> LabelCandidate:
    _check_two(text.name, text.n_unique(), repr(text[0]))
    counts = text.alias("cell").value_counts().sort(["count", "cell"])
    values = [str(value) for value in counts.get_column("cell")]
    if _are_stars(text, values):
        return _of_stars(text, values)
    if {value.lower() for value in values} == {"true", "false"}:
        return LabelCandidate(label=Label(text.name), reason=_TRUE_OR_FALSE)

    formats = number_formats(text)
    is_ambiguous = "1,234.5" in formats and "1.234,5" in formats
    if formats and not is_ambiguous:
        candidate = _of_numbers(as_number(text, "label", form=formats[0]))
        return replace(candidate, label=replace(candidate.label, number_format=formats[0]))
    return _of_words(text, values)


def _of_words(text: pl.Series, values: list[str]) -> LabelCandidate:
    """The label of words, the rarest first, by the meaning of those that are known."""
    name = text.name
    meanings = word_meanings(values)
    positive = tuple(value for value in values if meanings[value])
    negative = [value for value in values if meanings[value] is False]
    unknown = [value for value in values if meanings[value] is None]
    if len(values) == 2 and len(unknown) == 1:
        opposite = unknown[0]
        known, assumed = (positive[0], "negative") if positive else (negative[0], "positive")
        taken, other = (known, opposite) if positive else (opposite, known)
        return LabelCandidate(
            label=Label(name, positive_values=(taken,)),
            reason=f"binary, {taken!r} positive by the meaning of {known!r}",
            doubt=f"the meaning of {opposite!r} in the label's column {name!r} is unknown: it was assumed {assumed}, "
            f"the opposite of {known!r}; if it is not, {_or_else(other)}",
        )
    if len(positive) == len(values):
        raise SchemaError(
            f"a label needs values that are not positive: all of column {name!r}, {_listed(values)}, are words of "
            "a positive outcome; give the positive ones with ",
            Argument("positive"),
            ", and all others are negative",
        )
    if positive and (negative or len(values) <= MOST_RATINGS):
        doubts = []
        if not negative:
            doubts.append(
                f"no value of the label's column {name!r} is known to be negative beside {_listed(positive)}"
            )
        if unknown:
            doubts.append(_unknown_words(text, unknown))
        return LabelCandidate(
            label=Label(name, positive_values=positive),
            reason=f"binary, {_listed(positive)} positive by the meaning of the words",
            doubt=joined_doubts(*doubts),
        )
    if len(values) == 2:
        rare, common = values
        return LabelCandidate(
            label=Label(name, positive_values=(rare,)),
            reason="binary, the rarer of its two values assumed positive",
            doubt=f"it is unknown which of {rare!r} and {common!r} in column {name!r} is positive: "
            f"{rare!r}, the rarer, was assumed; if it is {common!r}, {_or_else(common)}",
        )
    raise SchemaError(
        f"a text label needs two values to be binary: column {name!r} holds {len(values)}, {_listed(values)}; "
        "give the positive ones with ",
        Argument("positive"),
        "; all others are negative",
    )


def _unknown_words(text: pl.Series, words: Sequence[str]) -> str:
    """What to do about words of a label whose meaning is unknown, each with its rows, the most frequent first."""
    shown = []
    for word in reversed(words[-MOST_RATINGS:]):
        rows = int((text == word).sum())
        shown.append(f"{word!r} ({rows:,} rows)")
    more = f" and {len(words) - len(shown)} more" if len(words) > len(shown) else ""
    return (
        f"the meaning of {', '.join(shown)}{more} in the label's column {text.name!r} is unknown: assumed negative; "
        "add to positive_values what is positive, and to drop_values what is neither"
    )


def _are_stars(text: pl.Series, values: Sequence[str]) -> bool:
    """Whether texts are ratings with stars, such as `4 stars` or `★★★`."""
    if len(values) > MOST_RATINGS:
        return False
    units = {value.strip().lstrip("0123456789., ")[:4].casefold() for value in values}
    are_written_out = all(_STARS.fullmatch(value.strip()) for value in values)
    return (len(units) == 1 and are_written_out) or bool(text.str.contains(_ROW_OF_STARS).all())


def _stars(value: str) -> float:
    """How many stars a text tells or shows."""
    written = _STARS.fullmatch(value.strip())
    if written:
        return float(written[1].replace(",", "."))
    return len(value.strip().rstrip("☆"))


def _of_stars(text: pl.Series, values: list[str]) -> LabelCandidate:
    """Ratings to 5, written out: above 3 is positive."""
    ordered = sorted(values, key=_stars)
    positive = tuple(value for value in ordered if _stars(value) > _MIDDLE_STARS)
    middle = [value for value in ordered if _stars(value) == _MIDDLE_STARS]
    has_negative = _stars(ordered[0]) < _MIDDLE_STARS
    if not positive or not has_negative:
        raise SchemaError(
            f"stars make a binary label if some are above 3 and some below: column {text.name!r} only holds "
            f"{_listed(ordered)}; give the positive ones with ",
            Argument("positive"),
        )
    above = int(text.is_in(list(positive)).sum())
    rows = len(text)
    reason = f"ratings up to 5; above 3 is positive ({above / rows:.0%} of the rows)"
    if middle:
        on_middle = int(text.is_in(middle).sum())
        shown = json.dumps(middle[0], ensure_ascii=False)
        reason = f"{reason}; {_middle_note(above, on_middle, rows, shown)}"
    label = Label(text.name, positive_values=positive)
    return LabelCandidate(label=label, reason=reason, reason_has_rate=True)


def _listed(values: Sequence[str]) -> str:
    return listed(values, f" and {len(values) - LISTED} more")


def _or_else(positive: str) -> str:
    """What to do if the other value is the positive one."""
    written = json.dumps(positive, ensure_ascii=False)
    typed = shlex.quote(positive)
    return f"write positive_values = [{written}], or give {typed} as positive, else every prediction means the opposite"


def _whole_as_int(value: float) -> int | float:
    return int(value) if value == int(value) else value
