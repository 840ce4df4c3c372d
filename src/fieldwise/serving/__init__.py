"""From bundles to recommendations: the whole catalogue ranked, or two stages with an item index and what they lose."""

from fieldwise.serving.cascade import Cascade
from fieldwise.serving.evaluate import CascadeReport, evaluate_cascade
from fieldwise.serving.index import Changes, ItemIndex, build_index, open_index
from fieldwise.serving.items import ItemTable
from fieldwise.serving.queries import Found, Query
from fieldwise.serving.whole import WholeRanking

__all__ = [
    "Cascade",
    "CascadeReport",
    "Changes",
    "Found",
    "ItemIndex",
    "ItemTable",
    "Query",
    "WholeRanking",
    "build_index",
    "evaluate_cascade",
    "open_index",
]
