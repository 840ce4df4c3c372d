"""Recommendations from a catalogue: the one way from a context to ranked items.

Pre-ranking: IntTower scores items by stored heads; of a large catalogue, those in clusters near the
user's heads. An item is a candidate if one of its heads is in a cluster near one of the user's
heads. Candidates are then scored exactly, so only items outside these clusters are lost:
`fieldwise evaluate --nprobe` measures the loss.

Letters: N items, R of them candidates, K item heads, P size of a head; U users, L levels, H user
heads (in clusters: of all levels), C clusters; T labels.
"""

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import polars as pl
import torch
from torch import Tensor

from fieldwise.data.encode.portable import ONE_VALUE, cell_text
from fieldwise.data.sampling import drawn_rows
from fieldwise.data.table import EncodedTable
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.layers.candidates import Part
from fieldwise.layout import Batch
from fieldwise.models.twotower import HeadsNetwork
from fieldwise.ops.stored_items import StoredItems
from fieldwise.scoring import PRERANK
from fieldwise.scoring.batches import finite, scoring_mode
from fieldwise.scoring.candidates import CatalogueRows, CatalogueScorer, Model, Pairs
from fieldwise.scoring.items import NO_ROWS, ItemFilters, ItemIndex, ItemTable, top_k_indices
from fieldwise.scoring.rules import ListRules

M = TypeVar("M", bound=Model)
PREDICTION = "prediction"
PRERANK_SCORE = "prerank_score"
BY_SCORE = "by_score"
SAMPLED_HEADS_PER_CLUSTER = 64
MAX_CLUSTERS = 4096
HEADS_ASSIGNED_AT_ONCE = 65_536


@dataclass(frozen=True, kw_only=True, eq=False)
class RankingRequest:
    """The candidates of a request, of which `Ranker.complete` finds the best.

    Args:
        rows: their rows in the index.
        excluded: positions in `rows` to exclude.
        counts: number of `candidates`, and of those `filtered`.
        seconds: time to `encode` and to `filter`.
        k: maximum number of items.
        prerank: k', maximum number of items for the ranking bundle.
        tower_context: the context, encoded for IntTower, if it pre-ranks.
        context: the context, encoded for the ranking bundle, if there is one.
        rules: limits and pinned items of the list.
        values, candidates, exclude, seen, where: the arguments of `Ranker.prepare`.
    """

    rows: np.ndarray
    excluded: np.ndarray
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    k: int
    prerank: int
    tower_context: Batch | None
    context: Batch | None
    rules: ListRules
    values: Mapping[str, Any]
    candidates: np.ndarray | None
    exclude: np.ndarray
    seen: np.ndarray
    where: Mapping[str, Sequence[Any]]

    @property
    def rows_needed(self) -> int:
        """How many of the best items the list is made of."""
        return self.rules.rows_needed(len(self.rows), self.k)

    def check_pinned(self) -> None:
        """Check that pinned items are within the list and pass the filters; errors as of `Ranker.recommend`."""
        if self.rules.pinned:
            self.rules.check(self.k, np.setdiff1d(self.rows, self.exclude))


@dataclass(frozen=True, kw_only=True, eq=False)
class RankingResult:
    """The items found for a request, best first.

    Args:
        request: what was asked for.
        index: the index that contains them.
        rows: their rows in the index.
        scores: `prerank_score` (a logit) and, with a ranking bundle, `prediction` (a probability or
            number). Items are sorted by `prediction` if present, otherwise by `prerank_score`.
        counts: number of items after each stage: `candidates`, `filtered`, `scored` (by IntTower),
            `preranked`, `ranked`; the third and fourth only for a cascade.
        seconds: time of each stage: `encode`, `filter`, `prerank` (of a cascade), `rank`; the last
            two are totals for requests that are answered together.
        preranked: with pre-ranking, the rows that IntTower selected, best first; else none.
        by_score: with limits or pinned items, the items' places by score alone, from 1; else none.
        passed_over: rows of better items that limits left out.
        changed: where limits and pinned items changed the list, in sentences.
    """

    request: RankingRequest
    index: ItemTable
    rows: np.ndarray
    scores: dict[str, np.ndarray]
    counts: dict[str, int]
    seconds: dict[str, float]
    preranked: np.ndarray = field(default_factory=lambda: NO_ROWS)
    by_score: np.ndarray = field(default_factory=lambda: NO_ROWS)
    passed_over: np.ndarray = field(default_factory=lambda: NO_ROWS)
    changed: tuple[str, ...] = ()

    @cached_property
    def items(self) -> pl.DataFrame:
        """The items' rows with all columns, then the scores, and `by_score` if there are rules."""
        return self.index.items[self.rows].with_columns(
            pl.Series(name, values) for name, values in self.columns.items()
        )

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """What is added to the items' columns."""
        return {**self.scores, BY_SCORE: self.by_score} if len(self.by_score) else self.scores


