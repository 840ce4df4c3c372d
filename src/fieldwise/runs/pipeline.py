"""A recipe from data to bundle: load, prepare, train, evaluate. What the command line and the demo call."""

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from torch import nn

from fieldwise.bundle.bundle import Bundle, sample_rows
from fieldwise.bundle.trained_rows import TRAINED_ROWS, trained_rows
from fieldwise.bundle.warm_start import WarmStart, warm_start
from fieldwise.config import nearest, to_plain
from fieldwise.data.prepare.files import Inputs, data_key, read_prepared, write_prepared
from fieldwise.data.prepare.prepared import PARTS, Part, Prepared, prepare
from fieldwise.data.read.lines import naming_lines
from fieldwise.data.read.public import PUBLIC_SETS
from fieldwise.data.read.simulated.log import simulate
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation import binary_metrics
from fieldwise.models import LR, parameter_count
from fieldwise.models.build import build_network, model_to_dict
from fieldwise.runs.defaults import Chosen, Facts, resolve
from fieldwise.runs.environment import environment
from fieldwise.runs.recipe import DataSettings, Recipe
from fieldwise.schema import Schema
from fieldwise.storage.cache import Cache
from fieldwise.storage.digest import digest_rows, first_rows_digest
from fieldwise.training.fit import FitResult
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.progress import Progress
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.train import result_to_plain, train_network

__all__ = [
    "Fitted",
    "Run",
    "best_possible",
    "data_inputs",
    "data_settings",
    "finish_run",
    "fit_recipe",
    "load_frame",
    "lr_on_valid",
    "prepare_recipe",
    "rows_digest",
    "same_rows",
    "scored_rows_digest",
    "settled",
    "train_recipe",
]

PROBABILITY = "true_probability"
LR_EPOCHS = 20


