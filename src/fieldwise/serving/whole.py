"""Recommendation in one stage, for small catalogues: a bundle scores every item that passes the filters.

candidates (all items, or a list) -> filters -> ranking bundle -> best k
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import ConfigError
from fieldwise.layout import Batch
from fieldwise.scoring.ranking import best_places
from fieldwise.serving.filters import ItemFilters, item_filters
from fieldwise.serving.items import ItemTable, checked_ids
from fieldwise.serving.queries import PREDICTION, Clock, Found, Prepared, Recommends
from fieldwise.serving.request_side import RequestSide

__all__ = ["WholeRanking"]


class WholeRanking(Recommends):
    """Recommends by scoring every item of a catalogue with one bundle; ties keep the catalogue's order.

    Everything that only depends on the catalogue is computed once: encoded item fields, ids, columns. The time is
    proportional to the number of items: for large catalogues, use `Cascade` with an index.

    Args:
        ranker: any bundle with item fields and context fields; with several labels, the main one is used.
        items: one row per item, with the columns of the item fields; other columns (a title) are included in results.
        id_column: the column of item ids.

    Errors:
        ConfigError: a schema without item fields or context fields, or a column that both sides read.
        DataError: no items, a missing or duplicate id, a missing column, a column `prediction`.

    >>> from fieldwise import Categorical, FM, Label, Recommender, Schema, TrainingSettings, simulate
    >>> from fieldwise.serving import Query
    >>> log = simulate(500, users=20, items=10)
    >>> fields = Categorical("user_id", role="user"), Categorical("item_id", role="item")
    >>> settings = TrainingSettings(epochs=1)
    >>> fitted = Recommender(Schema(fields=fields, label=Label("liked")), FM(), training=settings).fit(log)
    >>> whole = WholeRanking(fitted.bundle_, log.select("item_id", "title").unique("item_id"), "item_id")
    >>> whole.recommend(Query(context={"user_id": "u0001"}, k=3)).items.columns
    ['item_id', 'title', 'prediction']
    """

    prerank = None  # as in a cascade: there is no first stage

    def __init__(self, ranker: Bundle, items: TableLike, id_column: str) -> None:
        items = as_table(items)
        checked_ids(items, id_column)
        if PREDICTION in items.columns:
            raise ConfigError(
                f"the items must not have a column {PREDICTION!r}, which is added to results: rename that column"
            )
        self.ranker, self.index = ranker, ItemTable(id_column=id_column, items=items)
        ranker.network.eval()
        self._ranking = RequestSide.of(ranker, self.index)

    def _encoded(self, context: Mapping[str, Any]) -> tuple[Batch | None, Batch | None]:
        return None, self._ranking.context(context)

    def recommend_prepared(self, asked: Sequence[Prepared]) -> list[Found]:
        """The best items for several queries, one by one."""
        return [self._ranked(one) for one in asked]

    def _ranked(self, one: Prepared) -> Found:
        clock = Clock()
        assert one.ranking is not None, "prepared by this"
        rows = np.arange(len(self.index)) if one.rows is None else one.rows
        rows = np.delete(rows, one.excluded)
        owner = torch.zeros(len(rows), dtype=torch.int64)
        score = self._ranking.score_rows([one.ranking], torch.from_numpy(rows), owner) if len(rows) else np.empty(0)
        best = best_places(score, one.query.k)
        clock.lap("rank")
        return Found(
            index=self.index,
            rows=rows[best],
            scores={PREDICTION: self._ranking.prediction(score[best])},
            counts={"candidates": one.candidates, "filtered": one.passing, "ranked": len(best)},
            seconds={**one.seconds, **clock.seconds},
        )

    @cached_property
    def filters(self) -> ItemFilters:
        """The filters of the catalogue's items."""
        return item_filters(self.index.items, [self.ranker.schema])
