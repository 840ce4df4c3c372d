"""Inferring the label and its rule from names, words of known meaning, and values."""

import contextlib
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import LARGEST_WHOLE, as_number, as_text
from fieldwise.data.encode.numbers import is_mark, marks_in, number_formats
from fieldwise.data.infer.profile import ColumnProfile, Columns
from fieldwise.data.prepare.labels import may_be_thousands, read_label
from fieldwise.errors import DataError, SchemaError
from fieldwise.schema import MISSING_MARKS, Label
from fieldwise.schema.ids import LABELS, LIKELY_LABELS, WORDS, is_label_name, without_accents

_SHOWN = 5
_SCALES = (5, 10, 100)  # the tops of ratings; above three fifths of the top is positive
_LIKE = 3 / 5
# the score by which a candidate for the label may trail the best one, to be named beside it
CLOSE = 1.5
_GAP_CELLS = 1 << 24
"""Cells of columns with gaps that are compared with the candidates at once."""
_MOST_RATINGS = 11  # different values of a column that is read as a scale, unless its top is 100
_TRUE_OR_FALSE = "label: binary, as it is true or false"
LEAST_ROWS = 20  # a column of fewer rows is no label by its values alone
_YES = frozenset(WORDS["positive"])
_NO = frozenset(WORDS["negative"])
_PASSES = frozenset(WORDS["passes"])
_FAILURES = frozenset(WORDS["failures"])
_DENIED = re.compile(r"(?:non|not|no|un|did not|didn't|never|nicht|kein|pas|не|nie|não|未|不) ?")
# Such as 4 stars, 4 Sterne.
_STARS = re.compile(
    r"([0-5](?:[.,]5|[.,]0)?)(?: ?★| ?/ ?5| out of 5| ?[^\W\d_]{4,})", re.IGNORECASE
)
_ROW_OF_STARS = r"^\s*(?:[★⭐*]+☆*|☆+)\s*$"


@dataclass(frozen=True, kw_only=True)
class LabelCandidate:
    """A column that may be the label, with its rule."""

    label: Label
    rate: float | None = None  # the share of positives; None for a regression
    reason: str  # why it may be the label, and why this rule
    doubt: str = ""  # what the user must check, if anything
    score: float = 0.0  # how likely it is among those of its table


def word_meaning(text: str) -> bool | None:
    """Whether a word means positive (True) or negative (False), ignoring case; None if its meaning is unknown.

    >>> [word_meaning(word) for word in ("Yes", "not clicked", "NO", "50000+")]
    [True, False, False, None]
    """
    word = _known_form(text)
    if word in _YES or word in _NO:
        return word in _YES
    denied = _DENIED.match(word)
    rest = word[denied.end() :] if denied else ""
    return rest in _NO if rest in _YES or rest in _NO else None


def _known_form(text: str) -> str:
    """A cell as the lists of words have it: in lower case, without accents unless a list has them."""
    word = " ".join(
        part for part in re.split(r"[\s_]+|(?<=\w)-(?=\w)", text.strip().casefold()) if part
    )
    if word in _YES or word in _NO:
        return word
    return without_accents(word)


def word_meanings(values: Sequence[str]) -> dict[str, bool | None]:
    """The meaning of each word of a column, beside the others: `pass` is a success beside `fail`, else no like.

    >>> word_meanings(["pass", "fail"]), word_meanings(["like", "pass"]), word_meanings(["pass", "other"])
    ({'pass': True, 'fail': False}, {'like': True, 'pass': False}, {'pass': None, 'other': None})
    """
    meant = {value: word_meaning(value) for value in values}
    words = {value: _known_form(value) for value in values}
    passes = [value for value in values if words[value] in _PASSES]
    others = [value for value in values if value not in passes]
    fails = [
        value
        for value in others
        if words[value] in _FAILURES or words[value].endswith(tuple(_PASSES))
    ]
    if fails:
        return meant
    is_liked = any(meant[value] for value in others)
    return meant | dict.fromkeys(passes, False if is_liked else None)