@dataclass(frozen=True, kw_only=True)
class Run:
    """One trained recipe.

    Args:
        best_possible: metrics of the main label's true probabilities on the test rows, where the data know them.
        warm_start: what the network started from, where the recipe names a bundle.
        chosen: settings that followed from the data; `recipe` has them as numbers.
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
    chosen: tuple[Chosen, ...] = ()

    def record(self) -> dict[str, Any]:
        """Plain values for JSON: recipe, parameters, epochs, seconds, validation and test metrics, settings."""
        record = {
            "recipe": self.recipe.name,
            "seed": self.recipe.seed,
            "data_seed": self.recipe.rows_seed,
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
        if self.chosen:
            record["defaults"] = to_plain(self.chosen)
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
        return as_table(Path(data.path), separator=data.separator, encoding=data.encoding, columns=data.columns)
    if data.name == "simulated":
        return simulate(data.rows, users=data.users, items=data.items, seed=data.seed)
    if data.name not in PUBLIC_SETS:
        known = nearest(str(data.name), [*PUBLIC_SETS, "simulated"])
        raise ConfigError(f"data.name must be a known data set, found {data.name!r}: {known}")
    return PUBLIC_SETS[data.name].read(data_dir)


def prepare_recipe(
    recipe: Recipe, data_dir: Path, frame: TableLike | None = None, *, cache: Cache | None = None
) -> Prepared:
    """Load, split and encode a recipe's data; the encoded columns are mapped from disk.

    Args:
        recipe: data, schema, split, seed, negatives, history and mean labels decide; model and training do not.
        data_dir: the folder of public data sets.
        frame: the raw table, where it is read already.
        cache: where the same data by the same settings were prepared before, they are opened, else kept. A given
            `frame` is never looked for there.
    """
    if cache is None or frame is not None:
        return _prepared_anew(recipe, data_dir) if frame is None else _prepare(recipe, as_table(frame))
    paths = _data_files(recipe.data, data_dir)
    try:
        inputs = Inputs.of(paths)
    except OSError:
        return _prepared_anew(recipe, data_dir)  # whose error says what is absent
    key = data_key(data_settings(recipe), inputs)
    found = cache.get(key, read_prepared)
    if found is not None:
        return found
    prepared = _prepared_anew(recipe, data_dir)
    if inputs.unchanged(paths):  # else nobody knows which state of the files was read
        counts = ", ".join(f"{prepared.counts[f'{name}_rows']:,} {name}" for name in PARTS)
        short = Path(recipe.name).name if recipe.name.endswith(".toml") else recipe.name
        cache.put(key, f"{short}, {counts} rows", lambda folder: write_prepared(prepared, folder))
    return prepared


def _prepared_anew(recipe: Recipe, data_dir: Path) -> Prepared:
    data = recipe.data
    frame = load_frame(data, data_dir)
    if data.path is None:
        return _prepare(recipe, frame)
    with naming_lines(Path(data.path), separator=data.separator, encoding=data.encoding, columns=data.columns):
        return _prepare(recipe, frame)


def _prepare(recipe: Recipe, frame: pl.DataFrame) -> Prepared:
    prepared = prepare(
        frame,
        recipe.schema,
        split=recipe.split,
        seed=recipe.rows_seed,
        negatives=recipe.negatives,
        history=recipe.history,
        mean_labels=recipe.mean_labels,
    )
    # A mapping outlives the name of its file; where a system holds on to mapped files, its own cleaning finds them.
    with tempfile.TemporaryDirectory(prefix="fieldwise-", ignore_cleanup_errors=True) as folder:
        return dataclasses.replace(
            prepared,
            train=_mapped(prepared.train, Path(folder) / "train"),
            valid=_mapped(prepared.valid, Path(folder) / "valid"),
            test=_mapped(prepared.test, Path(folder) / "test"),
        )


def data_inputs(recipe: Recipe, data_dir: Path) -> Inputs:
    """The files that a recipe reads, digested.

    Errors:
        DataError: one cannot be read.
    """
    files = _data_files(recipe.data, data_dir)
    if not files and recipe.data.name in PUBLIC_SETS:
        load_frame(recipe.data, data_dir)  # whose error says what is absent
    try:
        return Inputs.of(files)
    except OSError as e:
        raise DataError(f"recipe {recipe.name}: cannot read {e.filename}: {e.strerror or e}") from None


def _data_files(data: DataSettings, data_dir: Path) -> dict[str, Path]:
    """The files that `load_frame` may read, by names that do not tell where they lie."""
    if data.path is not None:
        return {f"data{''.join(Path(data.path).suffixes)}": Path(data.path)}
    if data.name not in PUBLIC_SETS:
        return {}
    folder = data_dir / PUBLIC_SETS[data.name].folder
    paths = {*folder.rglob("*"), *folder.glob("*/*")}  # rglob passes by what lies in folders that are links
    return {str(path.relative_to(folder)): path for path in paths if path.is_file()}


def data_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that decide what prepared data hold, as plain values."""
    data = to_plain(dataclasses.replace(recipe.data, path=None if recipe.data.path is None else "file"))
    parts = {
        "split": recipe.split,
        "negatives": recipe.negatives,
        "history": recipe.history,
        "mean_labels": recipe.mean_labels,
    }
    plain = {name: None if settings is None else to_plain(settings) for name, settings in parts.items()}
    return {**plain, "data": data, "schema": recipe.schema.to_dict(), "seed": recipe.rows_seed}


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained network; the test rows were not looked at.

    Args:
        recipe: with every setting as a number.
        chosen: those of them that followed from the data.
    """

    recipe: Recipe
    network: nn.Module
    result: FitResult
    warm_start: WarmStart | None = None
    chosen: tuple[Chosen, ...] = ()


def settled(recipe: Recipe, prepared: Prepared) -> tuple[Recipe, tuple[Chosen, ...]]:
    """The recipe with every setting of model and training as a number, and those that follow from the training rows."""
    if recipe.defaults == "fixed":
        return recipe, ()
    found = resolve(recipe.model, recipe.training, Facts.of(prepared.train.table, recipe.schema.labels))
    return dataclasses.replace(recipe, model=found.model, training=found.training, defaults="fixed"), found.chosen


def fit_recipe(recipe: Recipe, prepared: Prepared, progress: Progress | None = None) -> Fitted:
    """Train on the training rows and restore the weights that were best on the validation rows.

    Errors:
        BundleError: the recipe's warm_start is no bundle that can be read. ConfigError: nothing of it fits the model.
        TrainingError: the loss is not finite.
    """
    recipe, chosen = settled(recipe, prepared)
    labels = recipe.schema.labels
    network = build_network(recipe.model, prepared.encoder.layout, recipe.seed, labels=len(labels))
    started = _start(network, prepared, recipe)
    result = train_network(
        network,
        prepared.train,
        prepared.valid,
        labels=labels,
        settings=recipe.training,
        seed=recipe.seed,
        progress=progress,
    )
    return Fitted(recipe=recipe, network=network, result=result, warm_start=started, chosen=chosen)


def lr_on_valid(recipe: Recipe, prepared: Prepared) -> Mapping[str, float]:
    """Metrics of a logistic, or linear, regression by its default settings on a recipe's validation rows.

    What a model of fields and their interactions should surpass; the test rows are not looked at.
    """
    plain = dataclasses.replace(
        recipe, model=LR(), training=TrainingSettings(epochs=LR_EPOCHS), warm_start=None, defaults="data"
    )
    return fit_recipe(plain, prepared).result.best.metrics


def train_recipe(recipe: Recipe, prepared: Prepared, progress: Progress | None = None) -> Run:
    """Train, restore the best weights, evaluate validation and, once, test rows.

    Errors:
        As `fit_recipe`.
    """
    began = time.perf_counter()
    fitted = fit_recipe(recipe, prepared, progress)
    return finish_run(prepared, fitted, spent=time.perf_counter() - began)


def finish_run(prepared: Prepared, fitted: Fitted, *, spent: float) -> Run:
    """What a trained network makes: its bundle and its record, with the test rows evaluated, once.

    Args:
        prepared: its rows.
        fitted: the network, with the recipe that it was trained by.
        spent: seconds that training took.
    """
    began, recipe = time.perf_counter(), fitted.recipe
    parts = {"test": prepared.test, "valid": prepared.valid}
    digests = {f"{name}_digest": rows_digest(part.frame, recipe.schema) for name, part in parts.items()}
    network, result = fitted.network, fitted.result
    objective, by_loss = Objective.of(*recipe.schema.labels), recipe.training.monitor == "loss"
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
        best_possible=best_possible(prepared.test) if recipe.schema.label.task == "binary" else None,
        counts=prepared.counts,
        seconds=spent + time.perf_counter() - began,
        warm_start=fitted.warm_start,
        chosen=fitted.chosen,
    )
    about = {
        "recipe": {"name": recipe.name, "settings": recipe.to_dict()},
        "run": {**run.record(), **digests},
        "history": result_to_plain(result)["history"],
        "environment": environment(),
        TRAINED_ROWS: trained_rows(recipe.schema, prepared.train.frame, prepared.valid.frame),
    }
    return dataclasses.replace(run, bundle=dataclasses.replace(run.bundle, about=about))


def rows_digest(frame: pl.DataFrame, schema: Schema) -> str:
    """SHA-256 over what a schema reads of a table's rows, in their order: are they those of a former run?"""
    return digest_rows(_read_columns(frame, schema))


