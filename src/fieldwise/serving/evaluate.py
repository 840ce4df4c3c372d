"""What a cascade loses against ranking everything, and what each of its stages costs.

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
    """Means over contexts of the first k items of the cascade against the first k of ranking all N items.

    Args:
        contexts: Q.
        items: N.
        k: how many items are asked for.
        prerank: how many of them the ranking bundle sees.
        recall: the share of the best k that the cascade finds.
        ndcg: discounted gain at k, where the best k count 1 and others 0, of the ideal one.
        best_found: how often the very best item is among the cascade's k.
        targets: rows whose own item the index holds and, where the rows have the (binary) label, is a positive one.
        hit_rate: how often the row's own item is among the cascade's k, over these rows; None where there are none.
        hit_rate_all: the same among the k of ranking everything.
        candidates: items that IntTower scores, in the mean over contexts.
        candidate_recall: the share of the k' best items by IntTower's exact scores that are among them; 1 without a
            candidate stage.
        recall_by_prerank: the share of the best k that would reach the ranking bundle, by the number that it sees.
        milliseconds: by stage and for `all` stages, the percentiles 50, 95 and 99; `everything` is ranking all items.
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
    """Recommend in every context by the cascade, and by ranking all items.

    Args:
        cascade: with a ranking bundle.
        contexts: rows with the user and context columns; an item's id beside them is the row's own item, and the
            ranking bundle's binary label says whether it was liked.
        k: how many items are asked for.
        prerank: how many of them the ranking bundle sees.
        sizes: of `recall_by_prerank`; some around `prerank` where left out.

    Errors:
        ConfigError: no ranking bundle; k or prerank out of range.
        DataError: no contexts, or a missing column.
    """
    if cascade.ranker is None:
        raise ConfigError(
            "a cascade is measured against its ranking bundle's order of all items: give a ranking bundle"
        )
    contexts = as_table(contexts)
    if not contexts.height:
        raise DataError("a cascade is measured in some contexts, found no row")
    seen = _Measured(cascade, k, prerank, sizes)
    own = _targets(cascade, contexts)
    for number, context in enumerate(contexts.iter_rows(named=True)):
        seen.add(context, own[number])
    return seen.report()


class _Measured:
    """What the contexts so far have shown."""

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
        """Recommend in a context both ways; `own` is where the row's own item stands, if it was liked."""
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
    """Where each row's own item stands in the index, if it is known and was liked."""
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
