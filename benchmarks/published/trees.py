"""LightGBM on a recipe's rows, the standard baseline for tabular data.

It uses the same training, validation and test rows as the recipe, and the same fields: numbers unchanged (without
bins), categories by their codes as LightGBM's own categorical features, bags as one column per value. Settings are
chosen from `CHOICES` by validation AUC of the first seed, on at most `CHOICE_ROWS` training rows sampled at random; the
number of trees by early stopping on validation AUC, for every seed. Test rows are scored once.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import lightgbm
import numpy as np
import torch

from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.evaluation import binary_metrics
from fieldwise.layout import FieldLayout
from fieldwise.runs.data import data_inputs, data_settings, prepare_recipe
from fieldwise.runs.environment import environment
from fieldwise.runs.fits import RunContext, with_seed, with_words
from fieldwise.runs.identity import scored_rows_digest
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import Record, Store
from fieldwise.schema import Categorical, Numeric, Schema

__all__ = ["CHOICES", "features", "fit_trees", "tree_runs"]

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
    for categories in ({"cat_smooth": 10, "cat_l2": 10}, {"cat_smooth": 100, "cat_l2": 100, "max_cat_threshold": 256})
)
TREES, PATIENCE = 4000, 100
CHOICE_ROWS = 100_000  # with more rows, choosing among all settings takes as long as training the models
FORMAT = 1  # format of `features`; a change repeats all runs
MOST_BAG_VALUES = 256


def features(part: Part, schema: Schema, *, most: int | None = None) -> tuple[np.ndarray, list[int]]:
    """A feature matrix [N, columns] and the indices of its categorical columns.

    Args:
        part: the rows.
        schema: the schema whose fields are used.
        most: maximum number of values of a bag; `MOST_BAG_VALUES` by default.

    Errors:
        ConfigError: a bag has too many values for one column each.
    """
    table = part.table
    columns, categories = [], []
    single = iter(range(table.ids.shape[1]))
    bags = iter(range(sum(f.kind == "bag" for f in table.layout.fields)))
    for place, field in zip(table.layout.fields, schema.fields, strict=True):
        if place.kind == "bag":
            columns += list(_bag(table, next(bags), place, MOST_BAG_VALUES if most is None else most).T)
            continue
        codes = table.ids[:, next(single)] - place.offset
        if isinstance(field, Numeric):
            columns.append(part.frame.get_column(field.column).cast(float).to_numpy())
        elif isinstance(field, Categorical):
            categories.append(len(columns))
            columns.append(codes.astype(np.float64))
        else:
            raise ConfigError(f"LightGBM here reads numbers, categories and bags, found field {place.name!r}")
    return np.column_stack(columns), categories


def _bag(table: EncodedTable, position: int, place: FieldLayout, most: int) -> np.ndarray:
    """How often each value of a bag occurs, [N, values]."""
    rows = place.rows
    if rows > most:
        raise ConfigError(f"a bag of at most {most} values has a column each, found {rows} in {place.name!r}")
    bags = sum(f.kind == "bag" for f in table.layout.fields)
    starts, ends = table.bag_offsets[position:-1:bags], table.bag_offsets[position + 1 :: bags]
    counts = np.zeros((len(table), rows))
    lengths = ends - starts
    row = np.repeat(np.arange(len(table)), lengths)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    np.add.at(counts, (row, table.bag_ids[np.repeat(starts, lengths) + within] - place.offset), 1.0)
    return counts


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Matrices and labels of the three parts."""

    train: tuple[np.ndarray, np.ndarray]
    valid: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    categories: list[int]

    @classmethod
    def of(cls, prepared: Prepared, schema: Schema) -> "_Rows":
        parts = [prepared.train, prepared.valid, prepared.test]
        matrices = [features(part, schema) for part in parts]
        with_labels = [(x, part.main) for (x, _), part in zip(matrices, parts, strict=True)]
        return cls(*with_labels, categories=matrices[0][1])


def fit_trees(
    train: tuple[np.ndarray, np.ndarray],
    valid: tuple[np.ndarray, np.ndarray],
    categories: list[int],
    settings: dict[str, float],
    seed: int,
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
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    name: str,
    store: Store,
    context: RunContext,
) -> list[Record]:
    """Runs of LightGBM on the recipe's rows with every seed; runs in the store are not repeated.

    A run takes seconds: two processes that share a store may make the same run, and the later one is kept.

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
    chosen: tuple[_Rows, dict[str, float], float] | None = None
    found = []
    for one in (with_seed(recipe, seed) for seed in seeds):
        about = {"data": data_settings(one), "files": dict(inputs.files), "how": how, "seeds": [seeds[0], one.seed]}
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]
        record, done = store.get(key), "kept"
        if record is None:
            prepared = prepare_recipe(one, context.data_dir, cache=context.cache)
            if chosen is None:
                chosen = _choose(_Rows.of(prepared, one.schema), seeds[0])
            record, done = store.put(key, *_run(one, name, prepared, *chosen)), "done"
        found.append(with_words(record, one))
        context.note(f"{name} seed {one.seed}: {done}, {len(found)} of {len(seeds)} runs")
    return found


def _choose(rows: _Rows, seed: int) -> tuple[_Rows, dict[str, float], float]:
    """The rows, the settings with the best validation AUC, and the seconds that choosing took."""
    began = time.perf_counter()
    x, y = rows.train
    if len(y) > CHOICE_ROWS:
        some = np.sort(np.random.default_rng(seed).choice(len(y), CHOICE_ROWS, replace=False))
        x, y = x[some], y[some]

    def scores() -> Iterator[float]:
        for settings in CHOICES:
            booster = fit_trees((x, y), rows.valid, rows.categories, settings, seed)
            yield booster.best_score["valid_0"]["auc"]

    best = int(np.argmax(list(scores())))
    return rows, CHOICES[best], time.perf_counter() - began


def _run(
    recipe: Recipe, name: str, prepared: Prepared, rows: _Rows, settings: dict[str, float], choosing: float
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    began = time.perf_counter()
    booster = fit_trees(rows.train, rows.valid, rows.categories, settings, recipe.seed)
    seconds = time.perf_counter() - began
    logits = {part: booster.predict(x, raw_score=True) for part, (x, _) in (("valid", rows.valid), ("test", rows.test))}
    metrics = {
        "valid": binary_metrics(rows.valid[1], logits["valid"], group=prepared.valid.group),
        "test": binary_metrics(rows.test[1], logits["test"], group=prepared.test.group),
    }
    about = {
        "recipe": name,
        "seed": recipe.seed,
        "data_seed": recipe.rows_seed,
        "model": {"name": "lightgbm", **settings},
        "parameters": int(booster.trees_to_dataframe()["left_child"].isna().sum()),  # leaves
        "epochs": booster.current_iteration(),
        "seconds": round(seconds, 3),
        "seconds_choosing": round(choosing, 3),
        "seconds_per_epoch": None,
        "counts": dict(prepared.counts),
        **metrics,
        "benchmark": recipe.benchmark,
        "protocol": recipe.protocol,
        "task": recipe.schema.label.task,
        "test_digest": scored_rows_digest(prepared.test.frame, recipe),
        "finished": time.time(),
        "environment": {**environment(), "lightgbm": lightgbm.__version__},
        "settings": recipe.to_dict(),
    }
    return about, rows.test[1].astype(np.float64), np.asarray(logits["test"], dtype=np.float64)
