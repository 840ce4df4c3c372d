"""Filters of a catalogue by column values; the index of a column is built when it is first used.

Letters: N items.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_list, as_text
from fieldwise.errors import DataError
from fieldwise.schema import Schema

__all__ = ["ItemFilters", "item_filters"]

KEPT = 4  # the cache of results has at most KEPT * N rows
KEPT_ANSWERS = 256
KEPT_VALUES = 100  # maximum values of a filter whose result is cached


class ItemFilters:
    """Rows of items by the values of their columns.

    Args:
        items: the catalogue.
        separators: delimiters by column, for text columns with several values per cell.

    >>> filters = ItemFilters(pl.DataFrame({"item": ["a", "b", "c"], "genres": ["x|y", "y", None]}), {"genres": "|"})
    >>> filters.rows({"genres": ("y", "z")})
    array([0, 1])
    >>> filters.rows({"genres": ("y",), "item": ("b", "c")})
    array([1])
    """

    def __init__(self, items: pl.DataFrame, separators: Mapping[str, str]) -> None:
        self.items, self.separators = items, separators
        self._columns: dict[str, _Column] = {}
        self._texts: dict[str, pl.Series] = {}
        self._answers: OrderedDict[tuple[tuple[str, frozenset[str]], ...], np.ndarray] = OrderedDict()
        self._lock = Lock()

    def rows(self, where: Mapping[str, Sequence[str]]) -> np.ndarray:
        """The rows that have one of the given values in every column, ascending, int64; any value of a list counts.

        A cached filter returns the same array: it must not be modified.

        Errors:
            DataError: as for `texts`.
        """
        key = tuple((column, frozenset(where[column])) for column in sorted(where))
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
            found = np.arange(self.items.height)
            for number, (column, values) in enumerate(where.items()):
                passing = self._column(column).rows(values)
                found = np.intersect1d(found, passing, assume_unique=True) if number else passing
            if sum(map(len, where.values())) <= KEPT_VALUES:
                self._answers[key] = found
                self._forget()
            return found

    def texts(self, column: str) -> pl.Series:
        """A column as strings, or lists of strings, for comparison with filters.

        Errors:
            DataError: no such column, or an unsupported type.
        """
        if column not in self._texts:
            if column not in self.items.columns:
                raise DataError(
                    f"filters must name a column of the items, found {column!r}: {nearest(column, self.items.columns)}"
                )
            cells = self.items.get_column(column)
            separator = self.separators.get(column)
            lists = isinstance(cells.dtype, (pl.List, pl.Array)) or separator is not None
            try:
                if cells.dtype == pl.Duration:  # responses show it in words, which models do not read
                    raise DataError(f"column {column!r} holds durations")
                self._texts[column] = as_list(cells, separator or "|") if lists else as_text(cells)
            except (DataError, PolarsError):
                raise DataError(
                    f"filter columns must have text, numbers, times or lists of these, found column {column!r} of type "
                    f"{cells.dtype}: filter by another"
                ) from None
        return self._texts[column]

    @property
    def prepared(self) -> list[str]:
        """The columns that have been used."""
        return list(self._columns)

    def prepare(self, columns: Sequence[str]) -> None:
        """Build the index of columns; unsupported ones are skipped, and raise when used."""
        for column in columns:
            with self._lock, suppress(DataError):
                self._column(column)

    def _column(self, column: str) -> "_Column":
        if column not in self._columns:
            self._columns[column] = _Column(self.texts(column))
        return self._columns[column]

    def _forget(self) -> None:
        """Drop the least recently used results, which limits the memory of the cache."""
        while len(self._answers) > 1 and (
            len(self._answers) > KEPT_ANSWERS or sum(map(len, self._answers.values())) > KEPT * self.items.height
        ):
            self._answers.popitem(last=False)


def item_filters(items: pl.DataFrame, schemas: Sequence[Schema]) -> ItemFilters:
    """Filters of a catalogue; columns with several values are split by the delimiters of the schemas' fields."""
    fields = (f for schema in schemas for f in schema.fields)
    return ItemFilters(items, {f.column: f.separator for f in fields if f.cell == "list"})


class _Column:
    """Rows by value: those of value v are `order[starts[v] : starts[v + 1]]`, ascending."""

    def __init__(self, texts: pl.Series) -> None:
        rows = np.arange(len(texts))
        self.lists = texts.dtype == pl.List(pl.String)
        if self.lists:
            lengths = texts.list.len().fill_null(0).to_numpy()
            rows, texts = np.repeat(rows, lengths), texts.filter(texts.list.len() > 0).explode()
        known = texts.is_not_null()
        rows, texts = rows[known.to_numpy()], texts.filter(known)
        self.places: dict[str, int] = {}
        codes = np.array([self.places.setdefault(text, len(self.places)) for text in texts.to_list()], np.int64)
        self.order = rows[np.argsort(codes, kind="stable")]
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(self.places)))])

    def rows(self, values: Sequence[str]) -> np.ndarray:
        places = {self.places[value] for value in values if value in self.places}
        parts: list[np.ndarray] = [self.order[self.starts[place] : self.starts[place + 1]] for place in places]
        if len(parts) == 1 and not self.lists:
            return parts[0]
        found: np.ndarray = np.unique(
            np.concatenate([*parts, np.empty(0, np.int64)])
        )  # a list may have both values, or one twice
        return found
