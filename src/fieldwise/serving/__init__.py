"""From bundles to recommendations: the item index, the two-stage cascade and what it loses."""

from fieldwise.serving.cascade import Cascade
from fieldwise.serving.evaluate import CascadeReport, evaluate_cascade
from fieldwise.serving.index import Changes, ItemIndex, build_index, open_index
from fieldwise.serving.queries import Found, Query

__all__ = [
    "Cascade",
    "CascadeReport",
    "Changes",
    "Found",
    "ItemIndex",
    "Query",
    "build_index",
    "evaluate_cascade",
    "open_index",
]
