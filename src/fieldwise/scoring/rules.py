"""Rules of lists besides the order by score: limits of items with one value, and items pinned at stated places."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fieldwise.errors import ConfigError, DataError
from fieldwise.scoring.items import NO_ROWS, ItemFilters, ItemTable
from fieldwise.scoring.list_options import is_count

SHOWN_ITEMS = 5
"""Items that a sentence names."""


class Arranged(NamedTuple):
    """A list by rules: positions in the order by score of its items, and of better items that limits left out."""

    positions: np.ndarray
    passed_over: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class ListRules:
    """Limits and pinned items of lists.

    Args:
        items: the catalogue.
        filters: its columns as texts.
        limits: by column of the items, the largest number of a list's items with one value; of a
            column of lists each value counts, and a missing value does not.
        pinned: by place in the list, from 1, the row of the item there.

    Errors:
        ConfigError: a limit below 1, a place below 1, an item at two places, or more pinned items
            with one value than its limit.
        DataError: a limit of a column that the items do not have.

    >>> import polars as pl
    >>> table = pl.DataFrame({"item": ["a", "b", "c", "d"], "genre": ["x", "x", "x", "y"]})
    >>> items = ItemTable(id_column="item", items=table)
    >>> rules = ListRules(items=items, filters=ItemFilters(table, {}), limits={"genre": 2}, pinned={1: 2})
    >>> rules.arrange(np.array([0, 1, 2, 3]), 3)
    Arranged(positions=array([2, 0, 3]), passed_over=array([1]))
    """

    items: ItemTable
    filters: ItemFilters
    limits: Mapping[str, int]
    pinned: Mapping[int, int]

    def __post_init__(self) -> None:
        for column, limit in self.limits.items():
            self.filters.texts(column)
            if not is_count(limit):
                raise ConfigError(
                    f"a limit must be a whole number of at least 1, found {limit!r} for {column!r}"
                )
        for place, row in self.pinned.items():
            if not is_count(place):
                raise ConfigError(
                    f"a place must be a whole number of at least 1, found {place!r} for {self._name(row)}"
                )
        rows = list(self.pinned.values())
        for row, count in Counter(rows).items():
            if count > 1:
                raise ConfigError(
                    f"an item must be pinned at one place, found {self._name(row)} at {count}: leave one of them"
                )
        for (column, value), count in self._counts(rows).items():
            if count > self.limits[column]:
                raise ConfigError(
                    f"pinned items must keep the limits, found {count} with {column} {value!r} and a limit of "
                    f"{self.limits[column]}: raise it, or pin fewer"
                )

    def __bool__(self) -> bool:
        return bool(self.limits or self.pinned)

    def check(self, k: int, rows: np.ndarray) -> None:
        """Check that pinned items are within a list of k, and among the rows that pass a request's filters."""
        for place, row in self.pinned.items():
            if place > k:
                raise ConfigError(
                    f"a pinned item must be within the list of {k}, found {self._name(row)} at place {place}: pin it "
                    "at an earlier place, or ask for more items"
                )
            if row not in rows:
                raise DataError(
                    f"a pinned item must be one that the request allows, found {self._name(row)} at place {place}, "
                    "which its filters, candidates or exclude leave out: pin another, or change them"
                )

    def rows_needed(self, rows: int, k: int) -> int:
        """How many of the best rows a list of k is made of: all where rules may pass over some."""
        return rows if self else k

    def arrange(self, order: np.ndarray, k: int) -> Arranged:
        """The list of k items that keeps the rules, of the rows in `order`, best first.

        Each place that is not pinned goes to the best item that keeps the limits. Pinned items that
        are not in `order`, which the user has seen, are left out. Without rules it is the first k.
        """
        if not self:
            return Arranged(np.arange(min(k, len(order))), NO_ROWS)
        pinned = {}
        for place, row in sorted(self.pinned.items()):
            for position in np.flatnonzero(order == row).tolist():
                pinned[place] = position
        taken = list(pinned.values())
        counts = self._counts(order[taken])
        is_open = np.ones(len(order), bool)
        is_open[taken] = False
        self._close(is_open, order, counts, counts)
        chosen: list[int] = []
        start = 0
        while len(chosen) + len(taken) < k and is_open[start:].any():
            position = start + int(is_open[start:].argmax())
            chosen.append(position)
            start = position + 1
            added = self._counts(order[[position]])
            counts += added
            self._close(is_open, order, counts, added)

        if len(chosen) + len(taken) < k:
            start = len(order)
        is_passed_over = np.arange(len(order)) < start
        is_passed_over[chosen + taken] = False
        for place, position in pinned.items():
            chosen.insert(place - 1, position)
        return Arranged(np.array(chosen, np.int64), np.flatnonzero(is_passed_over))

    def sentences(self, order: np.ndarray, arranged: Arranged, k: int) -> tuple[str, ...]:
        """Where the rules changed the list of `arrange`, in words."""
        sentences = []
        by_score = dict(zip(order[arranged.positions].tolist(), arranged.positions, strict=True))
        for place, row in sorted(self.pinned.items()):
            name = self._name(row)
            if row not in by_score:
                sentences.append(f"{name} is not pinned: the user has seen it")
                continue
            words = f"{name} is pinned at {place}, and by score at {by_score[row] + 1}"
            place_in_list = int(np.flatnonzero(order[arranged.positions] == row)[0]) + 1
            if place_in_list != place:
                words += f"; the list has {len(by_score)} items, and it is at {place_in_list}"
            sentences.append(words)
        if len(arranged.passed_over):
            first = arranged.passed_over[:SHOWN_ITEMS]
            names = ", ".join(
                f"{self._name(order[position])} (at {position + 1} by score)" for position in first
            )
            more = len(arranged.passed_over) - len(first)
            sentences.append(f"limits leave out {names}" + (f" and {more} more" if more else ""))
        if len(arranged.positions) < min(k, len(order)):
            sentences.append(
                f"limits leave {len(arranged.positions)} of {k} items: raise a limit, or ask for fewer"
            )
        return tuple(sentences)

    def values(self, column: str, row: int) -> list[str]:
        """The values that an item has in a column."""
        cell = self.filters.texts(column)[int(row)]
        if cell is None:
            return []
        return [cell] if isinstance(cell, str) else list(dict.fromkeys(cell.drop_nulls()))

    def _counts(self, rows: Iterable[int]) -> Counter[tuple[str, str]]:
        """The number of items by limited column and value."""
        counts = Counter[tuple[str, str]]()
        for column in self.limits:
            for row in rows:
                counts.update((column, value) for value in self.values(column, row))
        return counts

    def _close(
        self,
        is_open: np.ndarray,
        order: np.ndarray,
        counts: Counter[tuple[str, str]],
        changed: Counter[tuple[str, str]],
    ) -> None:
        """Close the items that have a value whose limit is reached, of the values whose count has changed."""
        for column, value in changed:
            if counts[column, value] >= self.limits[column]:
                is_open[np.isin(order, self.filters.rows({column: (value,)}))] = False

    def _name(self, row: int) -> str:
        return repr(self.items.texts[int(row)])
