"""Two stages for one request: IntTower's stored item heads cut a catalogue down, a ranking bundle orders what is left.

    candidates (all items, or a list) -> filters -> IntTower by stored heads -> best k' -> ranking bundle -> best k

Letters: N items, R of them candidates; U users, L levels, H user heads, P size of a head.
"""

import time
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from fieldwise.bundle import Bundle
from fieldwise.data.encode_row import encode_row
from fieldwise.data.encoded import EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.layout import Batch
from fieldwise.models.candidates import Split, score_candidates, stacked
from fieldwise.models.inttower import IntTowerNetwork
from fieldwise.models.scoring import SCORING_BATCH
from fieldwise.models.shared_rows import Catalogue, SharedRows
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.request import context_row, split_columns
from fieldwise.schema import Bag, Sequence
from fieldwise.serving.clusters import HeadClusters
from fieldwise.serving.filters import ItemFilters
from fieldwise.serving.index import ItemIndex, check_columns_apart
from fieldwise.serving.queries import PREDICTION, PRERANK_SCORE, Found, Prepared, Query

__all__ = ["Cascade", "best_rows"]


def best_rows(score_R: Tensor, k: int) -> Tensor:
    """The places of the k greatest scores, best first; of equal ones the first; NaN counts as least.

    >>> best_rows(torch.tensor([1.0, 3.0, 1.0, 3.0, float("nan")]), 3)
    tensor([1, 3, 0])
    """
    return torch.from_numpy(_best_rows(score_R.unsqueeze(0), k)[0])


def _best_rows(score_UR: Tensor, k: int) -> list[np.ndarray]:
    """`best_rows` of several users at once."""
    k = min(k, score_UR.shape[1])
    if not k:
        return [np.empty(0, np.int64)] * len(score_UR)
    if torch.isnan(score_UR).any():
        score_UR = torch.nan_to_num(score_UR, nan=-torch.inf)
    best = torch.topk(score_UR, k, sorted=False)
    least_U1 = best.values.amin(1, keepdim=True)
    ties = ((score_UR >= least_U1).sum(1) > k).tolist()
    found = []
    for user, (scores, places) in enumerate(zip(best.values.numpy(), best.indices.numpy(), strict=True)):
        if ties[user]:  # of those equal to the least, the first ones come
            score, least = score_UR[user].numpy(), float(least_U1[user])
            above, equal = np.flatnonzero(score > least), np.flatnonzero(score == least)
            places = np.concatenate([above, equal[: k - len(above)]])
            scores = score[places]
        found.append(places[np.lexsort((places, -scores))])
    return found


