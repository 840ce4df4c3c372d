"""Evaluation of a cascade: its loss compared with ranking every item, and the latency of each stage.

Letters: Q contexts, N items.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.labels import positive_rows
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema import Label
from fieldwise.scoring import PRERANK
from fieldwise.scoring.items import ItemTable
from fieldwise.scoring.ranker import M, Ranker, RankingResult

LATENCY_PERCENTILES = (50, 95, 99)


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
        targets: number of rows whose own item is in the index and, if the rows have the (binary)
            label, positive.
        hit_rate: share of these rows whose own item is in the cascade's top k; None if there are
            none.
        hit_rate_all: the same for ranking all items.
        candidates: mean number of items that IntTower scores.
        candidate_recall: share of the k' best items by IntTower's exact scores among these; 1
            without a candidate stage.
        recall_by_prerank: share of the best k items that reach the ranking bundle, by `prerank`.
        milliseconds: percentiles 50, 95 and 99 by stage and for `all` stages; `everything` is
            ranking all items.
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
    cascade: Ranker[M],
    contexts: TableLike,
    *,
    k: int = 20,
    prerank: int = PRERANK,
    sizes: Sequence[int] | None = None,
) -> CascadeReport:
    """Compare the cascade with ranking all items in every context.

    Args:
        cascade: a cascade with a ranking bundle.
        contexts: rows with the user and context columns; an item id column gives the row's own
            item, and the ranking bundle's binary label tells whether it is positive.
        k: number of recommended items.
        prerank: number of items for the ranking bundle.
        sizes: values of `prerank` for `recall_by_prerank`; some around `prerank` if omitted.

    Errors:
        ConfigError: no ranking bundle; k or prerank out of range.
        DataError: no contexts, or a missing column.
    """
    if cascade.bundle is None or cascade.tower is None:
        raise ConfigError(
            "evaluating a cascade needs a pre-ranking bundle, and a ranking bundle, whose ranking of all items is the "
            "baseline: give both"
        )
    schemas = (cascade.bundle.schema, cascade.tower.schema)
    text_columns = [column for schema in schemas for column in schema.text_columns]
    contexts = as_table(contexts, text_columns=text_columns)
    if not contexts.height:
        raise DataError("evaluating a cascade needs contexts, found no rows")

    items = len(cascade.index)
    top_size = min(k, items)
    if not sizes:
        sizes = [k, prerank // 4, prerank // 2, prerank, 2 * prerank]
    prerank_sizes = sorted({min(items, size) for size in sizes if size >= top_size})

    tower_ranker = Ranker(None, cascade.index, tower=cascade.tower)
    full_ranker = Ranker(cascade.bundle, cascade.index)
    targets = _targets(cascade.bundle.schema.label, cascade.index, contexts)

    comparisons: list[_Comparison] = []
    for context, target in zip(contexts.iter_rows(named=True), targets, strict=True):
        result = cascade.recommend(context, k=k, prerank=prerank)
        full_result = full_ranker.recommend(context, k=top_size, prerank=items)
        tower_rank = np.argsort(tower_ranker.recommend(context, k=items, prerank=items).rows)
        comparison = _Comparison.of(result, full_result, tower_rank, target, prerank, prerank_sizes)
        comparisons.append(comparison)
    return _report(comparisons, prerank_sizes, items=items, k=k, prerank=prerank)


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The cascade and the ranking of all items in one context; the figures are those of `CascadeReport`."""

    recall: float
    ndcg: float
    best_found: bool
    candidates: int
    candidate_recall: float
    recall_by_prerank: list[float]
    hits: tuple[bool, bool] | None
    """Whether the row's own item is in the cascade's top k, and in that of all items."""
    seconds: dict[str, float]
    """By stage."""

    @classmethod
    def of(
        cls,
        result: RankingResult,
        full_result: RankingResult,
        tower_rank: np.ndarray,
        target: int | None,
        prerank: int,
        prerank_sizes: Sequence[int],
    ) -> "_Comparison":
        """Compare a result with that of all items, by each item's place `tower_rank` in the order of the IntTower."""
        best = full_result.rows
        is_best = np.isin(result.rows, best)
        discounts = 1 / np.log2(np.arange(2, len(best) + 2))
        well_preranked = (tower_rank[result.preranked] < prerank).sum()

        hits = None
        if target is not None:
            hits = (target in result.rows, target in best)

        seconds = dict(result.seconds)
        seconds["all"] = sum(result.seconds.values())
        seconds["everything"] = sum(full_result.seconds.values())
        return cls(
            recall=is_best.mean(),
            ndcg=(is_best * discounts).sum() / discounts.sum(),
            best_found=best[0] in result.rows,
            candidates=result.counts["scored"],
            candidate_recall=well_preranked / min(prerank, len(tower_rank)),
            recall_by_prerank=[(tower_rank[best] < size).mean() for size in prerank_sizes],
            hits=hits,
            seconds=seconds,
        )


def _report(
    comparisons: Sequence[_Comparison],
    prerank_sizes: Sequence[int],
    *,
    items: int,
    k: int,
    prerank: int,
) -> CascadeReport:
    """The means, and the percentiles of the latency, over contexts."""

    def mean(name: str) -> float:
        return float(np.mean([getattr(comparison, name) for comparison in comparisons]))

    hits = [comparison.hits for comparison in comparisons if comparison.hits is not None]
    hit_rate = None
    hit_rate_all = None
    if hits:
        hit_rate, hit_rate_all = np.mean(hits, axis=0).tolist()

    recall_by_prerank = {}
    for number, size in enumerate(prerank_sizes):
        recalls = [comparison.recall_by_prerank[number] for comparison in comparisons]
        recall_by_prerank[size] = float(np.mean(recalls))

    milliseconds: dict[str, tuple[float, float, float]] = {}
    for stage in comparisons[0].seconds:
        seconds = [comparison.seconds[stage] for comparison in comparisons]
        milliseconds[stage] = tuple((1000 * np.percentile(seconds, LATENCY_PERCENTILES)).tolist())

    return CascadeReport(
        contexts=len(comparisons),
        items=items,
        k=k,
        prerank=prerank,
        recall=mean("recall"),
        ndcg=mean("ndcg"),
        best_found=mean("best_found"),
        targets=len(hits),
        hit_rate=hit_rate,
        hit_rate_all=hit_rate_all,
        candidates=mean("candidates"),
        candidate_recall=mean("candidate_recall"),
        recall_by_prerank=recall_by_prerank,
        milliseconds=milliseconds,
    )


def _targets(label: Label, index: ItemTable, contexts: pl.DataFrame) -> list[int | None]:
    """The index position of each row's own item; None if it is unknown or the row is not positive."""
    if index.id_column not in contexts.columns:
        return [None] * contexts.height
    item_ids = as_text(contexts.get_column(index.id_column)).to_list()
    positions = [index.places.get(item_id) for item_id in item_ids]

    is_positive = positive_rows(contexts, label)
    if is_positive is None:
        return positions
    pairs = zip(positions, is_positive.tolist(), strict=True)
    return [position if positive else None for position, positive in pairs]
