"""Evaluation of a cascade: its loss compared with ranking every item, and the latency of each stage.

Letters: Q contexts, N items.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import ConfigError, DataError
from fieldwise.scoring.ranking import best_places
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.queries import Query

__all__ = ["CascadeReport", "evaluate_cascade"]

ROW = "row of the contexts"
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, kw_only=True)
class CascadeReport:
    """Means over contexts that compare the top k items of the cascade with the top k of ranking all N items.

    Args:
        contexts: number of contexts Q.
        items: number of items N.
        k: number of recommended items.
        prerank: number of items for the ranking bundle.
        recall: share of the best k items that the cascade finds.
        ndcg: NDCG at k, with relevance 1 for the best k items and 0 for others.
        best_found: share of contexts whose best item is in the cascade's top k.
        targets: number of rows whose own item is in the index and, if the rows have the (binary) label, positive.
        hit_rate: share of these rows whose own item is in the cascade's top k; None if there are none.
        hit_rate_all: the same for ranking all items.
        candidates: mean number of items that IntTower scores.
        candidate_recall: share of the k' best items by IntTower's exact scores among these; 1 without a candidate
            stage.
        recall_by_prerank: share of the best k items that reach the ranking bundle, by `prerank`.
        milliseconds: percentiles 50, 95 and 99 by stage and for `all` stages; `everything` is ranking all items.
    """

    contexts: int
    items: int
    k: int
    prerank: int
    recall: float
    ndcg: float
    best_found: float
    targets: int
    hit_rate: float | None
    hit_rate_all: float | None
    candidates: float
    candidate_recall: float
    recall_by_prerank: dict[int, float]
    milliseconds: dict[str, tuple[float, float, float]]


def evaluate_cascade(
    cascade: Cascade, contexts: TableLike, *, k: int = 20, prerank: int = 200, sizes: Sequence[int] | None = None
) -> CascadeReport:
    """Compare the cascade with ranking all items in every context.

    Args:
        cascade: a cascade with a ranking bundle.
        contexts: rows with the user and context columns; an item id column gives the row's own item, and the ranking
            bundle's binary label tells whether it is positive.
        k: number of recommended items.
        prerank: number of items for the ranking bundle.
        sizes: values of `prerank` for `recall_by_prerank`; some around `prerank` if omitted.

    Errors:
        ConfigError: no ranking bundle; k or prerank out of range.
        DataError: no contexts, or a missing column.
    """
    if cascade.ranker is None:
        raise ConfigError(
            "evaluating a cascade needs a ranking bundle, whose ranking of all items is the baseline: give one"
        )
    contexts = as_table(contexts)
    if not contexts.height:
        raise DataError("evaluating a cascade needs contexts, found no rows")
    seen = _Measured(cascade, k, prerank, sizes)
    own = _targets(cascade, contexts)
    for number, context in enumerate(contexts.iter_rows(named=True)):
        seen.add(context, own[number])
    return seen.report()


class _Measured:
    """Accumulated results over contexts."""

    def __init__(self, cascade: Cascade, k: int, prerank: int, sizes: Sequence[int] | None) -> None:
        self.cascade, self.k, self.prerank = cascade, k, prerank
        self.items = len(cascade.index)
        self.best = min(k, self.items)
        around = [k, prerank // 4, prerank // 2, prerank, 2 * prerank]
        wanted = sorted({min(self.items, size) for size in (sizes or around) if size >= self.best})
        self.discounts = 1 / np.log2(np.arange(2, self.best + 2))
        self.recall: list[float] = []
        self.gain: list[float] = []
        self.first: list[bool] = []
        self.hits: list[bool] = []
        self.hits_all: list[bool] = []
        self.laps: list[dict[str, float]] = []
        self.scored: list[int] = []
        self.among: list[float] = []
        self.reached: dict[int, list[float]] = {size: [] for size in wanted}

    def add(self, context: Mapping[str, Any], own: int | None) -> None:
        """Add a context; `own` is the position of the row's own item, if positive."""
        cascade = self.cascade
        found = cascade.recommend(Query(context=context, k=self.k, prerank=self.prerank))
        began = time.perf_counter()
        scores = cascade.rank_all(context)
        whole = time.perf_counter() - began
        top = best_places(scores, self.best)
        right = np.isin(found.rows, top)
        self.recall.append(right.mean())
        self.gain.append((right * self.discounts).sum() / self.discounts.sum())
        self.first.append(top[0] in found.rows)
        self.laps.append({**found.seconds, "all": sum(found.seconds.values()), "everything": whole})
        order = best_places(cascade.prerank_all(context), self.items)
        place = np.argsort(order)
        self.scored.append(found.counts["scored"])
        self.among.append((place[found.preranked] < self.prerank).sum() / min(self.prerank, self.items))
        for size, shares in self.reached.items():
            shares.append(float((place[top] < size).mean()))
        if own is not None:
            self.hits.append(own in found.rows)
            self.hits_all.append(own in top)

    def report(self) -> CascadeReport:
        """The means over the contexts."""
        stages = {stage: [lap[stage] for lap in self.laps] for stage in self.laps[0]}
        return CascadeReport(
            contexts=len(self.laps),
            items=self.items,
            k=self.k,
            prerank=self.prerank,
            recall=float(np.mean(self.recall)),
            ndcg=float(np.mean(self.gain)),
            best_found=float(np.mean(self.first)),
            targets=len(self.hits),
            hit_rate=float(np.mean(self.hits)) if self.hits else None,
            hit_rate_all=float(np.mean(self.hits_all)) if self.hits else None,
            candidates=float(np.mean(self.scored)),
            candidate_recall=float(np.mean(self.among)),
            recall_by_prerank={size: float(np.mean(shares)) for size, shares in self.reached.items()},
            milliseconds={stage: _percentiles(seconds) for stage, seconds in stages.items()},
        )


def _targets(cascade: Cascade, contexts: pl.DataFrame) -> list[int | None]:
    """The index position of each row's own item, if it is known and positive."""
    column = cascade.index.id_column
    if column not in contexts.columns:
        return [None] * contexts.height
    found = [cascade.index.places.get(one) for one in as_text(contexts.get_column(column)).to_list()]
    assert cascade.ranker is not None, "checked by the caller"
    label = cascade.ranker.schema.label
    if label.task == "binary" and label.column in contexts.columns:
        rows = read_label(contexts.with_row_index(ROW), label)
        liked = set(rows.frame.get_column(ROW).to_numpy()[rows.main > 0].tolist())
        found = [place if row in liked else None for row, place in enumerate(found)]
    return found


def _percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = (1000 * np.percentile(seconds, PERCENTILES)).tolist()
    return low, middle, high
