"""What a cascade loses against ranking everything, and what each of its stages costs.

Letters: Q contexts, N items.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import ConfigError, DataError
from fieldwise.serving.cascade import Cascade, best_rows
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
    items = len(cascade.index)
    best = min(k, items)
    around = [k, prerank // 4, prerank // 2, prerank, 2 * prerank]
    wanted = sorted({min(items, size) for size in (sizes or around) if size >= best})
    discounts = 1 / np.log2(np.arange(2, best + 2))
    own = _targets(cascade, contexts)
    recall, gain, first, hits, hits_all, laps, whole = [], [], [], [], [], [], []
    scored, among = [], []
    reached: dict[int, list[float]] = {size: [] for size in wanted}
    for number, context in enumerate(contexts.iter_rows(named=True)):
        found = cascade.recommend(Query(context=context, k=k, prerank=prerank))
        began = time.perf_counter()
        scores = cascade.rank_all(context)
        whole.append(time.perf_counter() - began)
        top = np.argsort(-scores, kind="stable")[:best]
        right = np.isin(found.rows, top)
        recall.append(right.mean())
        gain.append((right * discounts).sum() / discounts.sum())
        first.append(top[0] in found.rows)
        laps.append({**found.seconds, "all": sum(found.seconds.values())})
        place = np.argsort(best_rows(torch.from_numpy(cascade.prerank_all(context)), items).numpy())
        scored.append(found.counts["scored"])
        among.append((place[found.preranked] < prerank).sum() / min(prerank, items))
        for size in wanted:
            reached[size].append(float((place[top] < size).mean()))
        if (row := own[number]) is not None:
            hits.append(row in found.rows)
            hits_all.append(row in top)
    stages = {stage: [lap[stage] for lap in laps] for stage in laps[0]} | {"everything": whole}
    return CascadeReport(
        contexts=contexts.height,
        items=items,
        k=k,
        prerank=prerank,
        recall=float(np.mean(recall)),
        ndcg=float(np.mean(gain)),
        best_found=float(np.mean(first)),
        targets=len(hits),
        hit_rate=float(np.mean(hits)) if hits else None,
        hit_rate_all=float(np.mean(hits_all)) if hits else None,
        candidates=float(np.mean(scored)),
        candidate_recall=float(np.mean(among)),
        recall_by_prerank={size: float(np.mean(shares)) for size, shares in reached.items()},
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
