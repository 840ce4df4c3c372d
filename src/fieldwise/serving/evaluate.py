"""Evaluation of a cascade: its loss compared with ranking every item, and the latency of each stage.

Letters: Q contexts, N items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import ConfigError, DataError
from fieldwise.scoring import PRERANK
from fieldwise.scoring.ranker import Ranker

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
    cascade: Ranker[Bundle],
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
    if cascade.bundle is None or cascade.prerank is None:
        raise ConfigError(
            "evaluating a cascade needs a pre-ranking bundle, and a ranking bundle, whose ranking of all items is the "
            "baseline: give both"
        )
    schemas = cascade.bundle.schema, cascade.prerank.schema
    contexts = as_table(
        contexts, text_columns=[column for schema in schemas for column in schema.text_columns]
    )
    if not contexts.height:
        raise DataError("evaluating a cascade needs contexts, found no rows")
    items = len(cascade.index)
    best = min(k, items)
    around = sizes or [k, prerank // 4, prerank // 2, prerank, 2 * prerank]
    reached = sorted({min(items, size) for size in around if size >= best})
    discounts = 1 / np.log2(np.arange(2, best + 2))
    first = Ranker(None, cascade.index, prerank=cascade.prerank)
    whole = Ranker(cascade.bundle, cascade.index)
    seen: list[dict[str, Any]] = []
    laps: list[Mapping[str, float]] = []
    for context, own in zip(
        contexts.iter_rows(named=True), _targets(cascade, contexts), strict=True
    ):
        result = cascade.recommend(context, k=k, prerank=prerank)
        every = whole.recommend(context, k=best, prerank=items)
        took = (sum(one.seconds.values()) for one in (result, every))
        laps.append({**result.seconds, **dict(zip(("all", "everything"), took, strict=True))})
        top = every.rows
        right = np.isin(result.rows, top)
        place = np.argsort(first.recommend(context, k=items, prerank=items).rows)
        seen.append(
            {
                "recall": right.mean(),
                "ndcg": (right * discounts).sum() / discounts.sum(),
                "best_found": top[0] in result.rows,
                "candidates": result.counts["scored"],
                "candidate_recall": (place[result.preranked] < prerank).sum() / min(prerank, items),
                "recall_by_prerank": [(place[top] < size).mean() for size in reached],
                "hits": None if own is None else (own in result.rows, own in top),
            }
        )
    return _report(seen, laps, reached, items=items, k=k, prerank=prerank)


def _report(
    seen: list[dict[str, Any]],
    laps: list[Mapping[str, float]],
    reached: Sequence[int],
    **sizes: int,
) -> CascadeReport:
    """The report of what was found, and how long it took, in each context."""
    hits = [one["hits"] for one in seen if one["hits"] is not None]
    hit_rate, hit_rate_all = np.mean(hits, axis=0).tolist() if hits else (None, None)
    shares = [
        float(np.mean(one)) for one in zip(*(one["recall_by_prerank"] for one in seen), strict=True)
    ]
    names = ("recall", "ndcg", "best_found", "candidates", "candidate_recall")
    means: dict[str, Any] = {name: float(np.mean([one[name] for one in seen])) for name in names}
    percentiles = {
        stage: 1000 * np.percentile([lap[stage] for lap in laps], PERCENTILES) for stage in laps[0]
    }
    return CascadeReport(
        contexts=len(seen),
        **sizes,
        **means,
        targets=len(hits),
        hit_rate=hit_rate,
        hit_rate_all=hit_rate_all,
        recall_by_prerank=dict(zip(reached, shares, strict=True)),
        milliseconds={stage: tuple(result.tolist()) for stage, result in percentiles.items()},
    )


def _targets(cascade: Ranker[Bundle], contexts: pl.DataFrame) -> list[int | None]:
    """The index position of each row's own item, if it is known and positive."""
    column = cascade.index.id_column
    if column not in contexts.columns:
        return [None] * contexts.height
    results = [
        cascade.index.places.get(one) for one in as_text(contexts.get_column(column)).to_list()
    ]
    assert cascade.bundle is not None, "checked by the caller"
    label = cascade.bundle.schema.label
    if label.task == "binary" and label.column in contexts.columns:
        rows = read_label(contexts.with_row_index(ROW), label)
        liked = set(rows.frame.get_column(ROW).to_numpy()[rows.main > 0].tolist())
        results = [place if row in liked else None for row, place in enumerate(results)]
    return results
