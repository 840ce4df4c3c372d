"""Two stages for one request: IntTower's stored item heads cut a catalogue down, a ranking bundle orders what is left.

    candidates (all items, or a list) -> filters -> IntTower by stored heads -> best k' -> ranking bundle -> best k

Letters: N items, R of them candidates.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from polars.exceptions import PolarsError
from torch import Tensor

from fieldwise.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.columns import as_list, as_text
from fieldwise.data.encode_row import encode_row
from fieldwise.data.encoded import EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.models.candidates import Split, joined, score_candidates
from fieldwise.models.inttower import IntTowerNetwork
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.request import context_row, split_columns
from fieldwise.schema import Bag, Sequence
from fieldwise.serving.index import ItemIndex, check_columns_apart
from fieldwise.serving.rows import text_of

__all__ = ["PREDICTION", "PRERANK_SCORE", "Cascade", "Found", "Query", "best_rows"]

PREDICTION = "prediction"
PRERANK_SCORE = "prerank_score"


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is asked for.

    Args:
        context: the raw values of user and context fields, by column; others are ignored.
        k: how many items at most.
        prerank: k', how many items the ranking bundle sees at most.
        candidates: ids of the items to choose from; all where left out.
        exclude: ids of items that must not come, such as those seen or blocked; unknown ones are ignored.
        where: column of the items and the values that it may have; of a column of lists, any of its values.

    Ids and values may be texts, numbers or booleans: 3, 3.0 and "3" are one, as everywhere in tables.

    Errors:
        ConfigError: k or prerank out of range; a text, or something that is no value, for a list of values.
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
        items: their rows with all columns, then `prerank_score` (a logit) and, where there is a ranking bundle,
            `prediction` (a probability, or a number), which the order goes by; else it goes by the former.
        rows: where they stand in the index.
        counts: items left after each stage: `candidates`, `filtered`, `preranked`, `ranked`.
        seconds: what each stage took: `encode`, `filter`, `prerank`, `rank`.
    """

    items: pl.DataFrame
    rows: np.ndarray
    counts: Mapping[str, int]
    seconds: Mapping[str, float]


def best_rows(score_R: Tensor, k: int) -> Tensor:
    """The places of the k greatest scores, best first; of equal ones the first; NaN counts as least.

    >>> best_rows(torch.tensor([1.0, 3.0, 1.0, 3.0, float("nan")]), 3)
    tensor([1, 3, 0])
    """
    score_R = torch.nan_to_num(score_R, nan=-torch.inf)
    if k < len(score_R):
        least = torch.topk(score_R, k, sorted=False).values.min()
        above, equal = (score_R > least).nonzero().flatten(), (score_R == least).nonzero().flatten()
        places = torch.cat([above, equal[: k - len(above)]]).sort().values
    else:
        places = torch.arange(len(score_R))
    return places[torch.sort(score_R[places], descending=True, stable=True).indices]