def guess_label(column: pl.Series, positive: Sequence[str] = ()) -> LabelCandidate:
    """The label inferred from a column, with its rule.

    >>> guess_label(pl.Series("bought", ["no", "yes", "yes"])).label.positive_values
    ('yes',)
    """
    name = column.name
    marks = _marks_of_no_label(column) if column.dtype == pl.String and not positive else {}
    if marks:
        return _without_marks(column, marks)
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise SchemaError(
            f"every row needs a label: column {name!r} has none in {column.null_count()} of {len(column)} rows, the "
            f"first is row {row} (counting from 0); remove or fill them"
        )
    if _holds_no_label(column.dtype):
        raise SchemaError(
            f"a label must hold numbers, text or booleans: column {name!r} is of type {column.dtype}"
        )
    if not positive and column.dtype.is_numeric() and _has_plain_texts(column):
        return _of_numbers(column)
    if not positive and column.dtype == pl.Boolean:
        _check_two(name, column.n_unique(), repr(str(column[0]).lower()))
        rate = _mean_target(int(column.sum()), len(column))
        return LabelCandidate(label=Label(name), rate=rate, reason=_TRUE_OR_FALSE)
    text = as_text(column)
    if positive:
        absent = [value for value in positive if not text.is_in([value]).any()]
        if absent:
            raise SchemaError(
                f"a positive value must occur in the label's column {name!r}: "
                f"{nearest(absent[0], text.drop_nulls().unique().sort().head(100).to_list())}"
            )
        if text.is_in(list(positive)).all():
            raise SchemaError(
                f"a label needs two classes: all values of column {name!r} are given as positive"
            )
        result = LabelCandidate(
            label=Label(name, positive_values=tuple(positive)), reason="label: binary, as given"
        )
    else:
        number = (
            column
            if column.dtype.is_numeric()
            else text.str.strip_chars().cast(pl.Float64, strict=False)
        )
        result = _of_texts(text) if number.null_count() else _of_numbers(number)
        if may_be_thousands(column):
            result = replace(
                result, doubt="; ".join(filter(None, [result.doubt, _fraction_or_thousand(text)]))
            )
    if result.label.task == "regression":
        return result
    try:
        return replace(result, rate=float(read_label(column.to_frame(), result.label).main.mean()))
    except DataError as e:
        raise SchemaError(str(e)) from None


def _marks_of_no_label(column: pl.Series) -> dict[str, int]:
    """The marks of missing values in a label's text, if other cells are numbers or words of known meaning."""
    is_missing = is_mark(column, MISSING_MARKS)
    if not is_missing.any() or is_missing.all():
        return {}
    marks = marks_in(column, MISSING_MARKS)
    others = column.filter(~is_missing).drop_nulls()
    if not len(others):
        return {}
    if not others.str.strip_chars().cast(pl.Float64, strict=False).null_count() or number_formats(
        others
    ):
        return marks
    unknown = {mark: many for mark, many in marks.items() if word_meaning(mark) is None}
    meant = word_meanings(others.unique(maintain_order=True).head(_MOST_RATINGS).to_list())
    return {} if None in meant.values() else unknown


def _without_marks(column: pl.Series, marks: Mapping[str, int]) -> LabelCandidate:
    """The label of a column whose marks of missing values are dropped."""
    is_missing = column.str.strip_chars().is_in(list(marks))
    result = guess_label(column.filter(~is_missing))
    cells = tuple(column.filter(is_missing).unique(maintain_order=True))
    many = sum(marks.values())
    doubt = (
        f"{many:,} of {len(column):,} rows have no label but {_listed(cells)} in column {column.name!r}: they are "
        "dropped (drop_values); remove it if such a value is an outcome"
    )
    label = replace(result.label, drop_values=cells)
    return replace(result, label=label, doubt="; ".join(filter(None, [doubt, result.doubt])))


def _fraction_or_thousand(text: pl.Series) -> str:
    """What to check of a label whose numbers may have a thousands separator."""
    example = str(text.filter(text.str.contains(".", literal=True))[0])
    return (
        f"the numbers of the label's column {text.name!r} may have a thousands separator, and were taken for "
        f'fractions, as {example!r} alone is: write number_format = "1.234,5" if it is {example.replace(".", "")}'
    )


def _holds_no_label(kind: pl.DataType) -> bool:
    return kind.is_nested() or kind.is_temporal() or kind in (pl.Binary, pl.Object)