class Cascade:
    """Recommends from an index, with a ranking bundle or by IntTower alone.

    What depends on the catalogue alone is made once: the ranking bundle's encoded item fields, ids, columns.

    Args:
        prerank: the IntTower that made the index.
        index: the items' heads.
        ranker: any bundle of one label, or of several, whose main one counts; its item fields are read from the index.
        probe: clusters of item heads that IntTower looks into for each user head, where more than half of the items
            pass the filters and these clusters hold k' of them (see `fieldwise.serving.clusters`); None scores all that
            pass.

    Errors:
        BundleError: the index belongs to another bundle.
        ConfigError: a probe below 1.
        DataError: the items lack a column of the ranking bundle's item fields.
    """

    def __init__(
        self, prerank: Bundle, index: ItemIndex, ranker: Bundle | None = None, *, probe: int | None = None
    ) -> None:
        if probe is not None and probe < 1:
            raise ConfigError(f"probe must be at least 1 cluster for each user head, found {probe}")
        index.check_model(prerank)
        taken = [name for name in (PRERANK_SCORE, PREDICTION) if name in index.items.columns]
        if taken:
            raise DataError(
                f"found items come with a column {taken[0]!r} of their own: rename that of the index's items"
            )
        assert isinstance(prerank.network, IntTowerNetwork), "the index was made by it"
        self.prerank, self.network, self.index, self.ranker = prerank, prerank.network, index, ranker
        for bundle in (prerank, *([] if ranker is None else [ranker])):
            bundle.network.eval()
        self.probe = probe
        self.clusters = None if probe is None else HeadClusters.of(index.stored)
        self._towers = _Request.of(prerank, index, index.items.head(1))  # a row to make whole rows with: not read
        self._ranking = None if ranker is None else _Request.of(ranker, index, index.items)

    @cached_property
    def _alike(self) -> bool:
        """Whether both bundles encode contexts alike."""
        towers, ranking = self._towers, self._ranking
        return (
            ranking is not None
            and towers.columns == ranking.columns
            and towers.split.context.layout == ranking.split.context.layout
            and towers.bundle.encoder.to_json() == ranking.bundle.encoder.to_json()
        )

    def recommend(self, query: Query) -> Found:
        """The best items for a query.

        Errors:
            DataError: the context lacks a column or holds what it must not; an unknown candidate; a filter on a column
                that items do not have.
        """
        return self.recommend_prepared([self.prepare(query)])[0]

    def prepare(self, query: Query) -> Prepared:
        """Check a query, encode its context and find its candidates.

        Errors:
            DataError: as in `recommend`.
        """
        clock = _Clock()
        tower = self._towers.context(query.context)
        ranking = None if self._ranking is None else tower if self._alike else self._ranking.context(query.context)
        clock.lap("encode")
        rows = None if query.candidates is None else np.sort(self.index.rows_of(list(query.candidates)).numpy())
        candidates = len(self.index) if rows is None else len(rows)
        if query.where:
            passing = self.filters.rows({column: tuple(values) for column, values in query.where.items()})
            rows = passing if rows is None else np.intersect1d(rows, passing, assume_unique=True)
        places = self.index.places
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
            passing=(len(self.index) if rows is None else len(rows)) - len(unwanted),
            seconds=clock.seconds,
        )

    def recommend_prepared(self, asked: SequenceOf[Prepared]) -> list[Found]:
        """The best items for several queries at once, which costs less than one after the other.

        Queries of equal filters are pre-ranked by one pass over the items' heads, and all queries' candidates are
        ranked in common batches.
        """
        clock = _Clock()
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
        """For each query the rows of its best k' items, best first, their logits, and how many items were scored."""
        heads = self._user_heads([one.tower for one in asked])
        candidates = [self._candidates(one, user) for one, user in zip(asked, heads, strict=True)]
        groups: dict[int, list[int]] = {}
        for number, (rows, _) in enumerate(candidates):
            groups.setdefault(id(rows), []).append(number)
        kept: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}
        for numbers in groups.values():
            rows = candidates[numbers[0]][0]
            chosen = None if rows is None else torch.from_numpy(rows)
            scores = self.network.score_stored(heads[numbers], self.index.stored, chosen)
            shared = not any(len(candidates[number][1]) for number in numbers)
            most = max(asked[number].query.prerank for number in numbers)
            first = _best_rows(scores, most) if shared else [None] * len(numbers)
            for number, score_R, best in zip(numbers, scores, first, strict=True):
                unwanted, own = candidates[number][1], rows
                if len(unwanted):
                    score_R = torch.from_numpy(np.delete(score_R.numpy(), unwanted))
                    own = np.delete(np.arange(len(self.index)) if rows is None else rows, unwanted)
                if best is None:
                    best = best_rows(score_R, most).numpy()
                best = best[: asked[number].query.prerank]
                logit = score_R.numpy()[best].astype(np.float64)
                kept[number] = best if own is None else own[best], logit, len(score_R)
        return [kept[number] for number in range(len(asked))]

    def _candidates(self, one: Prepared, user_LHP: Tensor) -> tuple[np.ndarray | None, np.ndarray]:
        """Which items IntTower scores for a query (None: all), and which places among them must not come."""
        if self.clusters is None or self.probe is None or 2 * one.passing <= len(self.index):
            return one.rows, one.excluded
        near = self.clusters.candidates(user_LHP.flatten(0, 1), self.probe)
        if one.rows is not None:
            near = np.intersect1d(near, one.rows, assume_unique=True)
        unwanted = one.excluded if one.rows is None else one.rows[one.excluded]
        unwanted = np.flatnonzero(np.isin(near, unwanted, assume_unique=True))
        enough = len(near) - len(unwanted) >= min(one.query.prerank, one.passing)
        return (near, unwanted) if enough else (one.rows, one.excluded)

    def _user_heads(self, contexts: SequenceOf[Batch]) -> Tensor:
        """IntTower's heads of some contexts [U, L, H, P]."""
        any_item = torch.zeros(len(contexts), dtype=torch.int64)  # its fields are not read
        return self.network.user(self._towers.rows(contexts, any_item, torch.arange(len(contexts))))

    def _ranked(
        self, asked: SequenceOf[Prepared], kept: SequenceOf[tuple[np.ndarray, np.ndarray, int]]
    ) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """For each query the rows of its best k items, best first, and their scores."""
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
                best = np.argsort(-scores[number], kind="stable")[: one.query.k]
                prediction = ranking.prediction(scores[number][best])
                found.append((rows[best], {PRERANK_SCORE: logit[best], PREDICTION: prediction}))
        return found

    def rank_all(self, context: Mapping[str, Any]) -> np.ndarray:
        """The ranking bundle's scores of every item [N] in one context: what the cascade is measured against."""
        if self._ranking is None:
            raise ConfigError("ranking every item needs a ranking bundle, and this cascade has none")
        return self._ranking.score(self._ranking.context(context), torch.arange(len(self.index)))

    def prerank_all(self, context: Mapping[str, Any]) -> np.ndarray:
        """IntTower's logits of every item [N] in one context."""
        with torch.no_grad(), flushed_denormals():
            heads = self._user_heads([self._towers.context(context)])
            return self.network.score_stored(heads, self.index.stored).squeeze(0).double().numpy()

    @cached_property
    def filters(self) -> ItemFilters:
        """Which items have which values."""
        bundles = (self.prerank, *([] if self.ranker is None else [self.ranker]))
        bags = [f for bundle in bundles for f in bundle.schema.fields if isinstance(f, (Bag, Sequence))]
        return ItemFilters(self.index.items, {f.column: f.separator for f in bags})


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

    def context(self, values: Mapping[str, Any]) -> Batch:
        """The context's one row, encoded."""
        missing = [column for column in self.columns if column not in values]
        if missing:
            raise DataError(
                f"a context must hold every user and context column of the model, found no {missing[0]!r}: give it, or "
                "null where it is not known"
            )
        encoder, part = self.bundle.encoder, self.split.context.layout
        found = encode_row(encoder, part, values)
        if found is None:
            return encoder.transform_part(context_row(values, self.columns), part).batch(slice(0, 1))[0]
        return found

    def score(self, context: Batch, rows: Tensor) -> np.ndarray:
        """Scores of some items [R] in one context by the main label, float64."""
        return _main(score_candidates(self.bundle.network, self.split, context, self.items.batch(rows)[0]))

    def rows(self, contexts: SequenceOf[Batch], rows: Tensor, owner: Tensor) -> Any:
        """The rows that some items [R] make, each with the context that owns it, as a batch for the network."""
        return SharedRows(self.catalogue, stacked(contexts, self.split.context.num_bags), rows, owner)

    def score_rows(self, contexts: SequenceOf[Batch], rows: Tensor, owner: Tensor) -> np.ndarray:
        """Scores of some items [R], each in the context that owns it, by the main label, float64."""
        whole = stacked(contexts, self.split.context.num_bags)
        parts = zip(torch.split(rows, SCORING_BATCH), torch.split(owner, SCORING_BATCH), strict=True)
        with torch.no_grad(), flushed_denormals():
            scores = [self.bundle.network(SharedRows(self.catalogue, whole, *part)) for part in parts]
        return _main(torch.cat(scores))

    @cached_property
    def catalogue(self) -> Catalogue:
        """The items' fields as the network reads them."""
        items = self.items  # not self, which holds the catalogue: who is replaced goes at once, without a collector
        return Catalogue(self.split, len(items), lambda rows: items.batch(rows)[0])

    def prediction(self, score: np.ndarray) -> np.ndarray:
        """Probabilities, or numbers within the label's range."""
        return self.bundle.main_prediction(score)


def _main(score: Tensor) -> np.ndarray:
    found: np.ndarray = (score if score.dim() == 1 else score[:, 0]).double().numpy()
    return found


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self.last
        self.last = now