def scored_rows_digest(frame: pl.DataFrame, recipe: Recipe) -> str:
    """A digest of which rows these are, whatever fields a recipe reads: by keys and labels, or by all raw columns."""
    schema = recipe.schema
    made = {recipe.history.column} if recipe.history is not None else set()
    made |= set(recipe.mean_labels.made) if recipe.mean_labels is not None else set()
    named = [*schema.keys, *(label.column for label in schema.labels)] if schema.keys else frame.columns
    return digest_rows(frame.select([c for c in dict.fromkeys(named) if c in frame.columns and c not in made]))


def same_rows(digest: object, frame: pl.DataFrame, schema: Schema) -> bool:
    """Whether `rows_digest`, of this or an older version, gave `digest` for these rows."""
    if not isinstance(digest, str):
        return False
    if ":" in digest:
        return digest == rows_digest(frame, schema)
    return digest == first_rows_digest(_read_columns(frame, schema))


def _read_columns(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    columns = dict.fromkeys([*schema.keys, *schema.columns, *(label.column for label in schema.labels)])
    return frame.select([c for c in columns if c in frame.columns])


def _start(network: nn.Module, prepared: Prepared, recipe: Recipe) -> WarmStart | None:
    if recipe.warm_start is None:
        return None
    bundle = Bundle.load(Path(recipe.warm_start))
    report = warm_start(network, prepared.encoder, bundle, labels=recipe.schema.labels)
    former = bundle.about.get("run", {})
    # What the bundle itself started from may have seen rows that the bundle's own run kept aside.
    before = former.get("warm_start", {"same_test_rows": True, "same_valid_rows": True})
    test, valid = (
        same_rows(former.get(f"{name}_digest"), part.frame, recipe.schema) and before.get(f"same_{name}_rows") is True
        for name, part in (("test", prepared.test), ("valid", prepared.valid))
    )
    return dataclasses.replace(report, same_test_rows=test, same_valid_rows=valid)


def _mapped(part: Part, folder: Path) -> Part:
    part.table.save(folder)
    return dataclasses.replace(part, table=EncodedTable.open(folder))


def best_possible(part: Part) -> dict[str, float] | None:
    """Metrics of the true probabilities of a part's main label, as scores, where the rows know them."""
    if PROBABILITY not in part.frame.columns:
        return None
    column = part.frame.get_column(PROBABILITY)
    if not (column.dtype.is_float() and column.is_between(0, 1, closed="none").all()):
        return None
    p = column.to_numpy()
    y = part.y if part.y.ndim == 1 else part.y[:, 0]
    return binary_metrics(y.astype(np.float64), np.log(p) - np.log1p(-p), group=part.group)
