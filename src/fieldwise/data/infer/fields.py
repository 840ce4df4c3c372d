"""Inferring the fields from a table's names and contents."""

from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_list
from fieldwise.data.encode.numbers import plain_floats
from fieldwise.data.encode.portable import LARGEST_WHOLE
from fieldwise.data.infer.code_or_quantity import (
    ROWS_PER_VALUE,
    Vote,
    bins_lead,
    is_bent,
    is_round,
    leaning,
    votes_of_name,
    votes_of_numbers,
)
from fieldwise.data.infer.entities import Entities
from fieldwise.data.infer.findings import THIS_COLUMN
from fieldwise.data.infer.guess import IN_BINS, Guess, binned, is_history, omitted
from fieldwise.data.infer.partial_residuals import PartialResidual, PartialResiduals
from fieldwise.data.infer.profile import (
    SEPARATORS,
    ColumnProfile,
    Columns,
    TextFacts,
    is_list,
    is_scalar,
    looks_like_dates,
    text_facts,
    value_type,
)
from fieldwise.data.infer.written_numbers import (
    MOST_BAD,
    unit_doubt,
    unread_doubt,
    unread_numbers,
    written_numbers,
)
from fieldwise.schema import Bag, Categorical, Role, Sequence, Vector
from fieldwise.schema.fields import LONGEST_VECTOR
from fieldwise.schema.ids import kind_of_name

_LEAST_SHARE_WITH_SEPARATOR = 0.2
"""A separator in at least this share of the cells makes a bag."""
_MOST_BAG_VALUES = 2_000
_LOW_CARDINALITY = 50
_FEW_VALUES = 10
_MANY_ROWS = 30
"""Minimum rows from which cells that are all different count as running numbers or keys."""
_MOST_TESTED = 50_000
_SURE_LEAD = 3.0
"""Standard errors from which one encoding predicts better than another."""
_LEAST_PROSE_TEXTS = 20
_LEAST_PROSE_WORDS = 5
"""Words of a text on average, from which it is prose."""
_PROBED_TEXTS = 1_000
_NEAR_UNIQUE = 0.9
_NEAR_UNIQUE_VALUES = 1_000
"""The least number of different values of a column that counts as nearly unique."""
_LISTS = (
    "write them with a separator, as a|b|c, or keep the table as Parquet, where a list is a list"
)


