"""From bundles to recommendations: the whole catalogue ranked, or two stages with an item index and what they lose."""

from fieldwise.scoring.items import ItemIndex, ItemTable, item_table
from fieldwise.scoring.ranker import Ranker, RankingResult
from fieldwise.serving.evaluate import CascadeReport, evaluate_cascade
from fieldwise.serving.index import Changes, build_index, open_index

__all__ = [
    "CascadeReport",
    "Changes",
    "ItemIndex",
    "ItemTable",
    "Ranker",
    "RankingResult",
    "build_index",
    "evaluate_cascade",
    "item_table",
    "open_index",
]
