"""One run: a model with default settings, or a baseline, on a table with a seed; and the figures of a tag's runs."""

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
from torch import nn

from benchmarks.defaults.baselines import BASELINE_FITS, Fit
from benchmarks.defaults.large_tables import LARGE_TABLES
from benchmarks.defaults.tables import TABLES, DevTable, corrected
from benchmarks.defaults.targets import TREES, judge, mean_of
from benchmarks.results import environments
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.evaluation import binary_metrics, logloss_from_logits, sigmoid
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.models.mean_with_lr import part_of_mean
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.environment import environment
from fieldwise.runs.pipeline import fit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import RunRecord, Store
from fieldwise.schema import Field, Schema
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

__all__ = ["BASELINES", "MODELS", "Rows", "applies", "kept_run", "recipe_for", "rows_of", "summary"]

MODELS = {name: name for name in ("lr", "fm", "afm", "autoint", "finalmlp", "inttower")} | {
    "autoint-plus": "autoint+"
}
"""The networks, with their names in a recipe."""
BASELINES = (*BASELINE_FITS, *TREES)
SEEDS = range(100)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A table that is read, corrected, split and encoded."""

    table: DevTable
    schema: Schema
    prepared: Prepared
    digest: str


def rows_of(
    table: DevTable,
    seed: int,
    data_dir: Path,
    numbers: str | None = None,
    bins: int | None = None,
) -> Rows:
    """The table's rows for a seed; tables that are not resampled for each seed use the rows of seed 0.

    `numbers` is another encoding of the numbers that `init` cuts into quantile bins, `bins` another
    number of bins.
    """
    data_seed = seed if table.by_seed else 0
    frame = table.read(data_dir, data_seed)
    schema = corrected(frame, table)
    if numbers is not None:
        fields = [
            dataclasses.replace(f, encoding=numbers, bins=bins or f.bins) if is_binned(f) else f
            for f in schema.fields
        ]
        schema = dataclasses.replace(schema, fields=tuple(fields))
    recipe = dataclasses.replace(_recipe(table, schema, "lr", {}), data_seed=data_seed)
    prepared = prepare_recipe(recipe, data_dir, frame)
    return Rows(table=table, schema=schema, prepared=prepared, digest=data_digest(prepared))


def is_binned(field: Field) -> bool:
    """Whether `init` cuts a field's numbers into bins."""
    return getattr(field, "point_masses", False)


def data_digest(prepared: Prepared) -> str:
    """A short digest of the encoded rows and labels of all parts."""
    result = hashlib.sha256()
    for part in (prepared.train, prepared.valid, prepared.test):
        table = part.table
        for array in (table.ids, table.values, table.bag_ids, table.bag_offsets, part.main):
            result.update(np.ascontiguousarray(array).tobytes())
    result.update(
        repr(
            [(f.kind, f.offset, f.rows, f.pooling) for f in prepared.encoder.layout.fields]
        ).encode()
    )
    return result.hexdigest()[:12]


def applies(model: str, schema: Schema) -> bool:
    """Whether a model can be trained: two towers need user and item fields."""
    return model != "inttower" or {"user", "item"} <= {f.role for f in schema.fields}


def recipe_for(rows: Rows, model: str, seed: int, sets: Sequence[str] = ()) -> Recipe:
    """A minimal recipe: data, schema, split, and the model's name; and settings as lines of TOML, to try rules."""
    name = MODELS.get(model, model)
    recipe = _recipe(rows.table, rows.schema, name, tomllib.loads("\n".join(sets)))
    return dataclasses.replace(recipe, seed=seed, data_seed=seed if rows.table.by_seed else 0)


def _recipe(table: DevTable, schema: Schema, model: str, over: dict[str, Any]) -> Recipe:
    plain = {**over, "data": {"path": f"{table.name}.csv"}, "schema": schema.to_dict()}
    plain["model"] = {"name": model, **over.get("model", {})}
    recipe = Recipe.from_dict(plain, f"defaults/{table.name}/{model}")
    return dataclasses.replace(recipe, split=table.split, negatives=table.negatives)


def store_of(folder: Path, tag: str, model: str) -> Store:
    """The runs of a tag; those of baselines, which depend on their rows alone, are those of all tags."""
    return Store(folder / ("baselines" if model in BASELINES else tag))


def key_of(table: str, model: str, which: int | str) -> str:
    """The key of a run by its seed, of a baseline by the digest of its rows."""
    return f"{table}-{model}-{which}"


