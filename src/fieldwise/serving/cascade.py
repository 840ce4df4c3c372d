"""Recommendation in two stages: IntTower pre-ranks a catalogue by stored item heads, a ranking bundle ranks the rest.

    candidates (all items, or a list) -> filters -> IntTower by stored heads -> best k' -> ranking bundle -> best k

Letters: N items, R of them candidates; U users, L levels, H user heads, P size of a head.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldwise.bundle.bundle import Bundle
from fieldwise.errors import ConfigError, DataError
from fieldwise.layout import Batch
from fieldwise.models.inttower import IntTowerNetwork
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.devices import device_of
from fieldwise.scoring.batches import in_numpy
from fieldwise.scoring.ranking import best_places
from fieldwise.serving.clusters import HeadClusters
from fieldwise.serving.filters import ItemFilters, item_filters
from fieldwise.serving.index import ItemIndex
from fieldwise.serving.queries import PREDICTION, PRERANK_SCORE, Clock, Found, Prepared, Recommends
from fieldwise.serving.request_side import RequestSide

__all__ = ["Cascade"]


class Cascade(Recommends):
    """Recommends from an index, with a ranking bundle or only by IntTower.

    Everything that only depends on the catalogue is computed once: the ranking bundle's encoded item fields, ids,
    columns.

    Args:
        prerank: the IntTower that made the index.
        index: the items' heads.
        ranker: any bundle; with several labels, the main one is used. Its item fields are read from the index.
        nprobe: number of item-head clusters to search for each user head, if more than half of the items pass the
            filters and these clusters have k' of them (see `fieldwise.serving.clusters`); None scores all that pass.

    Errors:
        BundleError: the index was built with another bundle.
        ConfigError: an nprobe below 1.
        DataError: the items lack a column of the ranking bundle's item fields.
    """

    index: ItemIndex

    def __init__(
        self, prerank: Bundle, index: ItemIndex, ranker: Bundle | None = None, *, nprobe: int | None = None
    ) -> None:
        if nprobe is not None and nprobe < 1:
            raise ConfigError(f"nprobe must be at least 1, found {nprobe}")
        index.check_model(prerank)
        taken = [name for name in (PRERANK_SCORE, PREDICTION) if name in index.items.columns]
        if taken:
            raise DataError(
                f"the items must not have a column {taken[0]!r}, which is added to results: rename that column"
            )
        assert isinstance(prerank.network, IntTowerNetwork), "the index was made by it"
        self.prerank, self.network, self.index, self.ranker = prerank, prerank.network, index, ranker
        for bundle in (prerank, *([] if ranker is None else [ranker])):
            bundle.network.eval()
        self.nprobe = nprobe
        self.clusters = None if nprobe is None else _clusters(index)
        self._device = device_of(self.network)
        self._stored = index.stored.to(self._device)
        self._towers = RequestSide.of(prerank, index, index.items.head(1))  # a row to complete rows with, never read
        self._ranking = None if ranker is None else RequestSide.of(ranker, index)

    @cached_property
    def _alike(self) -> bool:
        """Whether both bundles encode contexts the same way."""
        towers, ranking = self._towers, self._ranking
        return (
            ranking is not None
            and towers.columns == ranking.columns
            and towers.split.context.layout == ranking.split.context.layout
            and towers.bundle.encoder.to_json() == ranking.bundle.encoder.to_json()
        )

    def _encoded(self, context: Mapping[str, Any]) -> tuple[Batch | None, Batch | None]:
        tower = self._towers.context(context)
        ranking = None if self._ranking is None else tower if self._alike else self._ranking.context(context)
        return tower, ranking

    def recommend_prepared(self, asked: SequenceOf[Prepared]) -> list[Found]:
        """The best items for several queries at once, which is faster than one by one.

        Queries with equal filters are pre-ranked in one pass over the item heads, and the candidates of all queries
        are ranked in common batches.
        """
        clock = Clock()
        with torch.no_grad(), flushed_denormals():
            kept = self._preranked(asked)
        clock.lap("prerank")
        found = self._ranked(asked, kept)
        clock.lap("rank")
        return [
            Found(
                index=self.index,
                rows=rows,
                scores=scores,
                preranked=places,
                counts={
                    "candidates": one.candidates,
                    "filtered": one.passing,
                    "scored": scored,
                    "preranked": len(places),
                    "ranked": len(rows),
                },
                seconds={**one.seconds, **clock.seconds},
            )
            for one, (places, _, scored), (rows, scores) in zip(asked, kept, found, strict=True)
        ]

    def _preranked(self, asked: SequenceOf[Prepared]) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """For each query, the rows of its best k' items, best first, their logits, and the number of scored items."""
        heads = self._user_heads([one.tower for one in asked if one.tower is not None])
        candidates = [self._candidates(one, user) for one, user in zip(asked, heads, strict=True)]
        groups: dict[int, list[int]] = {}
        for number, (rows, _) in enumerate(candidates):
            groups.setdefault(id(rows), []).append(number)
        kept: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}
        for numbers in groups.values():
            rows = candidates[numbers[0]][0]
            chosen = None if rows is None else torch.from_numpy(rows).to(self._device)
            scores = self.network.score_stored(heads[numbers], self._stored, chosen)
            for number, score_R in zip(numbers, scores.cpu().numpy(), strict=True):
                unwanted, own = candidates[number][1], rows
                if len(unwanted):
                    score_R = np.delete(score_R, unwanted)
                    own = np.delete(np.arange(len(self.index)) if rows is None else rows, unwanted)
                best = best_places(score_R, asked[number].query.prerank)
                kept[number] = best if own is None else own[best], score_R[best].astype(np.float64), len(score_R)
        return [kept[number] for number in range(len(asked))]

    def _candidates(self, one: Prepared, user_LHP: Tensor) -> tuple[np.ndarray | None, np.ndarray]:
        """The items that IntTower scores for a query (None: all), and the positions among them to exclude."""
        if self.clusters is None or self.nprobe is None or 2 * one.passing <= len(self.index):
            return one.rows, one.excluded
        near = self.clusters.candidates(user_LHP.flatten(0, 1).cpu(), self.nprobe)
        if one.rows is not None:
            near = np.intersect1d(near, one.rows, assume_unique=True)
        unwanted = one.excluded if one.rows is None else one.rows[one.excluded]
        unwanted = np.flatnonzero(np.isin(near, unwanted, assume_unique=True))
        enough = len(near) - len(unwanted) >= min(one.query.prerank, one.passing)
        return (near, unwanted) if enough else (one.rows, one.excluded)

    def _user_heads(self, contexts: SequenceOf[Batch]) -> Tensor:
        """IntTower's user heads of contexts [U, L, H, P]."""
        any_item = torch.zeros(len(contexts), dtype=torch.int64)  # its fields are not read
        return self.network.user(self._towers.rows(contexts, any_item, torch.arange(len(contexts))))

    def _ranked(
        self, asked: SequenceOf[Prepared], kept: SequenceOf[tuple[np.ndarray, np.ndarray, int]]
    ) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """For each query, the rows of its best k items, best first, and their scores."""
        ranking, found = self._ranking, []
        scores: SequenceOf[np.ndarray] = []
        if ranking is not None:
            owner = np.repeat(np.arange(len(asked)), [len(rows) for rows, _, _ in kept])
            every = np.concatenate([rows for rows, _, _ in kept])
            contexts = [one.ranking for one in asked if one.ranking is not None]
            together = ranking.score_rows(contexts, torch.from_numpy(every), torch.from_numpy(owner))
            scores = np.split(together, np.cumsum([len(rows) for rows, _, _ in kept])[:-1])
        for number, (one, (rows, logit, _)) in enumerate(zip(asked, kept, strict=True)):
            if ranking is None:
                best = np.arange(min(one.query.k, len(rows)))
                found.append((rows[best], {PRERANK_SCORE: logit[best]}))
            else:
                best = best_places(scores[number], one.query.k, place=rows)
                prediction = ranking.prediction(scores[number][best])
                found.append((rows[best], {PRERANK_SCORE: logit[best], PREDICTION: prediction}))
        return found

    def rank_all(self, context: Mapping[str, Any]) -> np.ndarray:
        """The ranking bundle's scores of every item [N] in one context, the baseline of a cascade."""
        if self._ranking is None:
            raise ConfigError("ranking every item needs a ranking bundle, and this cascade has none")
        return self._ranking.score(self._ranking.context(context), torch.arange(len(self.index)))

    def prerank_all(self, context: Mapping[str, Any]) -> np.ndarray:
        """IntTower's logits of every item [N] in one context."""
        with torch.no_grad(), flushed_denormals():
            heads = self._user_heads([self._towers.context(context)])
            return in_numpy(self.network.score_stored(heads, self._stored).squeeze(0))

    @cached_property
    def filters(self) -> ItemFilters:
        """The filters of the index's items."""
        bundles = (self.prerank, *([] if self.ranker is None else [self.ranker]))
        return item_filters(self.index.items, [bundle.schema for bundle in bundles])


def _clusters(index: ItemIndex) -> HeadClusters:
    def make() -> dict[str, np.ndarray]:
        found = HeadClusters.of(index.stored)
        return {"centres": found.centres.numpy(), "items": found.items, "starts": found.starts}

    arrays = index.arrays("clusters", ("centres", "items", "starts"), make)
    return HeadClusters(torch.from_numpy(arrays["centres"]), arrays["items"], arrays["starts"], len(index))