def _has_plain_texts(column: pl.Series) -> bool:
    """Whether the text of every number of a column is that of its float, so that no rule of texts can miss it."""
    low = column.min()
    high = column.max()
    return low is not None and bool(low > -LARGEST_WHOLE) and bool(high < LARGEST_WHOLE)  # type: ignore[operator]


def choose_label(
    columns: Columns, label: str | None, positive: Sequence[str], settled: Collection[str]
) -> list[LabelCandidate]:
    """The candidates for the label, the one taken first, with a doubt unless its name tells; none if no column can be.

    `label` and its `positive` values are given if they are known. A name of a label (or of an
    outcome) counts most, then words of outcome, then two values or a scale of ratings. Columns that
    are `settled` are no label, unless a name tells one and no other can be.
    """
    if label is not None:
        if label not in columns:
            raise SchemaError(
                f"the label's column {label!r} must be in the table: {nearest(label, list(columns))}"
            )
        return [guess_label(columns[label].cells, positive)]
    results: list[LabelCandidate] = []
    for name, column in columns.items():
        named = _name_score(name)
        if (name in settled and named < 4) or column.missing or _holds_no_label(column.kind):
            continue
        if not named and (len(column.cells) < LEAST_ROWS or not _has_few_values(column)):
            continue
        with contextlib.suppress(SchemaError, DataError):
            candidate = guess_label(column.cells)
            score = named + _score(column.cells, candidate) - 3.5 * (name in settled)
            if named or (candidate.label.task == "binary" and not _is_a_count(column)):
                results.append(replace(candidate, score=score))
    results = _scored_by_place(columns, results)
    results.sort(key=lambda candidate: -candidate.score)
    if not results or not is_label_name(results[0].label.column, (*LABELS, *LIKELY_LABELS)):
        for name in columns:
            if is_label_name(name) and name not in settled:
                # or the reason why it cannot be one
                return [guess_label(columns[name].cells, positive)]
    if not results:
        return []
    first = results[0]
    name = results[0].label.column
    if positive:
        first = guess_label(columns[name].cells, positive)
    close = [one.label.column for one in results[1:] if one.score > results[0].score - CLOSE]
    rivals = (
        [c.label.column for c in results[1:] if is_label_name(c.label.column)]
        if is_label_name(name)
        else close
    )
    if rivals or not is_label_name(name, (*LABELS, *LIKELY_LABELS)):
        shown = (
            f"; others that may be it: {', '.join(map(repr, rivals[:_SHOWN]))}" if rivals else ""
        )
        why = f"the label was chosen by its {'name and ' if is_label_name(name) else ''}values, column {name!r}"
        doubt = f"{why}{shown}; give another one as label"
        first = replace(first, doubt=f"{doubt}; {first.doubt}" if first.doubt else doubt)
    return [first, *results[1:]]


def _name_score(name: str) -> float:
    """How much a column's name alone looks like a label's."""
    if is_label_name(name):
        return 4.0
    return 3.0 if is_label_name(name, LIKELY_LABELS) else 0.0


def _has_few_values(column: ColumnProfile) -> bool:
    return 2 <= column.distinct <= _MOST_RATINGS


def _scored_by_place(
    columns: Columns, candidates: Sequence[LabelCandidate]
) -> list[LabelCandidate]:
    """The candidates with what the other columns add to their scores: where they stand, and what is empty for them."""
    names = list(columns)
    by_place = {names[0]: 0.25, names[-1]: 0.5}
    deciding = _deciding_gaps(columns, [candidate.label.column for candidate in candidates])
    results = []
    for candidate in candidates:
        name = candidate.label.column
        added = by_place.get(name, 0.0) + (2 if name in deciding else 0)
        results.append(replace(candidate, score=candidate.score + added))
    return results


