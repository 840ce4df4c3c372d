"""Inferring the time column and the fields from a table's names and contents."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_list
from fieldwise.data.encode.numbers import CURRENCIES, likely_formats, number_formats, unit_of
from fieldwise.data.infer.entities import Entities, bins_lead, collision_ratio, is_round
from fieldwise.data.infer.profile import (
    SEPARATORS,
    ColumnProfile,
    Columns,
    TextFacts,
    looks_like_dates,
    text_facts,
)
from fieldwise.data.prepare.ordering import mixed_units, parse_timestamps
from fieldwise.data.read.vectors import MOST_POSITIONS, vector_length
from fieldwise.schema import Bag, Categorical, Field, Numeric, Role, Sequence, split_number_format
from fieldwise.schema.ids import (
    HISTORIES,
    MOMENTARY,
    TIMES,
    WORDS,
    id_rank,
    kind_of_name,
    name_matches,
    words_of,
)

_PROBED_NUMBERS = 10_000
_NEARLY_UNIQUE = 0.5
_ENOUGH = 500  # rows whose order is no accident
_TIME_WORDS = frozenset(
    ("ts", "time", "timestamp", "datetime", "date", "day", "when", "at", "stamp", "epoch", "unix")
)
_NOT_EVENTS = frozenset(WORDS["past"])  # times of a person's or an item's life, not of the event
_FIRST_DATE = 19_000_000  # of dates as numbers, such as 20260131
# 1998 to 2039
_STAMPS = ((9e8, 2.2e9, "seconds"), (9e11, 2.2e12, "milliseconds"), (9e14, 2.2e15, "microseconds"))


@dataclass(frozen=True, kw_only=True)
class GuessedTime:
    """The column that orders rows, if any."""

    column: str | None = None
    format: str | None = None  # of its text, if this decides between day-month and month-day
    note: str = ""  # the reason for the choice
    doubt: str = ""  # what the user must specify
    # more that look like times, with why they are not used
    others: dict[str, str] = field(default_factory=dict)


def guess_time(columns: Columns, skip: Collection[str]) -> GuessedTime:
    """The column that orders a table's rows.

    `skip` has columns with another role: the label, ids, columns that describe a user or an item.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> rows = pl.DataFrame({"when": ["2026-01-31", "2026-02-01", "2026-02-02"], "x": [1, 2, 3]})
    >>> guess_time(profile_columns(rows), ()).column
    'when'
    """
    named: list[str] = []
    others: list[str] = []
    past: list[str] = []
    for name, column in columns.items():
        if name in skip:
            continue
        if name_matches(name, TIMES):
            named.append(name)
        elif _NOT_EVENTS.isdisjoint(words_of(name)):
            others.append(name)
        elif _grows_with_the_rows(column):
            past.append(name)
    result = GuessedTime()
    left = {}
    for name in (*named, *others, *past):
        guess, fault = _time(columns[name], name_matches(name, TIMES))
        if guess is not None and result.column is None:
            result = guess
        elif guess is not None or fault:
            left[name] = fault or "another time besides the one that orders rows"
    return replace(result, others=left)


def _grows_with_the_rows(column: ColumnProfile) -> bool:
    """Whether a column's times grow with the rows, as those of a log's events do and of persons and items do not."""
    is_text = column.kind == pl.String
    if is_text and not column.looks_like_dates:
        return False
    times = parse_timestamps(column.cells).values if is_text else column.cells
    return not times.null_count() and len(times) >= _ENOUGH and times.is_sorted()


def _in_integers(column: pl.Series) -> pl.Series:
    """A column of decimals that are all whole numbers as integers; any other unchanged."""
    if not isinstance(column.dtype, pl.Decimal):
        return column
    result = column.cast(pl.Int64, strict=False)
    return result if (result.cast(column.dtype, strict=False).eq_missing(column)).all() else column


def _time(profile: ColumnProfile, named: bool) -> tuple[GuessedTime | None, str]:
    """The column as a time, or the reason why a column that looks like a time cannot order rows."""
    if isinstance(profile.kind, pl.Decimal):
        profile = ColumnProfile(_in_integers(profile.cells))
    column = profile.cells
    name = profile.name
    kind = profile.kind
    by_name = ", by its name" if named or _TIME_WORDS & set(words_of(name)) else ""
    times = None
    why = ""
    if kind in (pl.Datetime, pl.Date):
        why = f"orders the rows: it holds {'days' if kind == pl.Date else 'times'}"
    elif kind == pl.String and profile.looks_like_dates:
        times = parse_timestamps(column)
        why = "orders the rows: its text is dates"
    elif kind.is_numeric() and named:
        why = "orders the rows"
    elif kind.is_integer() and _calendar_numbers(profile):
        why = "orders the rows: its numbers are dates, year first"
    elif kind.is_integer():
        low = profile.low
        high = profile.high
        if isinstance(low, int) and isinstance(high, int) and low != high:
            units = [unit for least, most, unit in _STAMPS if least <= low and high <= most]
            if units and (by_name or profile.distinct >= _NEARLY_UNIQUE * len(column)):
                why = f"orders the rows: its numbers are {units[0]} since 1970"
    if not why:
        return None, ""
    empty = column.null_count() if times is None or times.other else times.values.null_count()
    if empty:
        gaps = f"{empty:,} of {len(column):,} rows have none, so it cannot order the rows"
        return None, f"a time by its contents, but {gaps}"
    if profile.distinct < 3:
        return None, "a time by its contents, but with fewer than 3 different values"
    note = f"time: {why}{by_name}; not a field, since future times do not occur in training rows"
    doubt = ""
    several_units = mixed_units(column.to_numpy()) if kind.is_numeric() else ""
    if several_units:
        doubt = f"the times of column {name!r} are not comparable: {several_units}; convert them to one unit"
    elif times is not None and times.mixed:
        doubt = (
            f"the times of column {name!r} are not comparable: {times.mixed}; write the offset into every cell, or "
            "convert all to one time zone and omit it"
        )
    elif times is not None and times.other is not None:
        doubt = (
            f"day and month of the time column {name!r} are ambiguous ({column.drop_nulls()[0]!r}): write "
            f'time_format = "{times.other[0]}" or time_format = "{times.other[1]}" below time'
        )
    return GuessedTime(
        column=name, format=None if times is None else times.format, note=note, doubt=doubt
    ), ""


def _calendar_numbers(column: ColumnProfile) -> bool:
    """Whether numbers are dates such as 20260131, with or without hour and minute, over at most thirty years."""
    if not isinstance(column.high, int) or column.high < _FIRST_DATE:
        return False
    present = column.present.head(_PROBED_NUMBERS)
    if present.n_unique() < 3 or (present.min() or 0) < _FIRST_DATE:  # type: ignore[operator]
        return False
    text = present.cast(pl.String)
    if text.str.len_bytes().n_unique() > 1:
        return False
    years = text.str.head(4).cast(pl.Int64)
    pattern = (
        r"^(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])?(?:[0-5]\d){0,2}$"
    )
    return bool(text.str.contains(pattern).all()) and int(years.max()) - int(years.min()) <= 30  # type: ignore[arg-type]


_MANY_CELLS = 0.2  # a separator in at least this share of the cells makes a bag
_BAG_VOCABULARY = 2_000
_LOW_CARDINALITY = 50
_FEW = 10
_REPEATS = 4  # with fewer rows a value, how often values repeat tells little
_LONGEST_CYCLE = 366
# minimum rows from which cells that are all different count as running numbers or keys
_MANY_ROWS = 30
_MOST_TESTED = 50_000
_MOST_BAD = 0.01  # share of cells of a column of numbers that may be none
_PROSE = 20  # different texts
_WORDS = 5  # words of a text on average, from which it is prose
_UNIT = r"^\s*(?:[€$£] ?)?[+-]?\d[\d.,]* ?(?:[%€$£°]|[a-zA-Z]{1,3}\.?)?\s*$"
_SIGN = "[+\\-−–]"
_DIGIT_GROUPS = (
    r"\d+(?:[.,]\d+)?",
    r"\d{1,3}(?:[.'’\s]\d{3})+(?:,\d+)?",
    r"\d{1,3}(?:[,'’]\d{3})+(?:\.\d+)?",
    r"\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?",  # as in India
)
_DIGITS = f"(?:{'|'.join(_DIGIT_GROUPS)})"
_WRITTEN_NUMBER = (
    rf"^\s*\(?{_SIGN}?\s?(?:\p{{Sc}}\s?)?{_SIGN}?{_DIGITS}\s?(?:\p{{Sc}}|%)?\)?{_SIGN}?\s*$"
)
_MOST_STRAY = 0.5  # share of cells of a column that looks like numbers that may be something else
_MOST_MARKS = 10  # different texts beside numbers; more are values, such as lists of numbers
_IN_BINS = (
    "in quantile bins, which are robust to outliers (encoding 'value' keeps the number itself)"
)
_NEAR_UNIQUE = 0.9
_UNIQUE_FLOOR = 1_000
_FEWER = "project it to fewer, for example by PCA, or write a column for each number"
_LISTS = (
    "write them with a separator, as a|b|c, or keep the table as Parquet, where a list is a list"
)


Guess = tuple[Field | None, str, str]
"""The field inferred from a column, or None; the reason; and what the user must check, or an empty text."""


class FieldGuesser:
    """Infers the fields of a table, given its ids and its label's targets, which are NaN where a row is dropped.

    `sampled` is the share of the whole table's rows that the columns have, if they are a random
    sample of them.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> columns = profile_columns(pl.DataFrame({"tags": ["a|b", "b", "b|a", "a"]}))
    >>> FieldGuesser(columns, Entities()).guess(columns["tags"], "item")[0].kind
    'bag'
    """

    def __init__(
        self,
        columns: Columns,
        entities: Entities,
        target: np.ndarray | None = None,
        sampled: float = 1.0,
    ) -> None:
        self.columns = columns
        self.entities = entities
        self._target = target
        self._sampled = sampled
        self._text_facts = text_facts(columns)
        self._is_first: dict[str, pl.Series] = {}

    def guess(self, profile: ColumnProfile, role: Role) -> Guess:
        """The field inferred from a column of the table."""
        column = profile.cells
        name = profile.name
        kind = profile.kind
        lists = kind in (pl.List, pl.Array)
        inner = kind.inner if lists else kind  # type: ignore[attr-defined]
        if inner.is_nested() or inner in (pl.Object, pl.Binary):
            return None, f"no field reads its type {kind}", ""
        if lists and inner.is_float():
            length = vector_length(column)
            if length is not None and length > MOST_POSITIONS:
                most = f"at most {MOST_POSITIONS} can become fields: {_FEWER}"
                return _omitted(name, f"a vector of {length:,} numbers; {most}")
            why = "its cells are lists of fractional numbers, which are neither categories nor of equal length"
            return None, why, ""
        if lists and not column.list.len().fill_null(0).sum():
            return None, "every cell is empty", ""
        if lists and _is_history(name):
            return (
                Sequence(name, role="user"),
                "its cells are lists, and its name suggests a history",
                "",
            )
        if lists:
            distinct = as_list(column, "|").explode().n_unique()
            return Bag(name, role=role), f"its cells are lists, {distinct} values in total", ""
        distinct = profile.distinct_filled
        if not distinct:
            return None, "every cell is empty", ""
        if distinct == 1:
            if profile.filled == len(column):
                return None, "it is constant", ""
            return Categorical(name, role=role), f"every cell is {profile.texts[0]!r} or empty", ""
        if kind == pl.Duration:
            return _binned(name, role, len(column)), "durations, in seconds, cut into bins", ""
        if kind.is_temporal():
            return None, "a date or time must be converted first (to its hour, its weekday)", ""
        if kind in (pl.Categorical, pl.Enum):
            unique = (
                "" if name in self.entities.ids.values() else self._unique(distinct, profile.filled)
            )
            made = None if unique else Categorical(name, role=role)
            return made, unique or f"declared a category, with {distinct} values", ""
        if not kind.is_numeric() and kind != pl.Boolean:
            return self._from_text(profile, role)
        if kind == pl.Boolean:
            return Categorical(name, role=role), "it is true or false", ""
        number = profile.present
        if kind.is_float():
            numbers = number.to_numpy()
            is_finite = np.isfinite(numbers)
            if (np.floor(numbers[is_finite]) != numbers[is_finite]).any():
                return _binned(name, role, len(column)), f"numbers with fractions, {_IN_BINS}", ""
            if not is_finite.all():
                number = number.filter(pl.Series(is_finite))
        if max(number.max() or 0, -(number.min() or 0)) > 2**53:  # type: ignore[operator]
            if why := self._unique(distinct, len(number)):
                return None, why, ""
            return (
                Categorical(name, role=role),
                f"whole numbers too great for a measure, {distinct} of them",
                "",
            )
        return self._from_whole(profile, number.cast(pl.Int64), role)

    def _from_whole(self, column: ColumnProfile, number: pl.Series, role: Role) -> Guess:
        """The field of whole numbers: categories if they are ids or codes, bins if they count or measure something."""
        name = column.name
        rows = len(number)
        distinct = column.distinct_filled
        if name in self.entities.ids.values():
            return (
                Categorical(name, role=role),
                f"whole numbers used as ids, {distinct} of them",
                "",
            )
        called = kind_of_name(name)
        low = number.min()
        high = number.max()
        assert isinstance(low, int)
        assert isinstance(high, int)
        numbering = high - low < 1.05 * distinct and distinct > _MANY_ROWS
        if unique := self._unique(distinct, rows):
            # All are different though amounts would coincide, or would crowd: they number
            # something.
            coincide = rows**2 / (2 * max(1, high - low)) > _MANY_ROWS
            values = np.sort(number.to_numpy())
            numbers = numbering or ((coincide or not _is_bent(values)) and not is_round(values))
            if called == "code" or (distinct == rows and numbers):
                return None, unique, ""
        grows = distinct > _MANY_ROWS and number.is_sorted() and not _is_bent(number.to_numpy())
        if grows and self.entities.key_of(name) is None:
            why = "a running number: it only grows with the rows, so future ones do not occur in training rows"
            return None, why, ""
        if distinct == 2:
            return Categorical(name, role=role), "whole numbers with 2 values", ""
        score, why = self._leaning(column, number, called)
        category = score > 0 or (score == 0 and distinct <= 3)
        against = {"code": not category, "quantity": category}.get(called, False)
        doubt = ""
        if (
            abs(score) < 1
            or against
            or (abs(score) < 2 and not called and rows < _REPEATS * distinct)
        ):
            kind, other = (
                ("categories", "numeric") if category else ("numbers in bins", "categorical")
            )
            doubt = (
                f"the whole numbers of column {name!r} were taken for {kind}, as {why or 'nothing tells'}"
                f'{f", although its name tells a {called}" if against else ""}: write kind = "{other}" if they are not'
            )
        reason = why or "nothing tells"
        if category:
            return (
                Categorical(name, role=role),
                f"whole numbers used as codes, {distinct} of them ({reason})",
                doubt,
            )
        return (
            _binned(name, role, len(column.cells)),
            f"whole numbers that count or measure ({reason}), {_IN_BINS}",
            doubt,
        )

    def _leaning(self, column: ColumnProfile, number: pl.Series, called: str) -> tuple[float, str]:
        """Whether whole numbers are codes (above 0) or quantities (below), and the strongest reasons.

        What counts: values that stand out among their neighbours, gaps, rounding, signs, functions
        of the numbers, and whether categories or bins predict the label better on held-out rows.
        The name is one vote.
        """
        key = self.entities.key_of(column.name)
        once = number
        if key is not None:  # the rows that show each of its values once
            once = column.cells.filter(self._first_rows(key)).drop_nulls().cast(pl.Int64)
        if len(once) > _MOST_TESTED:
            once = once.sample(_MOST_TESTED, seed=0)
        values, counts = np.unique(once.to_numpy(), return_counts=True)
        many = len(values)
        ratio = collision_ratio(values, counts)
        step = int(np.gcd.reduce(np.diff(values))) if many > 1 else 1
        span = int(values[-1] - values[0]) // max(1, step) + 1
        gaps = many <= _FEW and span > 3 * many
        begins = span <= 1.25 * many and values[0] in (0, 1) and int(np.argmax(counts)) <= many // 2
        cycle = (
            not MOMENTARY.isdisjoint(words_of(column.name)[-1:])
            and column.distinct <= _LONGEST_CYCLE
        )
        functions = len(
            self.entities.functions.get(column.name, set()).difference(self.entities.ids.values())
        )
        own = key is None or many < 0.8 * len(once)
        crowd = len(once) < 1.6 * many and ratio <= 1.6 and _is_bent(values)
        lead = 0.0  # of bins before categories
        if key is None and self._target is not None and many > _FEW:
            both = column.is_present & ~np.isnan(self._target)
            lead = bins_lead(column.cells.cast(pl.Float64).to_numpy()[both], self._target[both])
        votes: list[tuple[bool, float, str]] = [
            (called == "code", 3.0 if id_rank(column.name) else 2.0, "its name tells a code"),
            (called == "quantity", -1.5, "its name tells a quantity"),
            (cycle, 3.0, "its name tells a part of a cycle"),
            (values[0] < 0, -2.5, "some are below 0"),
            (
                ratio > 3,
                2.5,
                "some values are used much more than their neighbours, with gaps between them",
            ),
            (1.6 < ratio <= 3, 1.0, "some values are used more than their neighbours"),
            (
                0 < ratio < 1.35 and many >= 6 and ratio != 1,
                -1.5,
                "neighbouring numbers are about as frequent",
            ),
            (is_round(values), -1.5, "many are round"),
            (gaps, 1.5, "few values with gaps"),
            (begins and not gaps, -1.0, "they begin near 0 without gaps"),
            (crowd, -1.0, "they crowd around a middle or one end"),
            (bool(functions) and own, 1.5, f"{functions} columns are functions of it"),
            (lead > 3, -1.0, "bins predict the label better"),
            (lead < -3, 1.5, "categories predict the label better"),
        ]
        cast = [(vote, why) for holds, vote, why in votes if holds]
        score = sum(vote for vote, _ in cast)
        said = [
            why for vote, why in sorted(cast, key=lambda vote: -abs(vote[0])) if vote * score > 0
        ]
        return score, "; ".join(said[:2])

    def _first_rows(self, key: str) -> pl.Series:
        """Whether each row is the first of its value of a key."""
        if key not in self._is_first:
            self._is_first[key] = self.columns[key].cells.is_first_distinct()
        return self._is_first[key]

    def _from_text(self, column: ColumnProfile, role: Role) -> Guess:
        name = column.name
        words = column.texts
        distinct = column.distinct_filled
        facts = self._text_facts[column.name]
        category = Categorical(name, role=role), f"text with {distinct} values"
        unique = self._unique(distinct, len(words))
        if facts.are_lists:
            return _omitted(
                name, f"its cells are lists written as text, {words[0][:40]!r}: {_LISTS}"
            )
        if name in self.entities.ids.values():
            return (None, unique, "") if unique else (*category, "")
        numbers = _written_numbers(words, role, facts)
        if numbers is not None:
            return numbers
        many = distinct > _LOW_CARDINALITY
        may_be_numbers = many and kind_of_name(name) != "code" and not facts.have_leading_zeros
        bad = words.clear()
        if may_be_numbers:
            bad = words.filter(words.str.strip_chars().cast(pl.Float64, strict=False).is_null())
        are_numbers = may_be_numbers and len(bad) <= _MOST_BAD * len(words)
        doubt = _unread_numbers(words) if may_be_numbers and not are_numbers else ""
        if doubt:
            return (None, unique, doubt) if unique else (*category, doubt)
        for separator in SEPARATORS:
            share = facts.shares[separator]
            if share < _MANY_CELLS or facts.have_addresses:
                continue
            vocabulary = as_list(words, separator).explode().n_unique()
            result = f"{share:.0%} of its cells that are not empty hold {separator!r}, {vocabulary} values in total"
            if _is_history(name):
                field = Sequence(name, role="user", separator=separator)
                return field, f"{result}, and its name suggests a history", ""
            if vocabulary <= _BAG_VOCABULARY and vocabulary < distinct:
                return Bag(name, role=role, separator=separator), result, ""
        if many and looks_like_dates(words):
            return (
                None,
                "its text is dates, which must be converted first (to an age, a weekday)",
                "",
            )
        if are_numbers:
            made = _binned(name, role, len(words))
            if not len(bad):
                return made, "text with only numbers", ""
            doubt = _unread(bad, len(words), "are no numbers")
            return made, f"text with numbers in all but {len(bad):,} cells", doubt
        if unique:
            return None, unique, ""
        if many and words.str.contains(_UNIT).all():
            shown = (
                f"the cells of column {name!r} look like numbers with a unit, such as {words[0]!r}"
            )
            return *category, f"{shown}: write the numbers alone"
        texts = words.unique(maintain_order=True).head(1000)
        if distinct > _PROSE and float(texts.str.count_matches(r"\S+").mean() or 0) > _WORDS:  # type: ignore[arg-type]
            return None, f"it is prose ({distinct} texts), which no field reads", ""
        return *category, ""

    def _unique(self, distinct: int, rows: int) -> str:
        """The reason to omit a column if nearly every cell of the whole table is different, or an empty text.

        The two rows of a pair of equal cells are both in a sample of share f with probability f^2,
        so that the share of cells with an equal one before them is f times that of the table.
        """
        nearly = (
            distinct > (1 - (1 - _NEAR_UNIQUE) * self._sampled) * rows and distinct > _UNIQUE_FLOOR
        )
        why = f"nearly every cell is different ({distinct} values in {rows} rows), so there is nothing to learn from it"
        return why if nearly or distinct == rows > _MANY_ROWS else ""


def _omitted(name: str, check: str) -> Guess:
    """No field, for a reason that the user must check."""
    return None, check, f"column {name!r} is omitted: {check}"


def _is_bent(values: np.ndarray) -> bool:
    """Whether different numbers are far from evenly spread over their range, as amounts are and ids are not."""
    place = (values - values[0]) / max(1, int(values[-1] - values[0]))
    return float(np.abs(place - np.linspace(0, 1, len(values))).max()) > 0.12


def _binned(name: str, role: Role, rows: int) -> Numeric:
    """A numeric field with 8 to 128 quantile bins (a power of 2) of about 400 rows each."""
    bins = min(128, max(8, 1 << (max(1, rows // 400).bit_length() - 1)))
    return Numeric(
        name, role=role, encoding="quantile", transform="none", bins=bins, point_masses=True
    )


def _written_numbers(words: pl.Series, role: Role, facts: TextFacts) -> Guess | None:
    """The field for text cells that are numbers with decimal commas or thousands separators, if they are."""
    if kind_of_name(words.name) == "code" or _is_history(words.name):
        return None
    if facts.may_be_thousands and facts.have_points:
        example = words.filter(words.str.contains(".", literal=True))[0]
        doubt = (
            f"the numbers of column {words.name!r} may have a thousands separator, and were taken for fractions, as "
            f'{example!r} alone is: write number_format = "1.234,5" if it is {example.replace(".", "")}'
        )
        return _binned(words.name, role, len(words)), f"numbers with fractions, {_IN_BINS}", doubt
    formats = number_formats(words)
    unread = words.clear()
    if not formats:
        formats, unread = likely_formats(words, _MOST_BAD)
    forms = {split_number_format(form)[0]: form for form in formats}
    if not forms:
        return _mixed_units(words)
    many = len(words)
    words = words.filter(~words.str.strip_chars().is_in(unread.implode()))
    decimal, *_ = words.filter(words.str.contains(r"\d[,.' ]\d")).head(1).to_list() or [words[0]]
    form = next(iter(forms.values()))
    doubt = ""
    unit = split_number_format(form)[1]
    if {"1,234.5", "1.234,5"} <= forms.keys() and words.str.contains(r"\d[,.]\d").any():
        if unit.lower().rstrip(".") not in CURRENCIES:
            return _omitted(
                words.name,
                f"{decimal!r} is a number with either a thousands separator or a decimal comma, which is ambiguous: "
                'add a numeric field for it with number_format = "1,234.5" or "1.234,5"',
            )
        form = forms["1,234.5" if "," in decimal else "1.234,5"]
        other = forms["1.234,5" if "," in decimal else "1,234.5"]
        doubt = (
            f"the amounts of column {words.name!r} were read with a thousands separator, such as {decimal!r}: write "
            f'number_format = "{other}" if it is a decimal mark'
        )
    if len(unread):
        doubt = "; ".join(
            filter(None, [doubt, _unread(unread, many, f"are no numbers such as {decimal!r}")])
        )
    field = replace(_binned(words.name, role, many), number_format=form)
    without_unit = f", read without the unit {unit!r}" if unit else ""
    return field, f"text with numbers such as {decimal!r}{without_unit}, in quantile bins", doubt


def _unread_numbers(words: pl.Series) -> str:
    """What to check of text that is numbers written in a way that is not read, or numbers beside other texts."""
    is_written = words.str.contains(_WRITTEN_NUMBER)
    stray = words.filter(~is_written)
    if len(stray) > _MOST_STRAY * len(words) or stray.n_unique() > _MOST_MARKS:
        return ""
    if not len(stray):
        plain = words.str.strip_chars().cast(pl.Float64, strict=False)
        example = words.filter(plain.is_null())[0]
        return (
            f"the cells of column {words.name!r} look like numbers in a form that is not read, such as {example!r}: "
            "write them as 1234.5 or -1234.5"
        )
    common = (
        stray.alias("cell")
        .value_counts()
        .sort(["count", "cell"], descending=[True, False])
        .get_column("cell")
    )
    marks = json.dumps(common.head(3).to_list(), ensure_ascii=False)
    return (
        f"{len(stray):,} of {len(words):,} cells of column {words.name!r} are no numbers "
        f"({', '.join(map(repr, common.head(3)))}), the others are: if these stand for missing values, write "
        f'missing = {marks} at the top of the schema, and kind = "numeric" for the column'
    )


def _unread(cells: pl.Series, many: int, are_no_numbers: str) -> str:
    """What the user must check where a few of many cells cannot be read as numbers."""
    shown = ", ".join(map(repr, cells.unique(maintain_order=True).head(3)))
    return (
        f"{len(cells):,} of {many:,} cells of column {cells.name!r} {are_no_numbers} ({shown}): correct them or leave "
        'them empty before training, or write kind = "categorical"'
    )


def _mixed_units(words: pl.Series) -> Guess | None:
    """No field for numbers whose units differ, if they do."""
    unit = unit_of(words)
    if unit is None or not unit.others:
        return None
    named = ", ".join(map(repr, (unit.unit, *unit.others)))
    return _omitted(words.name, f"its numbers have different units ({named}): convert them to one")


def _is_history(name: str) -> bool:
    return any(w in HISTORIES for w in words_of(name))
