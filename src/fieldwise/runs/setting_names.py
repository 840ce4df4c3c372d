"""Settings of a recipe by dotted path, and the nearest one to a wrong path."""

import dataclasses
from collections.abc import Collection, Mapping
from difflib import SequenceMatcher
from typing import Any, get_args

from fieldwise.data.prepare.settings import HistorySettings, NegativeSampling, TargetEncoding
from fieldwise.data.prepare.split_settings import SplitSettings
from fieldwise.training.settings import TrainingSettings

__all__ = ["NEAR", "SURE", "nearest_setting", "setting_names"]

NEAR = 0.6  # minimum similarity for a suggestion
SURE = 0.9  # similarity above which no other is searched
MOST_COMPARED = 200  # letters of a path that are compared: 200,000 take half a minute


def setting_names(recipe: Mapping[str, Any], data: type, *, model: bool = True) -> dict[str, set[str]]:
    """The settings in the fixed tables of a recipe.

    Args:
        recipe: its tables, with the model's name.
        data: the dataclass of the table `data`.
        model: whether to include the model's settings, which imports PyTorch.
    """
    classes: dict[str, tuple[Any, ...]] = {
        "data": (data,),
        "split": get_args(SplitSettings),
        "negatives": (NegativeSampling,),
        "history": (HistorySettings,),
        "target_encoding": (TargetEncoding,),
        "training": (TrainingSettings,),
    }
    names = {table: {f.name for one in of for f in dataclasses.fields(one)} for table, of in classes.items()}
    table = recipe.get("model")
    if not model or not isinstance(table, Mapping):
        return names
    from fieldwise.models.own import is_known, model_class

    if is_known(table.get("name")):
        chosen = model_class(table.get("name"), "model")
        names["model"] = {"name", *(f.name for f in dataclasses.fields(chosen))}  # type: ignore[arg-type]
    return names


def nearest_setting(key: str, known: Collection[str], least: float = NEAR) -> str | None:
    """The nearest dotted path to a wrong one: similar as a whole, or with the same last part.

    >>> nearest_setting("epochs", ["training.epochs", "model.layers", "seed"])
    'training.epochs'
    >>> nearest_setting("modl.layrs", ["training.epochs", "model.layers", "seed"])
    'model.layers'
    """
    key = key[:MOST_COMPARED]

    def likeness(path: str) -> float:
        whole = SequenceMatcher(None, key, path).ratio()
        last = SequenceMatcher(None, key.rpartition(".")[2], path.rpartition(".")[2]).ratio()
        return max(whole, 0.95 * last)

    best = max(sorted(known), key=likeness, default=None)
    return best if best is not None and likeness(best) >= least else None