class Cascade:
    """Recommends from an index, with a ranking bundle or by IntTower alone.

    What depends on the catalogue alone is made once: the ranking bundle's encoded item fields, ids, columns.

    Args:
        prerank: the IntTower that made the index.
        index: the items' heads.
        ranker: any bundle of one label, or of several, whose main one counts; its item fields are read from the index.

    Errors:
        BundleError: the index belongs to another bundle.
        DataError: the items lack a column of the ranking bundle's item fields.
    """

    def __init__(self, prerank: Bundle, index: ItemIndex, ranker: Bundle | None = None) -> None:
        index.check_model(prerank)
        taken = [name for name in (PRERANK_SCORE, PREDICTION) if name in index.items.columns]
        if taken:
            raise DataError(
                f"found items come with a column {taken[0]!r} of their own: rename that of the index's items"
            )
        assert isinstance(prerank.network, IntTowerNetwork), "the index was made by it"
        self.prerank, self.network, self.index, self.ranker = prerank, prerank.network, index, ranker
        self._towers = _Request.of(prerank, index, index.items.head(1))  # a row to make whole rows with: not read
        self._ranking = None if ranker is None else _Request.of(ranker, index, index.items)

    def recommend(self, query: Query) -> Found:
        """The best items for a query.

        Errors:
            DataError: the context lacks a column or holds what it must not; an unknown candidate; a filter on a column
                that items do not have.
        """
        clock = _Clock()
        one = self._towers.context(query.context)
        other = None if self._ranking is None else self._ranking.context(query.context)
        clock.lap("encode")
        rows = None if query.candidates is None else self.index.rows_of(list(query.candidates)).sort().values
        allowed = self._allowed(query)
        candidates = len(self.index) if rows is None else len(rows)
        if allowed is not None:
            rows = torch.from_numpy(np.flatnonzero(allowed)) if rows is None else rows[torch.from_numpy(allowed)[rows]]
        filtered = len(self.index) if rows is None else len(rows)
        clock.lap("filter")
        with torch.no_grad(), flushed_denormals():
            score_R = self._prerank(one, rows)
        kept = best_rows(score_R, query.prerank)
        places = kept if rows is None else rows[kept]
        clock.lap("prerank")
        columns = {PRERANK_SCORE: score_R[kept].double().numpy()}
        if self._ranking is not None and other is not None:
            ranked = self._ranking.score(other, places)
            best = np.argsort(-ranked, kind="stable")[: query.k]
            columns = {PRERANK_SCORE: columns[PRERANK_SCORE][best], PREDICTION: self._ranking.prediction(ranked[best])}
            chosen = places.numpy()[best]
        else:
            chosen = places.numpy()[: query.k]
            columns = {PRERANK_SCORE: columns[PRERANK_SCORE][: query.k]}
        clock.lap("rank")
        return Found(
            items=self.index.items[chosen].with_columns(pl.Series(name, values) for name, values in columns.items()),
            rows=chosen,
            counts={"candidates": candidates, "filtered": filtered, "preranked": len(places), "ranked": len(chosen)},
            seconds=clock.seconds,
        )

    def rank_all(self, context: Mapping[str, Any]) -> np.ndarray:
        """The ranking bundle's scores of every item [N] in one context: what the cascade is measured against."""
        if self._ranking is None:
            raise ConfigError("ranking every item needs a ranking bundle, and this cascade has none")
        return self._ranking.score(self._ranking.context(context), torch.arange(len(self.index)))

    def prerank_all(self, context: Mapping[str, Any]) -> np.ndarray:
        """IntTower's logits of every item [N] in one context."""
        with torch.no_grad(), flushed_denormals():
            return self._prerank(self._towers.context(context), None).double().numpy()

    def _prerank(self, context: EncodedTable, rows: Tensor | None) -> Tensor:
        request = self._towers
        batch = joined(request.split, context.batch(slice(0, 1))[0], request.items.batch(slice(0, 1))[0])
        return self.network.score_stored(self.network.user(batch), self.index.stored, rows).squeeze(0)

    def _allowed(self, query: Query) -> np.ndarray | None:
        """Which items pass the filters [N], or None where there is none."""
        allowed: np.ndarray | None = None
        if query.exclude:
            allowed = np.ones(len(self.index), bool)
            places = self.index.places
            allowed[[places[one] for one in query.exclude if one in places]] = False
        for column, values in query.where.items():
            passes = self._has_value(column, tuple(values))
            allowed = passes if allowed is None else allowed & passes
        return allowed

    def _has_value(self, column: str, wanted: tuple[str, ...]) -> np.ndarray:
        texts = self.texts(column)
        if texts.dtype == pl.List(pl.String):
            passes = texts.list.set_intersection(wanted).list.len() > 0
        else:
            passes = texts.is_in(wanted)
        found: np.ndarray = passes.fill_null(False).to_numpy()
        return found

    def texts(self, column: str) -> pl.Series:
        """An item column as texts, or lists of texts, as filters compare them: made when it is first asked for.

        Errors:
            DataError: no such column, or one of a type that has no texts.
        """
        if column not in self._columns:
            if column not in self.index.items.columns:
                raise DataError(
                    f"items are filtered by a column of theirs, found {column!r}: "
                    f"{nearest(column, self.index.items.columns)}"
                )
            cells = self.index.items.get_column(column)
            bags = [f for f in self.prerank.schema.fields if isinstance(f, (Bag, Sequence)) and f.column == column]
            separator = bags[0].separator if bags else None
            lists = isinstance(cells.dtype, (pl.List, pl.Array)) or separator is not None
            try:
                self._columns[column] = as_list(cells, separator or "|") if lists else as_text(cells)
            except (DataError, PolarsError):
                raise DataError(
                    f"items are filtered by texts, numbers, times or lists of these, found column {column!r} of type "
                    f"{cells.dtype}: filter by another"
                ) from None
        return self._columns[column]

    @cached_property
    def _columns(self) -> dict[str, pl.Series]:
        return {}


@dataclass(frozen=True, eq=False)
class _Request:
    """A bundle's side of every request: which columns are whose, and the catalogue's item fields, encoded."""

    bundle: Bundle
    split: Split
    items: EncodedTable
    columns: tuple[str, ...]

    @classmethod
    def of(cls, bundle: Bundle, index: ItemIndex, items: pl.DataFrame) -> "_Request":
        schema = bundle.schema
        check_columns_apart(schema)
        own = {f.column for f in schema.with_role("item")}
        if not own or len(own) == len(schema.columns):
            side = "user or context" if own else "item"
            raise ConfigError(
                f"a cascade's bundles read items and contexts, found a schema without fields of role {side}: give its "
                "fields their roles"
            )
        missing = [column for column in sorted(own) if column not in index.items.columns]
        if missing:
            raise DataError(
                f"the index's items must hold every column of the ranking bundle's item fields: {missing[0]!r} is "
                f"missing among {', '.join(index.items.columns)}; build the index from a table that has it"
            )
        columns = tuple(column for column in schema.columns if column not in own)
        split = split_columns(bundle.encoder, bundle.encoder.layout, columns, own)
        return cls(bundle, split, bundle.encoder.transform_part(items, split.candidates.layout), columns)

    def context(self, values: Mapping[str, Any]) -> EncodedTable:
        """The context's one row, encoded."""
        missing = [column for column in self.columns if column not in values]
        if missing:
            raise DataError(
                f"a context must hold every user and context column of the model, found no {missing[0]!r}: give it, or "
                "null where it is not known"
            )
        encoder, part = self.bundle.encoder, self.split.context.layout
        found = encode_row(encoder, part, values)
        return encoder.transform_part(context_row(values, self.columns), part) if found is None else found

    def score(self, context: EncodedTable, rows: Tensor) -> np.ndarray:
        """Scores of some items [R] by the main label, float64."""
        one, many = context.batch(slice(0, 1))[0], self.items.batch(rows)[0]
        found = score_candidates(self.bundle.network, self.split, one, many).double().numpy()
        scores: np.ndarray = found if found.ndim == 1 else found[:, 0]
        return scores

    def prediction(self, score: np.ndarray) -> np.ndarray:
        """Probabilities, or numbers within the label's range."""
        return self.bundle.main_prediction(score)


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self.last
        self.last = now
