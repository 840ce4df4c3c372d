"""One run: a model with default settings, or a baseline, on a table with a seed."""

import dataclasses
import hashlib
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.defaults.baselines import BASELINE_FITS, Fit
from benchmarks.defaults.tables import DevTable, corrected
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.evaluation import binary_metrics, logloss_from_logits, sigmoid
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.environment import environment
from fieldwise.runs.pipeline import fit_recipe
from fieldwise.runs.recipe import Recipe, setting_path
from fieldwise.runs.records import RunRecord, Store
from fieldwise.schema import Schema
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

__all__ = ["MODELS", "Rows", "applies", "kept_run", "key_of", "recipe_for", "rows_of", "store_of"]

MODELS = {name: name for name in ("lr", "fm", "afm", "autoint", "inttower")} | {"autoint-plus": "autoint+"}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A table that is read, corrected, split and encoded."""

    table: DevTable
    name: str
    schema: Schema
    prepared: Prepared
    digest: str


def rows_of(table: DevTable, seed: int, data_dir: Path, max_rows: int | None = None) -> Rows:
    """The table's rows for a seed, at most `max_rows` of its raw ones, sampled at random.

    Tables that are not resampled for each seed use the rows of seed 0.
    """
    data_seed = seed if table.by_seed else 0
    frame, name = table.read(data_dir, data_seed), table.name
    if max_rows is not None and frame.height > max_rows:
        some = np.random.default_rng(0).choice(frame.height, max_rows, replace=False)
        frame, name = frame[np.sort(some)], f"{name}@{max_rows}"
    schema = corrected(frame, table)
    recipe = dataclasses.replace(_recipe(table, schema, "lr", {}), data_seed=data_seed)
    prepared = prepare_recipe(recipe, data_dir, frame)
    return Rows(table=table, name=name, schema=schema, prepared=prepared, digest=data_digest(prepared))


def data_digest(prepared: Prepared) -> str:
    """A short digest of the encoded rows and labels of all parts."""
    found = hashlib.sha256()
    for part in (prepared.train, prepared.valid, prepared.test):
        table = part.table
        for array in (table.ids, table.values, table.bag_ids, table.bag_offsets, part.main):
            found.update(np.ascontiguousarray(array).tobytes())
    found.update(repr([(f.kind, f.offset, f.rows, f.pooling) for f in prepared.encoder.layout.fields]).encode())
    return found.hexdigest()[:12]


def applies(model: str, schema: Schema) -> bool:
    """Whether a model can be trained: two towers need user and item fields."""
    return model != "inttower" or {"user", "item"} <= {f.role for f in schema.fields}


def recipe_for(rows: Rows, model: str, seed: int, sets: Sequence[str] = ()) -> Recipe:
    """A minimal recipe: data, schema, split, and the model's name; and settings as KEY=VALUE, to try rules."""
    over: dict[str, Any] = {}
    for text in sets:
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


def store_of(folder: Path, tag: str, model: str) -> Store:
    """The runs of a tag; those of baselines, which depend on their rows alone, are those of all tags."""
    return Store(folder / ("baselines" if model in BASELINE_FITS else tag))


def key_of(table: str, model: str, which: int | str) -> str:
    """The key of a run by its seed, of a baseline by the digest of its rows."""
    return f"{table}-{model}-{which}"


def kept_run(
    rows: Rows, model: str, seed: int, *, folder: Path, tag: str, sets: Sequence[str], threads: int, again: bool
) -> RunRecord | None:
    """Train, score once and store the run; None if it is in the store and not wanted again."""
    store = store_of(folder, tag, model)
    key = key_of(rows.name, model, rows.digest if model in BASELINE_FITS else seed)
    if not again and store.get(key) is not None:
        return None
    torch.set_num_threads(threads)
    prepared = rows.prepared
    about: dict[str, Any] = {"table": rows.name, "model": model, "seed": seed, "data": rows.digest}
    if model in BASELINE_FITS:
        fit = BASELINE_FITS[model](prepared, rows.schema, threads)
        about |= {"seconds": fit.seconds, "chosen": fit.about}
    else:
        fit, more = _network(recipe_for(rows, model, seed, sets), prepared)
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
        "sets": list(sets),
        "environment": environment(),
    }
    return store.put(key, about, y, fit.test)


def _network(recipe: Recipe, prepared: Prepared) -> tuple[Fit, dict[str, Any]]:
    began = time.process_time()  # processor time, which other work on the machine does not increase
    fitted = fit_recipe(recipe, prepared)
    cpu = time.process_time() - began
    result = fitted.history
    valid, test = (
        score_batches(fitted.bundle.network, part.table.batches(SCORING_BATCH))
        for part in (prepared.valid, prepared.test)
    )
    more = {
        "seconds": result.seconds,
        "cpu_seconds": cpu,
        "epochs": result.epochs,
        "best_epoch": result.best.epoch,
        "parameters": fitted.parameters,
        "history": to_plain(result.evaluations),
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