class FieldGuesser:
    """Infers the fields of a table, given its ids, and what its columns leave of the label, if it has one.

    `sampled` is the share of the whole table's rows that the columns have, if they are a random
    sample of them.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> columns = profile_columns(pl.DataFrame({"tags": ["a|b", "b", "b|a", "a"]}))
    >>> FieldGuesser(columns, Entities()).guess(columns["tags"], "item").field.kind
    'bag'
    """

    def __init__(
        self,
        columns: Columns,
        entities: Entities,
        residuals: PartialResiduals | None = None,
        sampled: float = 1.0,
    ) -> None:
        self.columns = columns
        self.entities = entities
        self._residuals = residuals
        self._sampled = sampled
        self._text_facts = text_facts(columns)

    def guess(self, column: ColumnProfile, role: Role) -> Guess:
        """The field inferred from a column of the table."""
        name = column.name
        dtype = column.dtype
        cell_type = value_type(dtype)
        if not is_scalar(cell_type):
            return Guess(None, f"no field reads its type {dtype}")
        if is_list(dtype):
            return _from_lists(column, role, cell_type)

        distinct = column.distinct_filled
        if not distinct:
            return Guess(None, "every cell is empty")
        if distinct == 1:
            return _from_one_value(column, role)
        if dtype == pl.Duration:
            field = binned(name, role, len(column.cells))
            return Guess(field, "durations, in seconds, cut into bins")
        if dtype.is_temporal():
            return Guess(
                None,
                "a date or time must be converted first ([[features]] make the hour and weekday of the rows' times)",
            )
        if dtype == pl.Boolean:
            return Guess(Categorical(name, role=role), "it is true or false")
        if dtype.is_numeric():
            return self._from_numbers(column, role)
        if dtype in (pl.Categorical, pl.Enum):
            return self._from_declared_category(column, role)
        return self._from_text(column, role)

    def _from_declared_category(self, column: ColumnProfile, role: Role) -> Guess:
        distinct = column.distinct_filled
        unique = self._unique(distinct, column.filled)
        if unique and not self._is_id(column):
            return Guess(None, unique)
        note = f"declared a category, with {distinct} values"
        return Guess(Categorical(column.name, role=role), note)

    def _from_numbers(self, column: ColumnProfile, role: Role) -> Guess:
        numbers = column.present
        if column.dtype.is_float():
            values = numbers.to_numpy()
            is_finite = np.isfinite(values)
            finite = values[is_finite]
            if (np.floor(finite) != finite).any():
                field = binned(column.name, role, len(column.cells))
                return Guess(field, f"numbers with fractions, {IN_BINS}")
            if not is_finite.all():
                numbers = numbers.filter(pl.Series(is_finite))

        highest: Any = numbers.max() or 0
        lowest: Any = numbers.min() or 0
        if max(highest, -lowest) <= LARGEST_WHOLE:
            return self._from_whole(column, numbers.cast(pl.Int64), role)
        distinct = column.distinct_filled
        unique = self._unique(distinct, len(numbers))
        if unique:
            return Guess(None, unique)
        note = f"whole numbers too great for a measure, {distinct} of them"
        return Guess(Categorical(column.name, role=role), note)

    def _from_whole(self, column: ColumnProfile, numbers: pl.Series, role: Role) -> Guess:
        """The field of whole numbers: categories if they are ids or codes, bins if they count or measure something."""
        name = column.name
        distinct = column.distinct_filled
        category = Categorical(name, role=role)
        if self._is_id(column):
            return Guess(category, f"whole numbers used as ids, {distinct} of them")

        unique = self._unique(distinct, len(numbers))
        if unique and (kind_of_name(name) == "code" or _number_something(numbers, distinct)):
            return Guess(None, unique)
        if self.entities.key_of(name) is None and _grow_evenly(numbers, distinct):
            why = "a running number: it only grows with the rows, so future ones do not occur in training rows"
            return Guess(None, why)
        if distinct == 2:
            return Guess(category, "whole numbers with 2 values")

        score, reasons = leaning(self._votes(column, numbers))
        is_category = score > 0 or (score == 0 and distinct <= 3)
        doubt = _whole_number_doubt(name, score, reasons, is_category, len(numbers) / distinct)
        reason = reasons or "nothing tells"
        if is_category:
            note = f"whole numbers used as codes, {distinct} of them ({reason})"
            return Guess(category, note, doubt)
        note = f"whole numbers that count or measure ({reason}), {IN_BINS}"
        return Guess(binned(name, role, len(column.cells)), note, doubt)

    def _votes(self, column: ColumnProfile, numbers: pl.Series) -> list[Vote]:
        """Whether whole numbers are codes (above 0) or quantities (below), by all that tells it.

        What counts: values that stand out among their neighbours, gaps, rounding, signs, functions
        of the numbers, and whether categories or bins predict better on held-out rows what the other
        columns leave of the label. The name is one vote.
        """
        key = self.entities.key_of(column.name)
        tested = numbers
        if key is not None:  # the rows that show each of its values once
            first_cells = column.cells.filter(self.columns[key].is_first)
            tested = first_cells.drop_nulls().cast(pl.Int64)
        if len(tested) > _MOST_TESTED:
            tested = tested.sample(_MOST_TESTED, seed=0)
        values, counts = np.unique(tested.to_numpy(), return_counts=True)
        most_rows_per_value = len(numbers) / column.distinct_filled / self._sampled
        votes = votes_of_name(column) + votes_of_numbers(values, counts, most_rows_per_value)

        ids = self.entities.ids.values()
        functions = len(self.entities.functions.get(column.name, set()).difference(ids))
        if functions and (key is None or len(values) < 0.8 * len(tested)):
            votes.append(Vote(1.5, f"{functions} columns are functions of it"))
        if key is None and len(values) > _FEW_VALUES and self._residuals is not None:
            lead = _bins_lead(column, self._residuals.of(column.name))
            if lead > _SURE_LEAD:
                votes.append(Vote(-1.0, "bins predict the label better, given the other columns"))
            elif lead < -_SURE_LEAD:
                why = "categories predict the label better, given the other columns"
                votes.append(Vote(1.5, why))
        return votes

    def _from_text(self, column: ColumnProfile, role: Role) -> Guess:
        name = column.name
        texts = column.texts
        facts = self._text_facts[name]
        if facts.are_lists:
            check = f"its cells are lists written as text, {texts[0][:40]!r}: {_LISTS}"
            return omitted(check)

        distinct = column.distinct_filled
        unique = self._unique(distinct, len(texts))
        category = Guess(Categorical(name, role=role), f"text with {distinct} values")
        category_unless_unique = Guess(None, unique) if unique else category
        if self._is_id(column):
            return category_unless_unique
        numbers = written_numbers(texts, role, facts)
        if numbers is not None:
            return numbers

        has_many_values = distinct > _LOW_CARDINALITY
        is_code = kind_of_name(name) == "code" or facts.have_leading_zeros
        may_be_numbers = has_many_values and not is_code
        bad = texts.clear()
        if may_be_numbers:
            bad = texts.filter(plain_floats(texts).is_null())
        are_numbers = may_be_numbers and len(bad) <= MOST_BAD * len(texts)
        doubt = unread_numbers(texts, bad) if may_be_numbers and not are_numbers else ""
        if doubt:
            return category_unless_unique._replace(doubt=doubt)
        lists = _from_separated_text(column, role, facts)
        if lists is not None:
            return lists
        if has_many_values and looks_like_dates(texts):
            why = "its text is dates, which must be converted first (to an age, a weekday)"
            return Guess(None, why)
        if are_numbers:
            return _from_plain_numbers(texts, bad, role)
        if unique:
            return Guess(None, unique)
        return _from_words(texts, distinct, category)

    def _is_id(self, column: ColumnProfile) -> bool:
        return column.name in self.entities.ids.values()

    def _unique(self, distinct: int, rows: int) -> str:
        """The reason to omit a column if nearly every cell of the whole table is different, or an empty text.

        The two rows of a pair of equal cells are both in a sample of share f with probability f^2,
        so that the share of cells with an equal one before them is f times that of the table.
        """
        least_share = 1 - (1 - _NEAR_UNIQUE) * self._sampled
        are_nearly_unique = distinct > least_share * rows and distinct > _NEAR_UNIQUE_VALUES
        are_unique = distinct == rows > _MANY_ROWS
        if not are_nearly_unique and not are_unique:
            return ""
        counts = f"{distinct} values in {rows} rows"
        return f"nearly every cell is different ({counts}), so there is nothing to learn from it"