def _deciding_gaps(columns: Columns, candidates: Sequence[str]) -> set[str]:
    """The candidates some of whose values stand in exactly the rows in which another column is empty.

    Beside the values of an outcome, what follows it is empty exactly for some of them.
    """
    with_gaps = [column for column in columns.values() if 0 < column.missing < len(column.cells)]
    few_values = [name for name in candidates if _has_few_values(columns[name])]
    deciding: set[str] = set()
    if not with_gaps:
        return deciding
    columns_at_once = max(1, _GAP_CELLS // len(with_gaps[0].cells))
    for start in range(0, len(with_gaps), columns_at_once):
        block = with_gaps[start : start + columns_at_once]
        is_empty = np.stack([~column.is_present for column in block], axis=1).astype(np.float32)
        for name in few_values:
            if name in deciding:
                continue
            codes = columns[name].codes()
            has_value = codes == np.arange(codes.max() + 1)[:, None]
            empty_share = np.round(
                (has_value.astype(np.float32) @ is_empty) / has_value.sum(axis=1)[:, None], 3
            )
            all_or_none = ((empty_share == 0) | (empty_share == 1)).all(axis=0)
            differs = empty_share.min(axis=0) < empty_share.max(axis=0)
            if (all_or_none & differs).any():
                deciding.add(name)
    return deciding


def _is_a_count(column: ColumnProfile) -> bool:
    """Whether numbers are counts of pieces and no ratings: from 0 to no usual top, or the rarer the greater."""
    if not column.kind.is_numeric():
        return False
    values, counts = column.numbers
    low = values[0]
    top = values[-1]
    if low not in (0, 1):
        return False
    falls = len(counts) > 3 and counts.argmax() == 0 and float((np.diff(counts) <= 0).mean()) > 0.7
    return falls or (low == 0 and len(counts) > 4 and top not in _SCALES)


def label_by_place(columns: Columns, skip: Collection[str], is_log: bool) -> list[LabelCandidate]:
    """The last resort: of a log a column of shares up to 1 or 100, else the last column if it is a number.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> rows = pl.DataFrame({"rooms": [2, 3] * 10, "rent": [x * 99.5 for x in range(20)]})
    >>> [result.label.task for result in label_by_place(profile_columns(rows), (), False)]
    ['regression']
    """
    from_the_end = list(columns.values())[::-1]
    for profile in from_the_end if is_log else from_the_end[:1]:
        column = profile.cells
        enough = len(column) >= LEAST_ROWS and not profile.missing
        many = enough and profile.kind.is_numeric() and profile.distinct > _MOST_RATINGS
        low, high = (column.min(), column.max()) if many else (1, 0)
        is_share = many and 0 <= low < 0.2 * high and (0.8 < high <= 1 or high == 100)  # type: ignore[operator]
        if column.name not in skip and (is_share if is_log else many):
            doubt = (
                f"the label was chosen by its place and numbers, column {column.name!r}; give another one as label "
                "(--label)"
            )
            return [replace(guess_label(column), doubt=doubt)]
    return []


def _score(column: pl.Series, candidate: LabelCandidate) -> float:
    """How much the values alone look like a label's."""
    if candidate.label.task == "regression":
        return 0.0
    if column.dtype.is_numeric() and column.n_unique() > 2:
        return 0.0 if candidate.doubt else 1.0
    values = as_text(column).unique(maintain_order=True)
    meant = list(word_meanings(values.head(_SHOWN).to_list()).values())
    if len(values) == 2:
        return 2.0 if None not in meant or not candidate.doubt else 0.5
    if any(meant) and column.dtype == pl.String:
        return 1.5
    return 0.0 if candidate.doubt else 1.0


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
    rows = len(column)
    values, counts = np.unique(column.cast(pl.Float64).to_numpy(), return_counts=True)
    _check_two(name, len(values), f"{values[0]:g}")
    numbers = values.tolist()
    low = numbers[0]
    top = numbers[-1]
    is_finite = bool(np.isfinite(values).all())
    if len(numbers) == 2:
        rate = _mean_target(int(counts[1]), rows)
        if not is_finite:
            raise SchemaError(
                f"a label's numbers must be finite: column {name!r} holds {low:g} and {top:g}; remove such rows"
            )
        if numbers == [0, 1]:
            return LabelCandidate(
                label=Label(name), rate=rate, reason="label: binary, as it is 0 or 1"
            )
        if numbers == [-1, 1]:
            label = Label(name, positive_above=0)
            return LabelCandidate(label=label, rate=rate, reason="label: binary, as it is -1 or 1")
        first = _short(low)
        second = _short(top)
        return LabelCandidate(
            label=Label(name, positive_values=(second,)),
            rate=rate,
            reason="label: binary, the greater of its two values assumed positive",
            doubt=f"it is unknown which of {first} and {second} in column {name!r} is positive: {second}, the greater,"
            f" was assumed; if it is {first}, write positive_values = [{first}], or give {first} as positive",
        )
    are_halves = is_finite and bool((values % 0.5 == 0).all())
    if (
        are_halves
        and 0 <= low <= top * _LIKE
        and top in _SCALES
        and (len(numbers) <= _MOST_RATINGS or top == 100)
    ):
        middle = top * _LIKE
        above = int(counts[values > middle].sum())
        on_middle = int(counts[values == middle].sum())
        note = (
            f"label: ratings up to {top:g}; above {middle:g} is positive ({above / rows:.0%} of the rows); "
            "task = 'regression' predicts the rating itself"
        )
        if on_middle:
            note = f"{note}; {_middle_note(above, on_middle, rows, f'{middle:g}')}"
        label = Label(name, positive_above=_short(middle))
        return LabelCandidate(label=label, rate=_mean_target(above, rows), reason=note)
    are_whole = are_halves and bool((values % 1 == 0).all())
    if are_whole and low >= 0 and top < 2 * _MOST_RATINGS and len(numbers) <= _MOST_RATINGS:
        middle = 0 if low == 0 and len(numbers) <= 4 else (low + top) // 2
        above = int(counts[values > middle].sum())
        share = f"{above / rows:.0%}"
        return LabelCandidate(
            label=Label(name, positive_above=middle),
            rate=_mean_target(above, rows),
            reason=f"label: binary, numbers above {middle:g} assumed positive ({share} of the rows)",
            doubt=f"it is unknown which of the {len(numbers)} numbers {low:g} to {top:g} of column {name!r} are "
            f"positive: those above {middle:g} were assumed ({share} of the rows); correct positive_above, or write "
            "task = 'regression' and no rule to predict the number",
        )
    note = f"label: regression, since it holds {len(numbers)} different numbers; give positive_above for a binary task"
    doubt = ""
    if are_whole and low < 0 and len(numbers) <= _MOST_RATINGS:
        doubt = (
            f"the {len(numbers)} whole numbers {low:g} to {top:g} of column {name!r} may be classes: they were "
            "taken for a number to predict; write task = 'binary' and positive_above = 0 if those above 0 are positive"
        )
    return LabelCandidate(label=Label(name, task="regression"), reason=note, doubt=doubt)


def _mean_target(positives: int, rows: int) -> float:
    """The share of positives as the mean of targets gives it, which are of 32 bits."""
    return float(np.float32(positives) / np.float32(rows))


def _middle_note(above: int, middle: int, rows: int, shown: str) -> str:
    """The effect of a rule that drops the middle of the scale, from the rows above it and on it."""
    rate = above / max(1, rows - middle)
    return (
        f"rows with {shown} are negative, since they are {middle / rows:.0%} of the rows, which are met when scoring "
        f"too: drop_values = [{shown}] would leave them out as neutral, and make {rate:.0%} positive"
    )


def _of_texts(text: pl.Series) -> LabelCandidate:
    _check_two(text.name, text.n_unique(), repr(text[0]))
    values = [
        str(v) for v in text.alias("cell").value_counts().sort(["count", "cell"]).get_column("cell")
    ]
    stems = {v.strip().lstrip("0123456789., ")[:4].casefold() for v in values}
    written = len(stems) == 1 and all(_STARS.fullmatch(v.strip()) for v in values)
    if len(values) <= _MOST_RATINGS and (written or text.str.contains(_ROW_OF_STARS).all()):
        return _of_stars(text, values)
    if {value.lower() for value in values} == {"true", "false"}:
        return LabelCandidate(label=Label(text.name), reason=_TRUE_OR_FALSE)
    forms = number_formats(text)
    if len(forms) and not ("1,234.5" in forms and "1.234,5" in forms):
        result = _of_numbers(as_number(text, "label", form=forms[0]))
        return replace(result, label=replace(result.label, number_format=forms[0]))
    meant = word_meanings(values)
    yes = tuple(v for v in values if meant[v])
    no = [v for v in values if meant[v] is False]
    rest = [v for v in values if meant[v] is None]
    # the other word is assumed to be the opposite of the known one
    if len(values) == 2 and len(rest) == 1:
        known = next(v for v in values if v not in rest)
        taken = "negative" if yes else "positive"
        doubt = (
            f"the meaning of {rest[0]!r} in the label's column {text.name!r} is unknown: it was assumed {taken}, the "
            f"opposite of {known!r}; if it is not, {_or_else(rest[0] if yes else known)}"
        )
        yes = yes or tuple(rest)
        note = f"label: binary, {_listed(yes)} positive by the meaning of {known!r}"
        return LabelCandidate(label=Label(text.name, positive_values=yes), reason=note, doubt=doubt)
    if yes and len(yes) == len(values):
        raise SchemaError(
            f"a label needs values that are not positive: all of column {text.name!r}, {_listed(values)}, are words of "
            "a positive outcome; give the positive ones as positive, and all others are negative"
        )
    if yes and (no or len(values) <= _MOST_RATINGS):
        doubts = []
        if not no:
            doubts.append(
                f"no value of the label's column {text.name!r} is known to be negative beside {_listed(yes)}"
            )
        if rest:
            doubts.append(_unknown_words(text, rest))
        note = f"label: binary, {_listed(yes)} positive by the meaning of the words"
        label = Label(text.name, positive_values=yes)
        return LabelCandidate(label=label, reason=note, doubt="; ".join(doubts))
    if len(values) == 2:
        rare, common = values
        doubt = (
            f"it is unknown which of {rare!r} and {common!r} in column {text.name!r} is positive: "
            f"{rare!r}, the rarer, was assumed; if it is {common!r}, {_or_else(common)}"
        )
        note = "label: binary, the rarer of its two values assumed positive"
        return LabelCandidate(
            label=Label(text.name, positive_values=(rare,)), reason=note, doubt=doubt
        )
    raise SchemaError(
        f"a text label needs two values to be binary: column {text.name!r} holds {len(values)}, {_listed(values)}; "
        "give the positive ones as positive; all others are negative"
    )


def _unknown_words(text: pl.Series, words: Sequence[str]) -> str:
    """What to do about words of a label whose meaning is unknown, each with its rows, the most frequent first."""
    shown = [f"{word!r} ({int((text == word).sum()):,} rows)" for word in reversed(words)][
        :_MOST_RATINGS
    ]
    more = f" and {len(words) - len(shown)} more" if len(words) > len(shown) else ""
    return (
        f"the meaning of {', '.join(shown)}{more} in the label's column {text.name!r} is unknown: assumed negative; "
        "add to positive_values what is positive, and to drop_values what is neither"
    )


def _of_stars(text: pl.Series, values: list[str]) -> LabelCandidate:
    """Ratings to 5, written out: above 3 is positive."""

    def stars(value: str) -> float:
        result = _STARS.fullmatch(value.strip())
        return float(result[1].replace(",", ".")) if result else len(value.strip().rstrip("☆"))

    ordered = sorted(values, key=stars)
    yes, middle = tuple(v for v in ordered if stars(v) > 3), [v for v in ordered if stars(v) == 3]
    if not yes or not any(stars(v) < 3 for v in ordered):
        raise SchemaError(
            f"stars make a binary label if some are above 3 and some below: column {text.name!r} only holds "
            f"{_listed(ordered)}; give the positive ones as positive"
        )
    above = int(text.is_in(list(yes)).sum())
    rows = len(text)
    note = f"label: ratings up to 5; above 3 is positive ({above / rows:.0%} of the rows)"
    if middle:
        on_middle = int(text.is_in(middle).sum())
        note = f"{note}; {_middle_note(above, on_middle, rows, json.dumps(middle[0], ensure_ascii=False))}"
    return LabelCandidate(label=Label(text.name, positive_values=yes), reason=note)


def _listed(values: Sequence[str]) -> str:
    shown = ", ".join(repr(v) for v in values[:_SHOWN])
    return f"{shown} and {len(values) - _SHOWN} more" if len(values) > _SHOWN else shown


def _or_else(positive: str) -> str:
    """What to do if the other value is the positive one."""
    written = json.dumps(positive, ensure_ascii=False)
    typed = shlex.quote(positive)
    return f"write positive_values = [{written}], or give {typed} as positive, else every prediction means the opposite"


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else value
