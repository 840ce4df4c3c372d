"""From bundles to recommendations: the whole catalogue ranked, or two stages with an item index and what they lose.

Importing the package loads nothing else; PyTorch and Polars are imported with the first name.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fieldwise.scoring.evaluate import CascadeReport, evaluate_cascade
    from fieldwise.scoring.items import ItemIndex, ItemTable, item_table
    from fieldwise.scoring.ranker import Ranker, RankingResult
    from fieldwise.serving.index import (
        Changes,
        build_index,
        open_index,
        with_changed_items,
        without_items,
    )

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
    "with_changed_items",
    "without_items",
]

_HOMES = {
    "fieldwise.scoring.evaluate": ("CascadeReport", "evaluate_cascade"),
    "fieldwise.scoring.items": ("ItemIndex", "ItemTable", "item_table"),
    "fieldwise.scoring.ranker": ("Ranker", "RankingResult"),
    "fieldwise.serving.index": (
        "Changes",
        "build_index",
        "open_index",
        "with_changed_items",
        "without_items",
    ),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'fieldwise.serving' has no attribute {name!r}")