def _bins_lead(column: ColumnProfile, residual: PartialResidual) -> float:
    """How much better bins predict a partial residual than categories do, on the rows that have a number."""
    is_present = column.is_present[residual.rows]
    rows = residual.rows[is_present]
    numbers = column.cells.gather(rows).cast(pl.Float64).to_numpy()
    fitted = int(is_present[: residual.fitted].sum())
    return bins_lead(numbers, residual.values[is_present], fitted)


def _from_one_value(column: ColumnProfile, role: Role) -> Guess:
    if column.filled == len(column.cells):
        return Guess(None, "it is constant")
    note = f"every cell is {column.texts[0]!r} or empty"
    return Guess(Categorical(column.name, role=role), note)


def _from_lists(column: ColumnProfile, role: Role, cell_type: pl.DataType) -> Guess:
    name = column.name
    cells = column.cells
    if cell_type.is_float():
        lengths = cells.list.len().drop_nulls()
        lengths = lengths.filter(lengths > 0)
        if len(lengths) and lengths.n_unique() == 1 and lengths[0] <= LONGEST_VECTOR:
            note = f"its cells are vectors of {lengths[0]:,} numbers"
            return Guess(Vector(name, role=role), note)
        why = f"its cells are lists of fractional numbers, which are no vectors of one length up to {LONGEST_VECTOR:,}"
        return Guess(None, why)
    if not cells.list.len().fill_null(0).sum():
        return Guess(None, "every cell is empty")
    if is_history(name):
        note = "its cells are lists, and its name suggests a history"
        return Guess(Sequence(name, role="user"), note)
    distinct = as_list(cells, "|").explode().n_unique()
    return Guess(Bag(name, role=role), f"its cells are lists, {distinct} values in total")