def kept_run(
    rows: Rows,
    model: str,
    seed: int,
    *,
    folder: Path,
    tag: str,
    sets: Sequence[str],
    threads: int,
    again: bool,
) -> RunRecord | None:
    """Train, score once and store the run; None if it is in the store and not wanted again."""
    store = store_of(folder, tag, model)
    key = key_of(rows.table.name, model, rows.digest if model in BASELINES else seed)
    if not again and store.get(key) is not None:
        return None
    torch.set_num_threads(threads)
    prepared = rows.prepared
    about: dict[str, Any] = {
        "table": rows.table.name,
        "model": model,
        "seed": seed,
        "data": rows.digest,
    }
    if model in BASELINE_FITS:
        fit = BASELINE_FITS[model](prepared, rows.schema, threads)
        about |= {"seconds": fit.seconds, "chosen": fit.about}
    else:
        recipe = (
            recipe_for(rows, model, 0) if model in TREES else recipe_for(rows, model, seed, sets)
        )
        fit, more = _trained(recipe, prepared)
        about |= more
    y = np.asarray(prepared.test.main, dtype=np.float64)
    y_valid = np.asarray(prepared.valid.main, dtype=np.float64)
    about |= {
        "test": _figures(y, fit.test),
        "valid": {"logloss": logloss_from_logits(y_valid, fit.valid)},
        "counts": dict(prepared.counts),
        "rows": rows.table.rows
        or sum(map(len, (prepared.train.main, prepared.valid.main, prepared.test.main))),
        "base_rate": float(prepared.train.main.mean()),
        "fields": len(prepared.encoder.layout.fields),
        "embedding_rows": prepared.encoder.layout.num_rows,
        "sets": list(sets),
        "environment": environment(),
    }
    return store.put(key, about, y, fit.test)


def _trained(recipe: Recipe, prepared: Prepared) -> tuple[Fit, dict[str, Any]]:
    began = time.process_time()  # processor time, which other work on the machine does not increase
    fitted = fit_recipe(recipe, prepared.encoder, prepared.train, prepared.valid)
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
        "network_share": fitted.bundle.network_share,
        "network_alone": _alone(fitted.bundle.network, prepared),
        "lr_seconds": None if result.lr is None else result.lr.seconds,
        "history": to_plain(result.evaluations),
        "recipe": fitted.recipe.to_dict(),
        "chosen_by_rule": to_plain(fitted.chosen),
    }
    return Fit(valid, test, result.seconds), more


def _alone(network: nn.Module, prepared: Prepared) -> float | None:
    """The test logloss of a network without the LR of its mean; None without a mean."""
    part = part_of_mean(network)
    if part is network:
        return None
    scores = score_batches(part, prepared.test.table.batches(SCORING_BATCH))
    return logloss_from_logits(np.asarray(prepared.test.main, dtype=np.float64), scores)


def _figures(y: np.ndarray, logit: np.ndarray) -> dict[str, float]:
    metrics = binary_metrics(y, logit)
    return {
        "auc": metrics["auc"],
        "logloss": logloss_from_logits(y, logit),
        "ece": calibration_error(y, sigmoid(logit)),
    }


def load_runs(folder: Path, tag: str, table: str) -> dict[str, list[RunRecord]]:
    """The runs of a tag on a table by model, ordered by seed, and the baselines of the same rows."""
    runs: dict[str, list[RunRecord]] = {}
    for model in MODELS:
        kept = (store_of(folder, tag, model).get(key_of(table, model, seed)) for seed in SEEDS)
        results = [run for run in kept if run is not None]
        if results:
            runs[model] = results
    most = max(runs.values(), key=len, default=[])
    digests = list(dict.fromkeys(run["data"] for run in most))
    for name in BASELINES:
        kept = (store_of(folder, tag, name).get(key_of(table, name, digest)) for digest in digests)
        results = [run for run in kept if run is not None]
        if results and len(results) == len(digests):
            runs[name] = results
    return runs


def summary(folder: Path, tag: str, table: str) -> dict[str, Any] | None:
    """A table's figures of a tag, with the targets; None without a run."""
    runs = load_runs(folder, tag, table)
    ours = [run for name in MODELS for run in runs.get(name, [])]
    if not ours:
        return None
    first = ours[0].about
    return {
        "about": (TABLES | LARGE_TABLES)[table].about,
        "counts": {part: first["counts"][f"{part}_rows"] for part in ("train", "valid", "test")},
        "dropped": first["counts"]["dropped_by_label"],
        "fields": first["fields"],
        "values": first["embedding_rows"],
        "base_rate": first["base_rate"],
        "models": {name: _means(result) for name, result in runs.items()},
        "verdicts": list(judge(runs, first["rows"])),
        "environment": environments(ours),
    }


def _means(runs: Sequence[RunRecord]) -> dict[str, Any]:
    results = {metric: mean_of(runs, "test", metric) for metric in ("auc", "logloss", "ece")}
    spread = (
        float(np.std([run["test"]["logloss"] for run in runs], ddof=1)) if len(runs) > 1 else None
    )
    results |= {"seeds": len(runs), "logloss_deviation": spread, "seconds": _mean(runs, "seconds")}
    for name in ("cpu_seconds", "epochs", "parameters"):
        if name in runs[0].about:
            results[name] = _mean(runs, name)
    if "chosen" in runs[0].about:
        results["chosen"] = runs[0].about["chosen"]
    return results


def _mean(runs: Sequence[RunRecord], name: str) -> float:
    return float(np.mean([run.about[name] for run in runs]))
