"""One run: a model with default settings, or a baseline, on a table with a seed."""

import dataclasses
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.defaults.baselines import BASELINE_FITS, Fit
from benchmarks.defaults.store import BASELINES, Found, Place, data_digest
from benchmarks.defaults.tables import DevTable, corrected
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.evaluation import binary_metrics, logloss_from_logits, sigmoid
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.models import parameter_count
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.environment import environment
from fieldwise.runs.fitting import fit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import setting_path
from fieldwise.schema import Schema
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.result import result_to_plain

__all__ = ["MODELS", "Rows", "Settings", "applies", "place_of", "recipe_for", "rows_of", "run"]

MODELS = {name: name for name in ("lr", "fm", "afm", "autoint", "inttower")} | {"autoint-plus": "autoint+"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of runs.

    Args:
        data_dir: the folder of public data sets.
        store: the folder of runs.
        tag: the name under which runs are stored.
        defaults: `data` or `fixed`, as in a recipe; the recipe's own default if not given.
        sets: additional settings, such as `training.batch_size=64`, to try rules.
        max_rows: maximum rows of the raw table, sampled once at random.
        threads: threads of PyTorch and LightGBM.
    """

    data_dir: Path
    store: Path
    tag: str
    defaults: str | None = None
    sets: tuple[str, ...] = ()
    max_rows: int | None = None
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A table that is read, corrected, split and encoded."""

    table: DevTable
    name: str
    schema: Schema
    prepared: Prepared
    digest: str


def rows_of(table: DevTable, seed: int, settings: Settings) -> Rows:
    """The table's rows for a seed; tables that are not resampled for each seed use the rows of seed 0."""
    data_seed = seed if table.by_seed else 0
    frame, name = table.read(settings.data_dir, data_seed), table.name
    if settings.max_rows is not None and frame.height > settings.max_rows:
        some = np.random.default_rng(0).choice(frame.height, settings.max_rows, replace=False)
        frame, name = frame[np.sort(some)], f"{name}@{settings.max_rows}"
    schema = corrected(frame, table.corrections)
    recipe = dataclasses.replace(_recipe(table, schema, "lr", {}), data_seed=data_seed)
    prepared = prepare_recipe(recipe, settings.data_dir, frame)
    return Rows(table=table, name=name, schema=schema, prepared=prepared, digest=data_digest(prepared))


def applies(model: str, schema: Schema) -> bool:
    """Whether a model can be trained: two towers need user and item fields."""
    return model != "inttower" or {"user", "item"} <= {f.role for f in schema.fields}


def recipe_for(rows: Rows, model: str, seed: int, settings: Settings) -> Recipe:
    """A minimal recipe: data, schema, split, and the model's name."""
    over: dict[str, Any] = {}
    if settings.defaults is not None:
        over["defaults"] = settings.defaults
    for text in settings.sets:
        _set(over, text)
    recipe = _recipe(rows.table, rows.schema, MODELS[model], over)
    return dataclasses.replace(recipe, seed=seed, data_seed=seed if rows.table.by_seed else 0)


def _recipe(table: DevTable, schema: Schema, model: str, over: dict[str, Any]) -> Recipe:
    plain = {**over, "data": {"path": f"{table.name}.csv"}, "schema": schema.to_dict()}
    plain["model"] = {"name": model, **over.get("model", {})}
    recipe = Recipe.from_dict(plain, f"defaults/{table.name}/{model}")
    return dataclasses.replace(recipe, split=table.split, negatives=table.negatives)


def _set(over: dict[str, Any], text: str) -> None:
    key, _, value = text.partition("=")
    *path, last = setting_path(key)
    for part in path:
        over = over.setdefault(part, {})
    try:
        over[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        over[last] = value


def place_of(rows: Rows, model: str, seed: int, settings: Settings) -> Place:
    """The path of a run; a baseline depends only on the seed of its rows."""
    if model in BASELINE_FITS:
        return Place(settings.store, BASELINES, rows.name, f"{model}-{rows.digest}")
    return Place(settings.store, settings.tag, rows.name, f"{model}-{seed}")


def run(rows: Rows, model: str, seed: int, settings: Settings) -> Found:
    """Train and score once."""
    torch.set_num_threads(settings.threads)
    prepared = rows.prepared
    about: dict[str, Any] = {"table": rows.name, "model": model, "seed": seed, "data": rows.digest}
    if model in BASELINE_FITS:
        fit = BASELINE_FITS[model](prepared, rows.schema, settings.threads)
        about |= {"seconds": fit.seconds, "chosen": fit.about}
    else:
        fit, more = _network(recipe_for(rows, model, seed, settings), prepared)
        about |= more
    y = np.asarray(prepared.test.main, dtype=np.float64)
    y_valid = np.asarray(prepared.valid.main, dtype=np.float64)
    about |= {
        "test": _figures(y, fit.test),
        "valid": {"logloss": logloss_from_logits(y_valid, fit.valid)},
        "counts": dict(prepared.counts),
        "rows": rows.table.rows or sum(map(len, (prepared.train.main, prepared.valid.main, prepared.test.main))),
        "base_rate": float(prepared.train.main.mean()),
        "fields": len(prepared.encoder.layout.fields),
        "embedding_rows": prepared.encoder.layout.num_rows,
        "settings": {"defaults": settings.defaults, "sets": list(settings.sets)},
        "environment": environment(),
    }
    return Found(about, y, fit.test)


def _network(recipe: Recipe, prepared: Prepared) -> tuple[Fit, dict[str, Any]]:
    began = time.process_time()  # processor time, which other work on the machine does not increase
    fitted = fit_recipe(recipe, prepared)
    cpu = time.process_time() - began
    result = fitted.result
    valid, test = (
        score_batches(fitted.network, part.table.batches(SCORING_BATCH)) for part in (prepared.valid, prepared.test)
    )
    more = {
        "seconds": result.seconds,
        "cpu_seconds": cpu,
        "epochs": result.epochs,
        "best_epoch": result.best.epoch,
        "parameters": parameter_count(fitted.network),
        "history": result_to_plain(result)["history"],
        "recipe": fitted.recipe.to_dict(),
        "chosen_by_rule": to_plain(fitted.chosen),
    }
    return Fit(valid, test, result.seconds), more


def _figures(y: np.ndarray, logit: np.ndarray) -> dict[str, float]:
    metrics = binary_metrics(y, logit)
    return {
        "auc": metrics["auc"],
        "logloss": logloss_from_logits(y, logit),
        "ece": calibration_error(y, sigmoid(logit)),
    }