def _number_something(numbers: pl.Series, distinct: int) -> bool:
    """Whether whole numbers that nearly all differ name things: amounts would coincide, or would crowd."""
    rows = len(numbers)
    if distinct != rows:
        return False
    values = np.sort(numbers.to_numpy())
    span = int(values[-1]) - int(values[0])
    if span < 1.05 * distinct and distinct > _MANY_ROWS:
        return True
    would_coincide = rows**2 / (2 * max(1, span)) > _MANY_ROWS
    return (would_coincide or not is_bent(values)) and not is_round(values)


def _grow_evenly(numbers: pl.Series, distinct: int) -> bool:
    """Whether whole numbers grow with the rows, evenly."""
    return distinct > _MANY_ROWS and numbers.is_sorted() and not is_bent(numbers.to_numpy())


def _whole_number_doubt(
    name: str, score: float, reasons: str, is_category: bool, rows_per_value: float
) -> str:
    """What the user must check if little tells codes from quantities, or the name tells the contrary; or no text."""
    told = kind_of_name(name)
    is_against_name = bool(told) and is_category != (told == "code")
    is_sure = abs(score) >= 2 or bool(told) or rows_per_value >= ROWS_PER_VALUE
    if abs(score) >= 1 and is_sure and not is_against_name:
        return ""
    taken, other = ("categories", "numeric") if is_category else ("numbers in bins", "categorical")
    although = f", although its name tells a {told}" if is_against_name else ""
    return (
        f"the whole numbers of column {THIS_COLUMN} were taken for {taken}, as {reasons or 'nothing tells'}"
        f'{although}: write kind = "{other}" if they are not'
    )


def _from_separated_text(column: ColumnProfile, role: Role, facts: TextFacts) -> Guess | None:
    """The field of text cells that hold several values each, if they do."""
    name = column.name
    if facts.have_addresses:
        return None
    for separator in SEPARATORS:
        share = facts.shares[separator]
        if share < _LEAST_SHARE_WITH_SEPARATOR:
            continue
        values = as_list(column.texts, separator).explode().n_unique()
        note = f"{share:.0%} of its cells that are not empty hold {separator!r}, {values} values in total"
        if is_history(name):
            field = Sequence(name, role="user", separator=separator)
            return Guess(field, f"{note}, and its name suggests a history")
        if values <= _MOST_BAG_VALUES and values < column.distinct_filled:
            return Guess(Bag(name, role=role, separator=separator), note)
    return None


def _from_plain_numbers(texts: pl.Series, bad: pl.Series, role: Role) -> Guess:
    field = binned(texts.name, role, len(texts))
    if not len(bad):
        return Guess(field, "text with only numbers")
    note = f"text with numbers in all but {len(bad):,} cells"
    return Guess(field, note, unread_doubt(bad, len(texts)))


def _from_words(texts: pl.Series, distinct: int, category: Guess) -> Guess:
    """The category, unless its texts are prose; with a doubt if they look like numbers with a unit."""
    if distinct > _LEAST_PROSE_TEXTS:
        probe = texts.unique(maintain_order=True).head(_PROBED_TEXTS)
        words = float(probe.str.count_matches(r"\S+").mean() or 0)  # type: ignore[arg-type]
        if words > _LEAST_PROSE_WORDS:
            why = (
                f"it is prose ({distinct} texts): to read its words, declare a bag with separator = 'words' and "
                "hash_buckets = 1000"
            )
            return Guess(None, why)
    if distinct > _LOW_CARDINALITY:
        return category._replace(doubt=unit_doubt(texts))
    return category
