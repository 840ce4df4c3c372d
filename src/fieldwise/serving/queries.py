"""Queries for recommendations, and their results."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from fieldwise.errors import ConfigError
from fieldwise.layout import Batch
from fieldwise.serving.filters import ItemFilters
from fieldwise.serving.items import ItemTable
from fieldwise.serving.rows import text_of

__all__ = ["PREDICTION", "PRERANK_SCORE", "Clock", "Found", "Prepared", "Query", "Recommends"]

PREDICTION = "prediction"
PRERANK_SCORE = "prerank_score"


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query for recommendations.

    Args:
        context: the raw values of user and context fields, by column; others are ignored.
        k: maximum number of items.
        prerank: k', maximum number of items for the ranking bundle.
        candidates: ids of the items to choose from; all if omitted.
        exclude: ids of items to exclude, such as those seen or blocked; unknown ones are ignored.
        where: allowed values by item column; in a column of lists, any one of them must be allowed.

    Ids and values may be strings, numbers or booleans: 3, 3.0 and "3" are the same, as everywhere in tables.

    Errors:
        ConfigError: k or prerank out of range; a string or another invalid value instead of a list of values.
    """

    context: Mapping[str, Any]
    k: int = 10
    prerank: int = 200
    candidates: Iterable[Any] | None = None
    exclude: Iterable[Any] = ()
    where: Mapping[str, Iterable[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.k < 1 or self.prerank < self.k:
            raise ConfigError(
                f"k must be at least 1 and prerank at least k, found k {self.k} and prerank {self.prerank}"
            )
        given = None if self.candidates is None else tuple(dict.fromkeys(_texts(self.candidates, "candidates")))
        object.__setattr__(self, "candidates", given)
        object.__setattr__(self, "exclude", _texts(self.exclude, "exclude"))
        where = {column: _texts(values, f"where[{column!r}]") for column, values in self.where.items()}
        object.__setattr__(self, "where", where)


def _texts(values: Iterable[Any], name: str) -> tuple[str, ...]:
    if isinstance(values, (str, bytes, Mapping)):
        raise ConfigError(f"{name} must be a list of values, found {values!r}: put it into a list")
    try:
        return tuple(text_of(value.item() if isinstance(value, np.generic) else value) for value in values)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{name} must hold texts, numbers or booleans, each {e}") from None


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The items found, best first.

    Args:
        index: the index that contains them.
        rows: their rows in the index.
        scores: `prerank_score` (a logit) and, with a ranking bundle, `prediction` (a probability or number). Items are
            sorted by `prediction` if present, otherwise by `prerank_score`.
        counts: number of items after each stage: `candidates`, `filtered`, `scored` (by IntTower), `preranked`,
            `ranked`; the third and fourth only for a cascade.
        seconds: time of each stage: `encode`, `filter`, `prerank` (of a cascade), `rank`; the last two are totals for
            queries that are answered together.
        preranked: for a cascade, the rows that IntTower selected, best first.
    """

    index: ItemTable
    rows: np.ndarray
    scores: Mapping[str, np.ndarray]
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    preranked: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def items(self) -> pl.DataFrame:
        """The items' rows with all columns, then the scores."""
        return self.index.items[self.rows].with_columns(pl.Series(name, v) for name, v in self.scores.items())


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A checked query with encoded contexts and its candidates.

    Args:
        query: the query itself.
        tower: the context for IntTower, if any.
        ranking: the context for the ranking bundle, if any.
        rows: the candidates that pass all filters except `exclude`, ascending; None for all items. Queries with equal
            filters share one array.
        excluded: positions in `rows` to exclude, or items if `rows` is None.
        candidates: number of items to choose from.
        passing: number of items that pass all filters.
        seconds: time of the preparation by stage.
    """

    query: Query
    tower: Batch | None
    ranking: Batch | None
    rows: np.ndarray | None
    excluded: np.ndarray
    candidates: int
    passing: int
    seconds: Mapping[str, float]


class Recommends(ABC):
    """Base class of recommenders: queries are checked one by one, and answered one by one or together.

    Args:
        index: the items.
    """

    index: ItemTable

    @property
    @abstractmethod
    def filters(self) -> ItemFilters:
        """The filters of the index's items."""

    @abstractmethod
    def _encoded(self, context: Mapping[str, Any]) -> tuple[Batch | None, Batch | None]:
        """A context for IntTower and for the ranking bundle; None for a missing stage."""

    @abstractmethod
    def recommend_prepared(self, asked: Sequence[Prepared]) -> list[Found]:
        """The best items for several queries."""

    def recommend(self, query: Query) -> Found:
        """The best items for a query; without a first stage, `prerank` is ignored.

        Errors:
            DataError: the context lacks a column or has an invalid value; an unknown candidate; a filter on a column
                that items do not have.
        """
        return self.recommend_prepared([self.prepare(query)])[0]

    def prepare(self, query: Query) -> Prepared:
        """Check a query, encode its context and find its candidates.

        Errors:
            DataError: as in `recommend`.
        """
        clock = Clock()
        tower, ranking = self._encoded(query.context)
        clock.lap("encode")
        return _prepared(query, self.index, self.filters, clock, tower=tower, ranking=ranking)


def _prepared(
    query: Query, index: ItemTable, filters: ItemFilters, clock: "Clock", *, tower: Batch | None, ranking: Batch | None
) -> Prepared:
    """A query whose contexts are encoded, with its candidates.

    Errors:
        DataError: an unknown candidate; a filter on a column that items do not have.
    """
    rows = None if query.candidates is None else np.sort(index.rows_of(list(query.candidates)).numpy())
    candidates = len(index) if rows is None else len(rows)
    if query.where:
        passing = filters.rows({column: tuple(values) for column, values in query.where.items()})
        rows = passing if rows is None else np.intersect1d(rows, passing, assume_unique=True)
    places = index.places
    unwanted = np.array(sorted({places[one] for one in query.exclude if one in places}), np.int64)
    if rows is not None and len(unwanted):
        unwanted = np.flatnonzero(np.isin(rows, unwanted, assume_unique=True))
    clock.lap("filter")
    return Prepared(
        query=query,
        tower=tower,
        ranking=ranking,
        rows=rows,
        excluded=unwanted,
        candidates=candidates,
        passing=(len(index) if rows is None else len(rows)) - len(unwanted),
        seconds=clock.seconds,
    )


class Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Record the seconds since the previous lap under a name."""
        now = time.perf_counter()
        self.seconds[name] = now - self.last
        self.last = now
