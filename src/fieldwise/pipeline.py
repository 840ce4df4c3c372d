"""A recipe from data to bundle: load, prepare, train, evaluate. What the command line and the demo call."""

import dataclasses
import hashlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from torch import nn

from fieldwise.bundle import Bundle, sample_rows
from fieldwise.config import nearest, to_plain
from fieldwise.data.encoded import EncodedTable
from fieldwise.data.prepare import Part, Prepared, prepare
from fieldwise.data.public import PUBLIC_SETS
from fieldwise.data.simulated import simulate
from fieldwise.data.tables import as_table
from fieldwise.errors import ConfigError
from fieldwise.evaluation import binary_metrics
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network, model_to_dict
from fieldwise.recipe import DataSettings, Recipe
from fieldwise.schema import Schema
from fieldwise.training.fit import FitResult
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.progress import Progress
from fieldwise.training.train import result_to_plain, train_network
from fieldwise.warm_start import WarmStart, warm_start

__all__ = ["Run", "load_frame", "prepare_recipe", "rows_digest", "train_recipe"]

PROBABILITY = "true_probability"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One trained recipe.

    Args:
        best_possible: metrics of the main label's true probabilities on the test rows, where the data know them.
        warm_start: what the network started from, where the recipe names a bundle.
    """

    recipe: Recipe
    bundle: Bundle
    result: FitResult
    parameters: int
    valid: Mapping[str, float]
    test: Mapping[str, float]
    best_possible: Mapping[str, float] | None
    counts: Mapping[str, int]
    seconds: float
    warm_start: WarmStart | None = None

    def record(self) -> dict[str, Any]:
        """Plain values for JSON: recipe, parameters, epochs, seconds, validation and test metrics, settings."""
        record = {
            "recipe": self.recipe.name,
            "seed": self.recipe.seed,
            "model": model_to_dict(self.recipe.model),
            "training": to_plain(self.recipe.training),
            "parameters": self.parameters,
            "epochs": self.result.epochs,
            "best_epoch": self.result.best.epoch,
            "stopped": self.result.stopped,
            "seconds": round(self.seconds, 3),
            "seconds_per_epoch": self.result.seconds_per_epoch,
            "counts": dict(self.counts),
            "valid": dict(self.valid),
            "test": dict(self.test),
        }
        if self.best_possible is not None:
            record["best_possible"] = dict(self.best_possible)
        if self.warm_start is not None:
            record["warm_start"] = {"bundle": self.recipe.warm_start, **to_plain(self.warm_start)}
        return record


def load_frame(data: DataSettings, data_dir: Path) -> pl.DataFrame:
    """The raw table that a recipe names.

    Errors:
        ConfigError: an unknown name. DataError: absent or damaged files.
    """
    if data.path is not None:
        return as_table(Path(data.path), separator=data.separator, encoding=data.encoding)
    if data.name == "simulated":
        return simulate(data.rows, users=data.users, items=data.items, seed=data.seed)
    if data.name not in PUBLIC_SETS:
        known = nearest(str(data.name), [*PUBLIC_SETS, "simulated"])
        raise ConfigError(f"data.name must be a known data set, found {data.name!r}: {known}")
    return PUBLIC_SETS[data.name].read(data_dir)


def prepare_recipe(recipe: Recipe, data_dir: Path, frame: pl.DataFrame | None = None) -> Prepared:
    """Load (unless `frame` is given), split and encode a recipe's data; the encoded columns are mapped from disk."""
    frame = load_frame(recipe.data, data_dir) if frame is None else frame
    prepared = prepare(
        frame,
        recipe.schema,
        split=recipe.split,
        seed=recipe.seed,
        negatives=recipe.negatives,
        history=recipe.history,
    )
    # A mapping outlives the name of its file; where a system holds on to mapped files, its own cleaning finds them.
    with tempfile.TemporaryDirectory(prefix="fieldwise-", ignore_cleanup_errors=True) as folder:
        return dataclasses.replace(
            prepared,
            train=_mapped(prepared.train, Path(folder) / "train"),
            valid=_mapped(prepared.valid, Path(folder) / "valid"),
            test=_mapped(prepared.test, Path(folder) / "test"),
        )


