"""LightGBM on a recipe's rows, the standard baseline for tabular data.

It uses the same training, validation and test rows as the recipe, and the same fields
(`benchmarks.tree_columns`). Settings are chosen from `CHOICES` by validation AUC of the
first seed, on at most `CHOICE_ROWS` training rows sampled at random; the number of trees by early
stopping on validation AUC, for every seed. Test rows are scored once.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import lightgbm
import numpy as np
import torch

from benchmarks.tree_columns import features, left_out
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import ConfigError
from fieldwise.evaluation import binary_metrics
from fieldwise.runs.cache_key import data_settings
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.environment import environment
from fieldwise.runs.inputs import data_inputs
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recorded_runs import RunContext, with_seed, with_words
from fieldwise.runs.records import RunRecord, Store
from fieldwise.runs.row_digests import scored_rows_digest
from fieldwise.schema import Schema

__all__ = ["CHOICES", "fit_trees", "tree_runs"]

BASE = {
    "objective": "binary",
    "metric": "auc",
    "learning_rate": 0.05,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
CHOICES: tuple[dict[str, float], ...] = tuple(
    {"num_leaves": leaves, "min_data_in_leaf": rows, **categories}
    for leaves, rows in ((15, 20), (63, 20), (63, 100), (255, 50))
    for categories in (
        {"cat_smooth": 10, "cat_l2": 10},
        {"cat_smooth": 100, "cat_l2": 100, "max_cat_threshold": 256},
    )
)
TREES = 4000
PATIENCE = 100
# with more rows, choosing among all settings takes as long as training the models
CHOICE_ROWS = 100_000
FORMAT = 2  # of the features; a change repeats all runs


Rows = tuple[np.ndarray, np.ndarray]
"""A part's matrix and labels."""


def _parts(prepared: Prepared, schema: Schema) -> tuple[dict[str, Rows], list[int]]:
    """The rows of every part, and the columns of the matrix that are categories."""
    if some := left_out(prepared.train):
        raise ConfigError(
            f"LightGBM reads no sequence, and bags of at most 256 values: found {', '.join(some)}"
        )
    parts = {"train": prepared.train, "valid": prepared.valid, "test": prepared.test}
    results = {name: features(part, schema) for name, part in parts.items()}
    return {name: (x, parts[name].main) for name, (x, _) in results.items()}, results["train"][1]


def fit_trees(
    train: Rows, valid: Rows, categories: list[int], settings: dict[str, float], seed: int
) -> lightgbm.Booster:
    """Trees up to the best validation AUC."""
    own = {"num_threads": torch.get_num_threads(), "seed": seed}
    data = lightgbm.Dataset(*train, categorical_feature=categories, params={**BASE, **settings})
    return lightgbm.train(
        {**BASE, **settings, **own},
        data,
        num_boost_round=TREES,
        valid_sets=[lightgbm.Dataset(*valid, reference=data)],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )


def tree_runs(
    recipe: Recipe, seeds: Sequence[int], *, name: str, store: Store, context: RunContext
) -> list[RunRecord]:
    """Runs of LightGBM on the recipe's rows with every seed; runs in the store are not repeated.

    A run takes seconds: two processes that share a store may make the same run, and the later one
    is kept.

    Args:
        recipe: the recipe whose rows and fields are used.
        seeds: seeds of the samples of rows and columns for each tree.
        name: name of the runs.
        store: the store of runs.
        context: where runs read their data and report their progress.
    """
    inputs = data_inputs(recipe, context.data_dir)
    how = {
        "format": FORMAT,
        "base": BASE,
        "choices": CHOICES,
        "choice_rows": CHOICE_ROWS,
        "trees": [TREES, PATIENCE],
        "lightgbm": lightgbm.__version__,
    }
    parts = dict[str, Rows]()
    categories = list[int]()
    settings = dict[str, float]()
    choosing = 0.0
    result = []
    for one in (with_seed(recipe, seed) for seed in seeds):
        about = {
            "data": data_settings(one),
            "files": dict(inputs.files),
            "how": how,
            "seeds": [seeds[0], one.seed],
        }
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]
        record = store.get(key)
        done = "kept"
        if record is None:
            prepared = prepare_recipe(one, context.data_dir, cache=context.cache)
            if not parts:
                parts, categories = _parts(prepared, one.schema)
                began = time.perf_counter()
                settings = _choose(parts, categories, seeds[0])
                choosing = time.perf_counter() - began
            began = time.perf_counter()
            booster = fit_trees(parts["train"], parts["valid"], categories, settings, one.seed)
            took = {"seconds": time.perf_counter() - began, "seconds_choosing": choosing}
            about, logit = _about(one, name, prepared, parts, booster)
            about |= {
                "model": {"name": "lightgbm", **settings},
                **{k: round(v, 3) for k, v in took.items()},
            }
            record = store.put(key, about, np.asarray(parts["test"][1], dtype=np.float64), logit)
            done = "done"
        result.append(with_words(record, one))
        context.note(f"{name} seed {one.seed}: {done}, {len(result)} of {len(seeds)} runs")
    return result


def _choose(parts: Mapping[str, Rows], categories: list[int], seed: int) -> dict[str, float]:
    """The settings with the best validation AUC."""
    x, y = parts["train"]
    if len(y) > CHOICE_ROWS:
        some = np.sort(np.random.default_rng(seed).choice(len(y), CHOICE_ROWS, replace=False))
        x = x[some]
        y = y[some]
    return max(
        CHOICES,
        key=lambda settings: fit_trees(
            (x, y), parts["valid"], categories, settings, seed
        ).best_score["valid_0"]["auc"],
    )


def _about(
    recipe: Recipe,
    name: str,
    prepared: Prepared,
    parts: Mapping[str, Rows],
    booster: lightgbm.Booster,
) -> tuple[dict[str, Any], np.ndarray]:
    """What the store keeps of a run, without settings and seconds, and the logits of the test rows."""
    logits = {part: booster.predict(parts[part][0], raw_score=True) for part in ("valid", "test")}
    groups = {"valid": prepared.valid.group, "test": prepared.test.group}
    about = {
        "recipe": name,
        "seed": recipe.seed,
        "data_seed": recipe.rows_seed,
        "parameters": int(booster.trees_to_dataframe()["left_child"].isna().sum()),  # leaves
        "epochs": booster.current_iteration(),
        "seconds_per_epoch": None,
        "counts": dict(prepared.counts),
        **{
            part: binary_metrics(parts[part][1], logit, group=groups[part])
            for part, logit in logits.items()
        },
        "benchmark": recipe.benchmark,
        "protocol": recipe.protocol,
        "task": recipe.schema.label.task,
        "test_digest": scored_rows_digest(prepared.test.frame, recipe),
        "finished": time.time(),
        "environment": {**environment(), "lightgbm": lightgbm.__version__},
        "settings": recipe.to_dict(),
    }
    return about, np.asarray(logits["test"], dtype=np.float64)