class _Preranked(NamedTuple):
    """A request's best k' rows by IntTower, best first, their scores, and the number of rows that it scored."""

    rows: np.ndarray
    scores: np.ndarray
    scored: int


@dataclass(frozen=True, eq=False)
class HeadClusters:
    """The items with a head in each cluster."""

    centres: Tensor  # float32 [C, P]
    items: np.ndarray  # int32, those of cluster c at `starts[c] : starts[c + 1]`, ascending
    starts: np.ndarray  # [C + 1]
    size: int  # N

    @classmethod
    def of(cls, stored: StoredItems) -> "HeadClusters":
        """Cluster the heads of all items by k-means, on a sample of them.

        C is the square root of 10 N (1,000 for 100,000 items), at most 4,096.
        """
        count, heads, size = stored.heads.shape
        clusters = min(MAX_CLUSTERS, count, max(1, round((10 * count) ** 0.5)))
        from sklearn.cluster import MiniBatchKMeans  # slow to import, and only needed with clusters

        sampled_items = math.ceil(clusters * SAMPLED_HEADS_PER_CLUSTER / heads)
        chosen = torch.from_numpy(drawn_rows(count, sampled_items))
        sample = stored.floats(chosen).reshape(-1, size).numpy()
        means = MiniBatchKMeans(
            clusters, random_state=0, n_init=1, batch_size=4096, init="random"
        ).fit(sample)
        centres = torch.from_numpy(means.cluster_centers_.astype(np.float32))
        step = max(1, HEADS_ASSIGNED_AT_ONCE // heads)
        clusters_and_items = []  # as one number each, to sort them fast
        for start in range(0, count, step):
            rows = np.arange(start, min(start + step, count))
            x_MP = stored.floats(slice(start, start + step)).reshape(-1, size)
            nearest = (centres.square().sum(1) - 2 * x_MP @ centres.t()).argmin(1).numpy()
            clusters_and_items.append(nearest.astype(np.int64) * count + np.repeat(rows, heads))
        pairs = np.unique(np.concatenate(clusters_and_items))
        starts = np.searchsorted(pairs, np.arange(clusters + 1) * count)
        return cls(centres, (pairs % count).astype(np.int32), starts, count)

    @classmethod
    def of_index(cls, index: ItemIndex) -> "HeadClusters":
        """The clusters of an index's heads, which the processes of a server share."""

        def make() -> dict[str, np.ndarray]:
            clusters = cls.of(index.stored)
            return {
                "centres": clusters.centres.numpy(),
                "items": clusters.items,
                "starts": clusters.starts,
            }

        arrays = index.arrays("clusters", ("centres", "items", "starts"), make)
        return cls(
            torch.from_numpy(arrays["centres"]), arrays["items"], arrays["starts"], len(index)
        )

    def candidates(self, user_HP: Tensor, nprobe: int) -> np.ndarray:
        """The items with a head in one of the `nprobe` nearest clusters of each user head, ascending, int64.

        The nearest clusters have the largest inner products, as in MaxSim.
        """
        nearness_HC = user_HP @ self.centres.t()
        nearest = torch.topk(nearness_HC, min(nprobe, len(self.centres)), dim=1).indices.numpy()
        is_candidate = np.zeros(self.size, bool)
        for cluster in np.unique(nearest).tolist():
            is_candidate[self.items[self.starts[cluster] : self.starts[cluster + 1]]] = True
        return np.flatnonzero(is_candidate)


class PreRanker:
    """IntTower's scores of a catalogue's items, by their stored heads; only those in `nprobe` clusters, unless None."""

    def __init__(self, model: Model, index: ItemIndex, nprobe: int | None = None) -> None:
        if nprobe is not None and nprobe < 1:
            raise ConfigError(f"nprobe must be at least 1, found {nprobe}")
        if not isinstance(model.network, HeadsNetwork):
            raise ConfigError(
                "the bundle that pre-ranks must be the IntTower of the index, found another model"
            )
        if index.model != model.digest:
            raise BundleError(
                "an index belongs to the model that made it, but this bundle has other fields or weights: build a "
                "new index with it"
            )
        self.network = model.network
        self.nprobe = nprobe
        # a row that completes those of contexts, and is not read
        first_item = ItemTable(id_column=index.id_column, items=index.items.head(1))
        self.scorer = CatalogueScorer(model, first_item)
        self._stored = index.stored.to(self.scorer.device)
        self.clusters = None if nprobe is None else HeadClusters.of_index(index)

    def user_heads(self, contexts: Batch) -> Tensor:
        """IntTower's user heads of contexts [U, L, H, P]."""
        owner = torch.arange(contexts.size, device=self.scorer.device)
        split = self.scorer.split
        parts = (
            Part(split.context, contexts.to(owner.device)),
            CatalogueRows(self.scorer, torch.zeros_like(owner)),
        )
        with scoring_mode(self.network):
            return self.network.user(cast(Batch, Pairs(split, *parts, owner)))

    def score(self, user_ULHP: Tensor, rows: np.ndarray | None) -> np.ndarray:
        """The logits [U, R] of items by number, of all if None."""
        chosen = None if rows is None else torch.from_numpy(rows).to(self.scorer.device)
        with scoring_mode(self.network):
            result: np.ndarray = (
                self.network.score_stored(user_ULHP, self._stored, chosen).cpu().numpy()
            )
        return finite(result)


class Ranker(Generic[M]):
    """Recommends items of a catalogue: a bundle ranks all that pass the filters, or those that an IntTower pre-ranks.

        candidates (all items, or a list) -> filters -> [IntTower by stored heads -> best k'] ->
        bundle -> best k

    Everything that only depends on the catalogue is computed once: encoded item fields, ids,
    columns. Without pre-ranking the time is proportional to the number of items. Ties keep the
    catalogue's order.

    Args:
        bundle: any bundle with item fields and context fields; with several labels, the main one is
            used. None to rank by IntTower alone.
        items: one row per item, with the columns of the item fields; other columns (a title) are
            included in results.
        tower: the IntTower that made `items`, which is its index, to pre-rank them.
        nprobe: number of item-head clusters to search for each user head, if more than half of the
            items pass the filters and these clusters have k' of them (`HeadClusters`); None scores
            all that pass.
        own: columns that the bundle reads from the items, not from contexts; those of the item
            fields if omitted.

    Errors:
        BundleError: the index was built with another bundle.
        ConfigError: neither bundle; pre-ranking without an index or an IntTower; an nprobe below 1;
            a schema without item fields or context fields, or a column that both sides read.
        DataError: the items lack a column of the bundle's item fields, or have a column
            `prediction`.

    >>> from fieldwise import Categorical, FM, Label, Recommender, Schema, TrainingSettings, simulate
    >>> from fieldwise.scoring.items import item_table
    >>> log = simulate(500, users=20, items=10)
    >>> fields = Categorical("user_id", role="user"), Categorical("item_id", role="item")
    >>> settings = TrainingSettings(epochs=1)
    >>> fitted = Recommender(Schema(fields=fields, label=Label("liked")), FM(), training=settings).fit(log)
    >>> items = item_table(log.select("item_id", "title").unique("item_id"), "item_id")
    >>> ranker = Ranker(fitted.bundle_, items)
    >>> ranker.recommend({"user_id": "u0001"}, k=3).items.columns
    ['item_id', 'title', 'prediction']
    """

    def __init__(
        self,
        bundle: M | None,
        items: ItemTable,
        *,
        tower: M | None = None,
        nprobe: int | None = None,
        own: Collection[str] | None = None,
    ) -> None:
        if bundle is None and tower is None:
            raise ConfigError(
                "ranking needs a bundle that scores, or an IntTower with its index: give one"
            )
        self.bundle = bundle
        self.index = items
        self.tower = tower
        self._pre_ranker: PreRanker | None = None
        if tower is not None:
            if not isinstance(items, ItemIndex):
                raise ConfigError(
                    "pre-ranking needs the IntTower's index, found a table of items: give the index"
                )
            self._pre_ranker = PreRanker(tower, items, nprobe)
        added_columns = [PREDICTION] if tower is None else [PRERANK_SCORE, PREDICTION]
        for name in added_columns:
            if own is None and name in items.items.columns:
                raise DataError(
                    f"the items must not have a column {name!r}, which is added to results: rename that column"
                )
        self._scorer = None if bundle is None else CatalogueScorer(bundle, items, own)
        self._all = np.arange(len(items))  # the rows of all items
        # columns with several values are split by the separators of the bundles' fields
        separators: dict[str, str] = {}
        for model in (tower, bundle):
            fields = () if model is None else model.schema.fields
            separators |= {
                field.column: field.separator for field in fields if field.cell == "list"
            }
        self.filters = ItemFilters(items.items, separators)

    def recommend(
        self,
        context: Mapping[str, Any],
        *,
        k: int = 10,
        prerank: int = PRERANK,
        candidates: Iterable[Any] | None = None,
        exclude: Iterable[Any] = (),
        seen: Iterable[Any] = (),
        where: Mapping[str, Iterable[Any]] = MappingProxyType({}),
        limits: Mapping[str, int] = MappingProxyType({}),
        pinned: Mapping[int, Any] = MappingProxyType({}),
    ) -> RankingResult:
        """The best items in a context.

        Ids and values may be strings, numbers or booleans: 3, 3.0 and "3" are the same, as
        everywhere in tables.

        Args:
            context: the raw values of user and context fields, by column; others are ignored.
            k: maximum number of items.
            prerank: k', maximum number of items for the ranking bundle; ignored without a first
                stage.
            candidates: ids of the items to choose from; all if omitted.
            exclude: ids of items to exclude, such as those blocked; unknown ones are ignored.
            seen: ids of items to exclude as the user has seen them, also from `pinned`; likewise.
            where: allowed values by item column; in a column of lists, any one of them must be
                allowed.
            limits: by item column, the largest number of items with one value, as
                `{"category": 3}`.
            pinned: ids of items by their place in the list, from 1.

        Errors:
            ConfigError: k, prerank, a limit or a place out of range; a string or another invalid
                value instead of a list of values; pinned items that break a limit.
            DataError: the context lacks a column or has an invalid value; an unknown candidate or
                pinned item, or a pinned one that the filters exclude; a filter or limit on a column
                that items do not have.
        """
        prerank = self._checked_prerank(k, prerank)
        rows = None
        if candidates is not None:
            rows = self.index.rows_of(_texts(candidates, "candidates"))
        request = self.prepare(
            context,
            k=k,
            prerank=prerank,
            candidates=rows,
            exclude=self.index.known_rows(_texts(exclude, "exclude")),
            seen=self.index.known_rows(_texts(seen, "seen")),
            where={
                column: _texts(values, f"where[{column!r}]") for column, values in where.items()
            },
            rules=self.rules(limits, pinned),
        )
        request.check_pinned()
        return self.complete([request])[0]

    def _checked_prerank(self, k: int, prerank: int) -> int:
        """How many items the ranking bundle ranks; a ConfigError if they or the list are too few."""
        if k < 1:
            raise ConfigError(f"k must be at least 1, found {k}")
        if self.tower is None:
            return max(k, prerank)
        if prerank < k:
            raise ConfigError(f"prerank must be at least k, found k {k} and prerank {prerank}")
        return prerank

    def rules(self, limits: Mapping[str, int], pinned: Mapping[int, Any]) -> ListRules:
        """The rules of lists, for `prepare`, with pinned items by id; errors as of `recommend`."""
        if not isinstance(limits, Mapping):
            raise ConfigError(
                f"limits must map columns to numbers, as {{'category': 3}}, found {limits!r}: write them so"
            )
        if not isinstance(pinned, Mapping):
            raise ConfigError(
                f"pinned must map places to items, as {{1: 'ITEM'}}, found {pinned!r}: write them so"
            )
        places = {}
        for position, item in zip(pinned, _texts(pinned.values(), "pinned"), strict=True):
            if item not in self.index.places:
                raise DataError(
                    f"a pinned item must be one of the {self.index.what}'s {len(self.index):,}, found {item[:60]!r} "
                    f"at place {position}: pin another"
                )
            places[position] = self.index.places[item]
        return ListRules(items=self.index, filters=self.filters, limits=limits, pinned=places)

    def prepare(
        self,
        context: Mapping[str, Any],
        *,
        k: int,
        prerank: int,
        candidates: np.ndarray | None = None,
        exclude: np.ndarray = NO_ROWS,
        seen: np.ndarray = NO_ROWS,
        where: Mapping[str, Sequence[Any]] = MappingProxyType({}),
        rules: ListRules | None = None,
    ) -> RankingRequest:
        """A request's candidates and encoded context, for `complete`.

        The arguments are those of `recommend`, with rows instead of ids, and `prerank` at least
        `k`. Pinned items are checked by `RankingRequest.check_pinned`.

        Errors:
            DataError: the context lacks a column or has an invalid value; a filter on a column that
                items do not have.
        """
        began = time.perf_counter()
        tower, ranking = self._encoded_context(context)
        encoded = time.perf_counter()
        candidate_rows = self._all if candidates is None else np.unique(candidates)
        rows = self._filtered(candidate_rows, where)
        excluded = np.union1d(exclude, seen)
        if rows is not self._all and len(excluded):
            excluded = np.flatnonzero(np.isin(rows, excluded, assume_unique=True))
        return RankingRequest(
            rows=rows,
            excluded=excluded,
            counts={"candidates": len(candidate_rows), "filtered": len(rows) - len(excluded)},
            seconds={"encode": encoded - began, "filter": time.perf_counter() - encoded},
            k=k,
            prerank=prerank,
            tower_context=tower,
            context=ranking,
            rules=rules or self.rules({}, {}),
            values=context,
            candidates=candidates,
            exclude=exclude,
            seen=seen,
            where=where,
        )

    def _encoded_context(self, context: Mapping[str, Any]) -> tuple[Batch | None, Batch | None]:
        """A context encoded for IntTower and for the bundle, once if both encode it the same way."""
        tower = None
        if self._pre_ranker is not None:
            tower = self._pre_ranker.scorer.context(context)
        if self._scorer is None:
            return tower, None
        if self._alike:
            return tower, tower
        return tower, self._scorer.context(context)

    def _filtered(self, rows: np.ndarray, where: Mapping[str, Sequence[Any]]) -> np.ndarray:
        """The candidates that pass the filters; requests with equal filters of all items share one array."""
        if not where:
            return rows
        passing = self.filters.rows(where)
        if rows is self._all:
            return passing
        return np.intersect1d(rows, passing, assume_unique=True)

    def complete(self, requests: Sequence[RankingRequest]) -> list[RankingResult]:
        """The best items of each request, pre-ranked and ranked.

        With pre-ranking this is faster than one by one: requests with equal filters are pre-ranked
        in one pass over the item heads, and the candidates of all requests are ranked in common
        batches.
        """
        if self._pre_ranker is None:
            return self._complete_in_full(requests)
        return self._complete_preranked(self._pre_ranker, requests)

    def _complete_in_full(self, requests: Sequence[RankingRequest]) -> list[RankingResult]:
        """The best items by the bundle, which scores all candidates of one request after the other's."""
        began = time.perf_counter()
        found = []
        for request in requests:
            rows = np.delete(request.rows, request.excluded)
            for positions, predictions in self._best([request], [rows]):
                found.append((rows[positions], predictions))
        seconds = time.perf_counter() - began
        return [
            _by_rules(
                RankingResult(
                    request=request,
                    index=self.index,
                    rows=rows,
                    scores=predictions,
                    counts={**request.counts, "ranked": len(rows)},
                    seconds={**request.seconds, "rank": seconds},
                ),
            )
            for request, (rows, predictions) in zip(requests, found, strict=True)
        ]

    def _complete_preranked(
        self, tower: PreRanker, requests: Sequence[RankingRequest]
    ) -> list[RankingResult]:
        """The best items by the bundle among those that IntTower selects; by IntTower without a bundle."""
        began = time.perf_counter()
        preranked = self._prerank(tower, requests)
        prerank_end = time.perf_counter()
        found = list(self._best(requests, [selected.rows for selected in preranked]))
        seconds = {"prerank": prerank_end - began, "rank": time.perf_counter() - prerank_end}
        results = []
        for request, selected, (positions, predictions) in zip(
            requests, preranked, found, strict=True
        ):
            rows = selected.rows[positions]
            counts = {
                "scored": selected.scored,
                "preranked": len(selected.rows),
                "ranked": len(rows),
            }
            result = RankingResult(
                request=request,
                index=self.index,
                rows=rows,
                scores={PRERANK_SCORE: selected.scores[positions], **predictions},
                counts={**request.counts, **counts},
                seconds={**request.seconds, **seconds},
                preranked=selected.rows,
            )
            results.append(_by_rules(result))
        return results

    def _best(
        self, requests: Sequence[RankingRequest], rows: Sequence[np.ndarray]
    ) -> Iterator[tuple[slice | np.ndarray, dict[str, np.ndarray]]]:
        """The positions among each request's rows of the best k by the bundle, and their predictions, in one batch.

        Without a bundle those of the first k.
        """
        if self.bundle is None:
            for request in requests:
                yield slice(request.rows_needed), {}
            return
        contexts = [request.context for request in requests if request.context is not None]
        batch = Batch.joined(contexts, self.scorer.split.context.num_bags)
        counts = [request.rows_needed for request in requests]
        for positions, prediction in self.rank(batch, rows, counts):
            yield positions, {PREDICTION: prediction}

    @cached_property
    def scorer(self) -> CatalogueScorer:
        """The bundle's scores of the items; a ConfigError if only an IntTower ranks."""
        if self._scorer is None:
            raise ConfigError(
                "scores of items in encoded contexts are a ranking bundle's, found an IntTower alone"
            )
        return self._scorer

    def encode(self, contexts: pl.DataFrame) -> EncodedTable:
        """Contexts with the bundle's user and context columns, encoded for `rank`."""
        return self.scorer.model.encoder.transform(contexts, part=self.scorer.split.context.layout)

    def rank(
        self, contexts: Batch, rows: Sequence[np.ndarray], k: Sequence[int]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each context, the positions of its best k among its rows, best first, and their predictions.

        Args:
            contexts: C encoded rows (`scorer.context`, `scorer.split.context.layout`).
            rows: the items to rank in each context.
            k: maximum number of items in each.
        """
        lengths = [len(context_rows) for context_rows in rows]
        owner = np.repeat(np.arange(len(rows)), lengths)  # repeat_interleave is slow for few rows
        scores = self.scorer.score(
            contexts, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(owner)
        )[:, 0]
        scores_by_context = np.split(scores, np.cumsum(lengths)[:-1])
        for context_rows, most, score in zip(rows, k, scores_by_context, strict=True):
            best = top_k_indices(score, most, position=context_rows)
            yield best, self.scorer.model.main_prediction(score[best])

    @cached_property
    def _alike(self) -> bool:
        """Whether both bundles encode contexts the same way."""
        if self._pre_ranker is None or self._scorer is None:
            return False
        tower = self._pre_ranker.scorer
        ranker = self._scorer
        return (
            tower.columns == ranker.columns
            and tower.split.context.layout == ranker.split.context.layout
            and tower.model.encoder.to_json() == ranker.model.encoder.to_json()
        )

    def _prerank(self, tower: PreRanker, requests: Sequence[RankingRequest]) -> list[_Preranked]:
        """Each request's best k' rows by IntTower; requests with the same array of rows in one pass."""
        contexts = [r.tower_context for r in requests if r.tower_context is not None]
        heads = tower.user_heads(Batch.joined(contexts, tower.scorer.split.context.num_bags))
        requests = [
            self._near(tower, request, user_LHP)
            for request, user_LHP in zip(requests, heads, strict=True)
        ]
        groups: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(id(request.rows), []).append(number)

        preranked: dict[int, _Preranked] = {}
        for numbers in groups.values():
            rows = requests[numbers[0]].rows
            scores = tower.score(heads[numbers], None if rows is self._all else rows)
            for number, score_R in zip(numbers, scores, strict=True):
                request = requests[number]
                remaining = rows
                if len(request.excluded):
                    score_R = np.delete(score_R, request.excluded)
                    remaining = np.delete(rows, request.excluded)
                best = top_k_indices(score_R, request.prerank)
                if request.rules.pinned:  # to be scored too
                    pinned = np.isin(remaining, list(request.rules.pinned.values()))
                    best = np.append(best, np.setdiff1d(np.flatnonzero(pinned), best))
                preranked[number] = _Preranked(
                    remaining[best], score_R[best].astype(np.float64), len(score_R)
                )
        return [preranked[number] for number in range(len(requests))]

    def _near(self, tower: PreRanker, request: RankingRequest, user_LHP: Tensor) -> RankingRequest:
        """The candidates near the user's heads, if most items pass the filters and these are enough; else all."""
        filtered = request.counts["filtered"]
        if tower.clusters is None or tower.nprobe is None or 2 * filtered <= len(self.index):
            return request
        near = tower.clusters.candidates(user_LHP.flatten(0, 1).cpu(), tower.nprobe)
        if request.rules.pinned:
            near = np.union1d(near, list(request.rules.pinned.values()))
        if request.rows is not self._all:
            near = np.intersect1d(near, request.rows, assume_unique=True)
        excluded_rows = request.rows[request.excluded]
        excluded = np.flatnonzero(np.isin(near, excluded_rows, assume_unique=True))
        if len(near) - len(excluded) < min(request.prerank, filtered):
            return request
        return replace(request, rows=near, excluded=excluded)


def _by_rules(result: RankingResult) -> RankingResult:
    """The list that the request's rules make of its ranked rows; the result unchanged without rules."""
    request = result.request
    rules = request.rules
    if not rules:
        return result
    arranged = rules.arrange(result.rows, request.k)
    positions = arranged.positions
    return replace(
        result,
        rows=result.rows[positions],
        scores={name: values[positions] for name, values in result.scores.items()},
        counts={**result.counts, "ranked": len(positions)},
        by_score=positions + 1,
        passed_over=result.rows[arranged.passed_over],
        changed=rules.sentences(result.rows, arranged, request.k),
    )


def _texts(values: Iterable[Any], name: str) -> list[str]:
    """Ids or values of a filter as text."""
    if isinstance(values, (str, bytes, Mapping)):
        raise ConfigError(f"{name} must be a list of values, found {values!r}: put it into a list")
    try:
        texts = []
        for given in values:
            value = given.item() if isinstance(given, np.generic) else given
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                raise TypeError
            texts.append(cell_text(value) or "")
        return texts
    except TypeError:
        raise ConfigError(
            f"{name} must hold texts, numbers or booleans, each {ONE_VALUE}"
        ) from None
