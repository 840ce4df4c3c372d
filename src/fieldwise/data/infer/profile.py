"""What the rules of inference ask of a table's columns, computed once however many rules ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.timestamps import may_be_timestamp, parse_timestamps
from fieldwise.data.read.text_types import PLAIN_OR_THOUSANDS

TEXT_TYPES = (pl.String, pl.Categorical, pl.Enum)
_PROBED_DATES = 200


def looks_like_dates(words: pl.Series) -> bool:
    """Whether text cells are dates, from a sample."""
    present = words.drop_nulls() if words.null_count() else words
    step = max(1, len(present) // _PROBED_DATES)
    probed = (present if step == 1 else present.gather_every(step)).head(_PROBED_DATES)
    if not len(probed) or probed.cast(pl.Float64, strict=False).null_count() < len(probed):
        return False
    if not all(may_be_timestamp(cell) for cell in probed if cell.strip()):
        return False
    result = parse_timestamps(probed)
    return result.other is not None or result.values.null_count() == 0


def is_list(dtype: pl.DataType) -> bool:
    """Whether cells of a type are lists."""
    return isinstance(dtype, (pl.List, pl.Array))


def value_type(dtype: pl.DataType) -> pl.DataType:
    """The type of the values of a list, or a type itself if it is no list."""
    return dtype.inner if is_list(dtype) else dtype  # type: ignore[attr-defined]


def is_scalar(dtype: pl.DataType) -> bool:
    """Whether a cell of a type is one value that can be read: no list, struct, object or bytes."""
    return not dtype.is_nested() and dtype not in (pl.Object, pl.Binary)


def comparable(column: pl.Series) -> pl.Series:
    """A column whose cells can be compared: lists as text."""
    if is_list(column.dtype) and not value_type(column.dtype).is_nested():
        return column.cast(pl.List(pl.String), strict=False).list.join("\x1f")
    return column


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """A column and what is known of its cells; nothing is computed before a rule asks for it.

    In a wide table of few rows a query of Polars takes longer than its work. So numbers are looked
    at with NumPy and with those methods of a Series that are no queries.

    >>> column = ColumnProfile(pl.Series("n", [3, None, 1, 3]))
    >>> column.missing, column.distinct, column.distinct_present, [part.tolist() for part in column.numbers]
    (1, 3, 2, [[1, 3], [1, 2]])
    """

    cells: pl.Series

    @cached_property
    def name(self) -> str:
        """The column's name."""
        return self.cells.name

    @cached_property
    def dtype(self) -> pl.DataType:
        """The type of its cells."""
        return self.cells.dtype

    @cached_property
    def missing(self) -> int:
        """How many cells are null."""
        return self.cells.null_count()

    @cached_property
    def present(self) -> pl.Series:
        """The cells that are not null."""
        return self.cells.drop_nulls() if self.missing else self.cells

    @cached_property
    def is_present(self) -> np.ndarray:
        """Whether each cell is not null."""
        return (
            self.cells.is_not_null().to_numpy()
            if self.missing
            else np.ones(len(self.cells), dtype=np.bool_)
        )

    @cached_property
    def is_first(self) -> pl.Series:
        """Whether each cell is the first with its value."""
        return self.cells.is_first_distinct()

    @cached_property
    def distinct(self) -> int:
        """How many different cells there are, of which null may be one."""
        return self.cells.n_unique()

    @property
    def distinct_present(self) -> int:
        """How many different cells there are that are not null."""
        return self.distinct - bool(self.missing)

    @cached_property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Of a column of numbers the different ones, ascending, and how many cells hold each."""
        return np.unique(self.present.to_numpy(), return_counts=True)

    @cached_property
    def low(self) -> object:
        """The least number; None if no cell holds one."""
        return self.cells.min()

    @cached_property
    def high(self) -> object:
        """The greatest number; None if no cell holds one."""
        return self.cells.max()

    @property
    def largest(self) -> int:
        """The greatest absolute value of a column of integers; 0 if no cell holds one."""
        if self.low is None:
            return 0
        largest: int = max(-int(self.low), int(self.high))  # type: ignore[call-overload]
        return largest

    @cached_property
    def is_whole(self) -> bool:
        """Whether all numbers are finite and whole, apart from NaN."""
        numbers = self.present.to_numpy()
        numbers = numbers[~np.isnan(numbers)]
        return bool((np.isfinite(numbers) & (np.floor(numbers) == numbers)).all())

    @cached_property
    def texts(self) -> pl.Series:
        """The cells as text, without missing ones: null, NaN and empty text."""
        texts = as_text(self.cells)
        return texts.drop_nulls() if texts.null_count() else texts

    @cached_property
    def filled(self) -> int:
        """How many cells hold a value: neither null, NaN nor empty text."""
        if self.dtype.is_float():
            return len(self.present) - int(np.isnan(self.present.to_numpy()).sum())
        return len(self.present) if self.dtype.is_numeric() else len(self.texts)

    @cached_property
    def distinct_filled(self) -> int:
        """How many different values the filled cells hold."""
        if self.dtype.is_numeric():
            return self.distinct_present - (self.filled < len(self.present))
        return self.texts.n_unique()

    @cached_property
    def looks_like_dates(self) -> bool:
        """Whether text cells are dates, from a sample."""
        return looks_like_dates(self.cells)

    def codes(self) -> np.ndarray:
        """A number for each cell, equal for equal cells, from 0 to less than the number of different ones."""
        is_simple = self.dtype.is_integer() and not self.missing
        keys = (
            self.cells.to_numpy() if is_simple else comparable(self.cells).hash(seed=0).to_numpy()
        )
        return np.unique(keys, return_inverse=True)[1]


Columns = Mapping[str, ColumnProfile]
"""The columns of a table by name, in its order."""


def profile_columns(frame: pl.DataFrame) -> dict[str, ColumnProfile]:
    """The columns of a table by name, in its order."""
    return {cells.name: ColumnProfile(cells) for cells in frame.iter_columns()}


SEPARATORS = ("|", ";", ",", "/")
"""That may stand between the values of one cell."""


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """What patterns tell of the cells of a column of text that are not empty."""

    are_lists: bool  # each is a list as Python writes it
    may_be_thousands: bool  # each is a number such as 768 or 3.768, and some have a point
    have_addresses: bool  # of the web, in which a slash separates nothing
    have_leading_zeros: bool
    shares: Mapping[str, float]  # of the cells that hold each separator


def text_facts(columns: Columns) -> dict[str, TextFacts]:
    """The facts of every column of text that has a filled cell, with one query for each question.

    >>> rows = pl.DataFrame({"tags": ["a|b", "b", "", None], "zip": ["01", "1", "2", "3"]})
    >>> facts = text_facts(profile_columns(rows))
    >>> facts["tags"].shares["|"], facts["zip"].have_leading_zeros
    (0.5, True)
    """
    texts = pl.DataFrame(
        [
            as_text(column.cells)
            for column in columns.values()
            if column.dtype == pl.String and column.filled
        ]
    )
    if not texts.width:
        return {}

    cells = pl.all()
    are_plain_or_thousands = cells.str.contains(PLAIN_OR_THOUSANDS).all()
    questions = {
        "are_lists": cells.str.contains(r"^\s*\[.*\]\s*$").all(),
        "may_be_thousands": are_plain_or_thousands & cells.str.contains(".", literal=True).any(),
        "have_addresses": cells.str.contains("://", literal=True).any(),
        "have_leading_zeros": cells.str.contains(r"^0\d").any(),
    }
    answers = {name: texts.select(question).row(0) for name, question in questions.items()}
    shares = {
        separator: texts.select(cells.str.contains(separator, literal=True).mean()).row(0)
        for separator in SEPARATORS
    }
    return {
        name: TextFacts(
            **{question: by_column[k] for question, by_column in answers.items()},
            shares={separator: by_column[k] for separator, by_column in shares.items()},
        )
        for k, name in enumerate(texts.columns)
    }
