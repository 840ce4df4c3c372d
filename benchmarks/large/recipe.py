"""Recipes that train a model on a generated log."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.large.log import CATEGORIES, LABEL, NUMBERS, TIME
from fieldwise.storage.files import write_atomically

__all__ = ["BATCH", "DIM", "MIN_COUNT", "MODELS", "write_recipe"]

DIM, BATCH = 8, 4096
MIN_COUNT = 4  # categories with fewer training rows share a row
ITEM = 13  # the first so many categories are the item's, for models with two towers
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "fm": {
        "model": {"name": "fm", "embedding_dim": DIM},
        "training": {"optimizer": "adagrad", "embedding_update": "lazy", "l2_rows": "touched", "learning_rate": 0.05},
    },
    "autoint": {
        "model": {"name": "autoint", "embedding_dim": DIM, "layers": 2, "heads": 2, "attention_dim": 16}
        | {"attention_dropout": 0.1},
        "training": {
            "optimizer": "adam",
            "embedding_update": "lazy",
            "l2_rows": "touched",
            "learning_rate": 0.001,
            "average": 0.99,
        },
    },
    "inttower": {
        "model": {"name": "inttower", "embedding_dim": DIM, "hidden": [64, 32], "dropout": 0.1},
        "training": {"optimizer": "adam", "embedding_update": "lazy", "l2_rows": "touched", "learning_rate": 0.001},
    },
}


def write_recipe(
    path: Path,
    data: Mapping[str, Any],
    model: str,
    *,
    memory: str | None = None,
    training: Mapping[str, Any] | None = None,
    model_settings: Mapping[str, Any] | None = None,
    transform: str | None = None,
    stated: bool = True,
) -> Path:
    """Write the recipe of a model of MODELS; the newest tenth of the rows tests, the tenth before validates.

    Args:
        path: the recipe's file.
        data: what `benchmarks.large.log.about` returns.
        model: fm, autoint or inttower.
        memory: `data.memory`; left out where it is None.
        training: more settings of training.
        model_settings: more settings of the model.
        transform: of all numbers; by their kinds if omitted.
        stated: whether the settings of MODELS are stated; if not, all settings that are not given are chosen from the
            data, as for a user who states none.
    """
    numbers = [{"kind": "numeric", "name": one.name, "transform": transform or _transform(one.kind)} for one in NUMBERS]
    categories = [
        {"kind": "categorical", "name": one.name, "role": "item" if k < ITEM else "user", "min_count": MIN_COUNT}
        for k, one in enumerate(CATEGORIES)
    ]
    recipe = {
        "data": {"path": data["path"]} | ({} if memory is None else {"memory": memory}),
        "schema": {"label": {"column": LABEL}, "time": TIME, "fields": [*numbers, *categories]},
        "split": {"kind": "time", "valid": 0.1, "test": 0.1},
        "model": {"name": model} | (MODELS[model]["model"] if stated else {}) | dict(model_settings or {}),
        "training": ({"batch_size": BATCH, "epochs": 1} | MODELS[model]["training"] if stated else {})
        | dict(training or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, tomli_w.dumps(recipe).encode())
    return path


def _transform(kind: str) -> str:
    return "log" if kind in ("count", "amount") else "standard"