def train_recipe(recipe: Recipe, prepared: Prepared, progress: Progress | None = None) -> Run:
    """Train, restore the best weights, evaluate validation and, once, test rows.

    Errors:
        BundleError: the recipe's warm_start is no bundle that can be read. ConfigError: nothing of it fits the model.
    """
    began = time.perf_counter()
    parts = {"test": prepared.test, "valid": prepared.valid}
    digests = {f"{name}_digest": rows_digest(part.frame, recipe.schema) for name, part in parts.items()}
    labels = recipe.schema.labels
    network = build_network(recipe.model, prepared.encoder.layout, recipe.seed, labels=len(labels))
    started = _start(network, prepared, recipe, digests)
    result = train_network(
        network,
        prepared.train,
        prepared.valid,
        labels=labels,
        settings=recipe.training,
        seed=recipe.seed,
        progress=progress,
    )
    objective, by_loss = Objective.of(*labels), recipe.training.monitor == "loss"
    test = evaluate(network, prepared.test.table, objective, prepared.test.group, loss=by_loss)
    run = Run(
        recipe=recipe,
        bundle=Bundle(
            recipe.schema, prepared.encoder, recipe.model, network, sample_rows(recipe.schema, prepared.valid.frame)
        ),
        result=result,
        parameters=parameter_count(network),
        valid=result.best.metrics,
        test=test,
        best_possible=_best_possible(prepared.test) if recipe.schema.label.task == "binary" else None,
        counts=prepared.counts,
        seconds=time.perf_counter() - began,
        warm_start=started,
    )
    about = {
        "recipe": {"name": recipe.name, "settings": recipe.to_dict()},
        "run": {**run.record(), **digests},
        "history": result_to_plain(result)["history"],
    }
    return dataclasses.replace(run, bundle=dataclasses.replace(run.bundle, about=about))


def rows_digest(frame: pl.DataFrame, schema: Schema) -> str:
    """SHA-256 over what a schema reads of a table's rows, in their order: are they those of a former run?"""
    columns = dict.fromkeys([*schema.keys, *schema.columns, *(label.column for label in schema.labels)])
    text = frame.select([c for c in columns if c in frame.columns]).write_ndjson()
    return hashlib.sha256(text.encode()).hexdigest()


def _start(network: nn.Module, prepared: Prepared, recipe: Recipe, digests: Mapping[str, str]) -> WarmStart | None:
    if recipe.warm_start is None:
        return None
    bundle = Bundle.load(Path(recipe.warm_start))
    report = warm_start(network, prepared.encoder, bundle, labels=recipe.schema.labels)
    former = bundle.about.get("run", {})
    # What the bundle itself started from may have seen rows that the bundle's own run kept aside.
    before = former.get("warm_start", {"same_test_rows": True, "same_valid_rows": True})
    test, valid = (
        former.get(f"{part}_digest") == digests[f"{part}_digest"] and before.get(f"same_{part}_rows") is True
        for part in ("test", "valid")
    )
    return dataclasses.replace(report, same_test_rows=test, same_valid_rows=valid)


def _mapped(part: Part, folder: Path) -> Part:
    part.table.save(folder)
    return dataclasses.replace(part, table=EncodedTable.open(folder))


def _best_possible(part: Part) -> dict[str, float] | None:
    if PROBABILITY not in part.frame.columns:
        return None
    column = part.frame.get_column(PROBABILITY)
    if not (column.dtype.is_float() and column.is_between(0, 1, closed="none").all()):
        return None
    p = column.to_numpy()
    y = part.y if part.y.ndim == 1 else part.y[:, 0]
    return binary_metrics(y.astype(np.float64), np.log(p) - np.log1p(-p), group=part.group)
