"""Training a recipe on prepared rows: fit, train again on all rows, evaluate on the test rows, make a bundle.

A bundle keeps digests of its run's rows, by which they are found again, and the machine and
software of the run.
"""

import dataclasses
import datetime
import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from torch import nn

from fieldwise.bundle.bundle import (
    TRAINED_ROWS,
    Bundle,
    WarmStart,
    sample_rows,
    trained_rows,
    warm_start,
)
from fieldwise.config import to_plain
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.prepared import Prepared, SplitPart, encoded_by, encoded_together
from fieldwise.data.prepare.row_fingerprints import digest_rows
from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.evaluation import binary_metrics
from fieldwise.evaluation.classes import classes_of
from fieldwise.models import parameter_count
from fieldwise.models.build import as_former, build_network, model_to_dict
from fieldwise.models.registry import as_settings, source_digest
from fieldwise.ops.devices import CPU, device_of, device_words, open_device, use_passive_openmp_wait
from fieldwise.runs.default_settings import Facts, ResolvedSetting, resolve, scaled_labels
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.training.callbacks import Callback, OutOfTime
from fieldwise.training.checkpoint import CheckpointFolder, Checkpoints, check_same_on_all_ranks
from fieldwise.training.fit import Training
from fieldwise.training.history import History
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.progress import Reported
from fieldwise.training.settings import LBFGS, TrainingSettings
from fieldwise.version import __version__

PROBABILITY = "true_probability"
BASELINE_EPOCHS = 20
LEAST_BASELINE_ROWS = 50_000  # training rows: about a second
BASELINE = "lr"  # the model, which other models of a run without fixed settings are compared with
UNCHECKED = "not checked: whether these are the {} rows of the training run, because the bundle has no digest of them"
PART_WORDS = {"train": "training", "valid": "validation", "test": "test"}
BASELINE_WORK = 0.1  # of the training's, counted in rows that are trained on


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a training.

    Args:
        recipe: the recipe with complete settings.
        bundle: the network with the best weights on the validation rows; after a second training,
            with that one's. It has no sample rows before the test rows are evaluated, so that a
            trial does not read raw rows.
        history: of the training with early stopping on validation rows.
        chosen: settings chosen from the data, which are also in `recipe`.
        start: the bundle of the warm start, if there was one.
        warm_start: the report of the warm start.
        refit: the history of the second training, on training and validation rows together
            (`training.refit`), if there was one.
        counts: numbers of rows, as of `Prepared`.
        test: metrics of the test rows; empty until they are evaluated.
        best_possible: metrics of the main label's true probabilities on the test rows, if the data
            have them.
        seconds: duration of training and evaluation.
    """

    recipe: Recipe
    bundle: Bundle
    history: History
    chosen: tuple[ResolvedSetting, ...] = ()
    start: Bundle | None = None
    warm_start: WarmStart | None = None
    refit: History | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    test: Mapping[str, float] = field(default_factory=dict)
    best_possible: Mapping[str, float] | None = None
    seconds: float = 0.0

    @property
    def valid(self) -> Mapping[str, float]:
        """Metrics of the validation rows, at the best evaluation of the first training."""
        return self.history.best.metrics

    @property
    def parameters(self) -> int:
        """The number of parameters of the network."""
        return parameter_count(self.bundle.network)

    @property
    def parameters_left_out(self) -> int:
        """The number of LR's parameters, if the validation rows left LR out of the mean (`mean_with_lr`); else 0."""
        left_out = self.recipe.training.mean_with_lr and self.bundle.network_share == 1
        return self.bundle.encoder.layout.num_rows + 1 if left_out else 0

    def facts(self) -> dict[str, Any]:
        """What came out, as plain values for JSON: parameters, epochs, seconds, validation and test metrics."""
        best = self.history.best
        facts = {
            "parameters": self.parameters,
            "parameters_left_out": self.parameters_left_out,
            "epochs": self.history.epochs,
            "best_epoch": best.epoch,
            "stopped": self.history.stopped,
            "seconds": round(self.seconds, 3),
            "seconds_per_epoch": self.history.seconds_per_epoch,
            "counts": dict(self.counts),
            "valid": dict(best.metrics),
            "test": dict(self.test),
            "network_share": self.bundle.network_share,
        }
        if self.warm_start is not None:
            facts["warm_start"] = {"bundle": self.recipe.warm_start, **to_plain(self.warm_start)}
        if self.refit is not None:
            best = self.refit.best
            seconds = round(self.refit.seconds, 3)
            facts["refit"] = {"rows": self.refit.rows, "epochs": best.epoch, "seconds": seconds}
        more = {"defaults": self.chosen or None, "best_possible": self.best_possible}
        return facts | {
            name: to_plain(result) for name, result in more.items() if result is not None
        }

    def record(self) -> dict[str, Any]:
        """Plain values for JSON: recipe, seeds, settings of model and training, and `facts`."""
        return {
            "recipe": self.recipe.name,
            "seed": self.recipe.seed,
            "data_seed": self.recipe.rows_seed,
            "model": model_to_dict(self.recipe.model),
            "training": to_plain(self.recipe.training),
            **self.facts(),
        }


def train_recipe(
    recipe: Recipe,
    prepared: Prepared,
    callbacks: Sequence[Callback] = (),
    unfinished: CheckpointFolder | None = None,
) -> TrainingResult:
    """Train a recipe, restore the best weights, and evaluate validation rows and (once) test rows.

    With `training.refit` the network is trained again on training and validation rows before the
    test rows are evaluated. Given a folder of an unfinished run, checkpoints are written there, and
    the same run resumes from them.

    Errors:
        As for `fit_recipe`.
    """
    began = time.perf_counter()
    trained = fit_recipe(
        recipe, prepared.encoder, prepared.train, prepared.valid, callbacks, unfinished
    )
    if trained.recipe.training.refit:
        trained = fit_again(trained, prepared.train, prepared.valid, callbacks, unfinished)
    here = time.perf_counter() - began  # of a resumed run only the part in this process
    reporter = next((one for one in callbacks if isinstance(one, Reported)), None)
    return evaluate_on_test(
        trained, prepared, spent=max(here, trained.history.seconds), reporter=reporter
    )


def resolve_defaults(
    recipe: Recipe, train: SplitPart, start: Bundle | None = None
) -> tuple[Recipe, tuple[ResolvedSetting, ...]]:
    """The recipe with complete settings, and those of them that were chosen from the training rows.

    Settings with `of_schema` take the fields of user and item ids from the schema. `start` is a
    warm start's bundle.
    """
    model = (
        recipe.model.of_schema(recipe.schema)
        if hasattr(recipe.model, "of_schema")
        else recipe.model
    )
    if recipe.defaults == "fixed":
        return dataclasses.replace(recipe, model=model), ()
    former = None if start is None else start.network
    facts = Facts.of(train.table, recipe.schema.labels, warm=start is not None)
    result = resolve(model, recipe.training, facts, former)
    before = {} if start is None else {one.name: one for one in start.schema.labels}
    schema, scales = scaled_labels(recipe.schema, facts, before)
    complete = dataclasses.replace(
        recipe, schema=schema, model=result.model, training=result.training, defaults="fixed"
    )
    return complete, (*result.chosen, *scales)


def fit_recipe(
    recipe: Recipe,
    encoder: Encoder,
    train: SplitPart,
    valid: SplitPart,
    callbacks: Sequence[Callback] = (),
    unfinished: CheckpointFolder | None = None,
) -> TrainingResult:
    """Train a recipe on the training rows and restore the best weights on the validation rows.

    Ctrl-C ends training early, as in `fieldwise.training.fit.Training`. PyTorch's idle threads
    sleep from now on (`fieldwise.ops.devices`). In a folder of an unfinished run checkpoints are
    written, and from there the same run resumes if it was killed; the second training has its own
    checkpoints there.

    Errors:
        BundleError: the recipe's warm_start is not a valid bundle.
        ConfigError: settings that do not fit the model or the task; a warm start without matching
            weights; other settings or rows than those of the unfinished run.
        TrainingError: the loss is not finite.
    """
    start = None if recipe.warm_start is None else Bundle.load(Path(recipe.warm_start))
    recipe, chosen = resolve_defaults(recipe, train, start)
    if start is not None and (recipe.training.solves_lr or recipe.training.optimizer == LBFGS):
        raise ConfigError(
            "a warm start keeps its bundle's first-order weights and its share in a mean with LR, which start_from_lr, "
            "mean_with_lr and optimizer = 'lbfgs' determine anew: leave out warm_start or that setting"
        )
    facts = cache(partial(_run_facts, recipe, start, train, valid))
    if (group := current_group()) is not None:
        check_same_on_all_ranks(group, {**facts(), "commit": commit()})
    network, started, history = _fit(
        recipe,
        encoder,
        start,
        train.table,
        valid.table,
        callbacks,
        unfinished,
        facts,
        group=valid.group,
    )
    bundle = Bundle(recipe.schema, encoder, recipe.model, network, pl.DataFrame())
    return TrainingResult(
        recipe=recipe,
        bundle=bundle,
        history=history,
        chosen=chosen,
        start=start,
        warm_start=started,
    )


def fit_again(
    trained: TrainingResult,
    train: SplitPart,
    valid: SplitPart,
    callbacks: Sequence[Callback] = (),
    unfinished: CheckpointFolder | None = None,
) -> TrainingResult:
    """Train a network of the same settings from the start, on the training and validation rows together.

    Its encoder is fitted on both. It takes as many epochs as the first training to its best
    evaluation, with the same learning rates; nothing is evaluated. After Ctrl-C, or `OutOfTime` of
    a callback, the first network is returned, and the result's `stopped` says so. A first training
    that was interrupted is returned as it is. Callbacks and checkpoints are as in `fit_recipe`.

    Errors:
        DataError: a column has other types of values in the two parts.
        TrainingError: the loss is not finite.
    """
    recipe = trained.recipe
    first = trained.history
    if first.stopped == "interrupted":
        return trained
    encoder, table = encoded_together(train, valid, recipe.schema)
    facts = partial(_run_facts, recipe, trained.start, train, valid, first)
    try:
        network, _, again = _fit(
            recipe, encoder, trained.start, table, first, callbacks, unfinished, facts
        )
    except (KeyboardInterrupt, OutOfTime) as e:
        stopped: Literal["interrupted", "time"] = (
            "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
        )
        return dataclasses.replace(trained, history=dataclasses.replace(first, stopped=stopped))
    return dataclasses.replace(
        trained,
        bundle=dataclasses.replace(trained.bundle, encoder=encoder, network=network),
        refit=again,
    )


def evaluate_on_test(
    trained: TrainingResult, prepared: Prepared, *, spent: float, reporter: Reported | None = None
) -> TrainingResult:
    """The result of a training with metrics of the test rows, evaluated once, and its bundle with all facts.

    `spent` are the seconds of the training, with the part before an interruption; `reporter` gets
    the rows scored.
    """
    began = time.perf_counter()
    recipe = trained.recipe
    bundle = trained.bundle
    parts = {"test": prepared.test, "valid": prepared.valid}
    digests = {
        f"{name}_digest": rows_digest(part.frame, recipe.schema) for name, part in parts.items()
    }
    objective = Objective.of(*recipe.schema.labels)
    by_loss = recipe.training.monitor == "loss"
    table = encoded_by(bundle.encoder, prepared.test, prepared.encoder)
    if reporter is not None:
        reporter.scoring(len(table))
    scored = None if reporter is None else reporter.scored
    test = evaluate(
        bundle.network, table, objective, prepared.test.group, loss=by_loss, scored=scored
    )
    started = trained.warm_start
    if started is not None and trained.start is not None:
        test_rows, valid_rows = (
            _held_out(trained.start, name, digests[f"{name}_digest"]) for name in parts
        )
        started = dataclasses.replace(started, same_test_rows=test_rows, same_valid_rows=valid_rows)
    done = dataclasses.replace(
        trained,
        warm_start=started,
        counts=prepared.counts,
        test=test,
        best_possible=best_possible(prepared.test)
        if recipe.schema.label.task == "binary"
        else None,
        seconds=spent + time.perf_counter() - began,
    )
    train = prepared.train
    about = {
        "recipe": {"name": recipe.name, "settings": recipe.to_dict()},
        "run": {**done.facts(), **digests},
        "history": to_plain(done.history.evaluations),
        "environment": environment(device_of(bundle.network)),
        "classes": [
            to_plain(classes)
            for classes in classes_of(train.frame, train.table.targets, recipe.schema)
        ],
        TRAINED_ROWS: trained_rows(
            recipe.schema, prepared.train.frame, prepared.valid.frame, refit=done.refit is not None
        ),
    }
    samples = sample_rows(recipe.schema, prepared.valid.frame)
    return dataclasses.replace(
        done, bundle=dataclasses.replace(bundle, samples=samples, about=about)
    )


def best_possible(part: SplitPart) -> dict[str, float] | None:
    """Metrics of the true probabilities of a part's main label, if the rows have them."""
    if PROBABILITY not in part.frame.columns:
        return None
    column = part.frame.get_column(PROBABILITY)
    if not (column.dtype.is_float() and column.is_between(0, 1, closed="none").all()):
        return None
    p = column.to_numpy()
    return binary_metrics(part.main.astype(np.float64), np.log(p) - np.log1p(-p), group=part.group)


def baseline_rows(prepared: Prepared, epochs: int) -> int:
    """The number of training rows of the baseline: its epochs read at most a tenth of what the training has read.

    Tables of at most 50,000 training rows are read whole.
    """
    rows = len(prepared.train.table)
    return min(rows, max(LEAST_BASELINE_ROWS, int(BASELINE_WORK * epochs * rows / BASELINE_EPOCHS)))


def fit_baseline(recipe: Recipe, prepared: Prepared, rows: int) -> Mapping[str, float]:
    """The metrics on all validation rows of the baseline, with default settings and the main label's task.

    The test rows are not used. With more than `rows` training rows it trains and stops early on
    samples of as many: a random row of each of as many equal stretches, and those of the least and
    the largest targets.
    """
    model = as_settings(BASELINE)
    training = TrainingSettings(epochs=BASELINE_EPOCHS)
    baseline = dataclasses.replace(
        recipe, model=model, training=training, defaults="data", warm_start=None
    )
    samples = []
    for part in (prepared.train, prepared.valid):
        every = len(part.table)
        sample = part
        if every > rows:
            ends = np.linspace(0, every, rows + 1).astype(np.int64)
            drawn = np.random.default_rng(recipe.seed).integers(ends[:-1], ends[1:])
            # so that both classes are there
            extremes = np.concatenate([part.y.argmin(axis=0), part.y.argmax(axis=0)])
            numbers = np.unique(np.concatenate([drawn, extremes]))
            group = None if part.group is None else part.group[numbers]
            raw = partial(part.frame.__getitem__, numbers)
            sample = dataclasses.replace(
                part, rows=raw, table=part.table.take(numbers), group=group
            )
        samples.append(sample)
    train, valid = samples
    trained = fit_recipe(baseline, prepared.encoder, train, valid)
    if valid is prepared.valid:
        return trained.valid
    objective = Objective.of(*trained.recipe.schema.labels)
    return evaluate(trained.bundle.network, prepared.valid.table, objective, prepared.valid.group)


def _fit(
    recipe: Recipe,
    encoder: Encoder,
    start: Bundle | None,
    train: EncodedTable,
    valid: EncodedTable | History,
    callbacks: Sequence[Callback],
    unfinished: CheckpointFolder | None,
    facts: Callable[[], Mapping[str, Any]],
    *,
    group: np.ndarray | None = None,
) -> tuple[nn.Module, WarmStart | None, History]:
    """A trained network, the report of its warm start, and its training.

    With the first training's result in place of validation rows it is the second. Process 0 writes
    checkpoints.
    """
    labels = recipe.schema.labels
    second = isinstance(valid, History)
    world = current_group()
    checkpoints = None
    network = build_network(recipe.model, encoder.layout, recipe.seed, labels=len(labels))
    network = as_former(network, encoder.layout, None if start is None else start.network)
    started = None if start is None else warm_start(network, encoder, start, labels=labels)
    use_passive_openmp_wait()
    if unfinished is not None and (world is None or world.rank == 0):
        checkpoints = Checkpoints(
            place=unfinished,
            name="second" if second else "first",
            minutes=recipe.training.checkpoint_minutes,
            about=facts,
            # the second training begins with the first one's result
            always=recipe.training.refit and not second,
        )
    training = Training(
        network,
        train,
        valid,
        settings=recipe.training,
        objective=Objective.of(*labels),
        seed=recipe.seed,
        valid_group=group,
        callbacks=callbacks,
        about={"model": model_to_dict(recipe.model)},
        checkpoints=checkpoints,
    )
    history = training.run()
    return training.network, started, history


def _run_facts(
    recipe: Recipe,
    start: Bundle | None,
    train: SplitPart,
    valid: SplitPart,
    first: History | None = None,
) -> dict[str, Any]:
    """What processes that resume a training, or share it, must have in common: settings, rows and versions.

    For a second training, also the course of the first.
    """
    training: dict[str, Any] = to_plain(recipe.training)
    del training["checkpoint_minutes"]
    if (device := open_device(recipe.training.device)).type != "cpu":
        training["device"] = device.type  # another one rounds otherwise
    facts: dict[str, Any] = {
        "schema": to_plain(recipe.schema),
        "model": model_to_dict(recipe.model),
        "training": training,
        "seed": recipe.seed,
        "versions": {"fieldwise": __version__, "torch": torch.__version__},
    }
    for name, part in (("training rows", train), ("validation rows", valid)):
        facts[name] = rows_digest(part.frame, recipe.schema)
        weight = part.table.weight
        if weight is not None:
            facts[name] += f" {hashlib.sha256(np.ascontiguousarray(weight).data).hexdigest()}"
    if (code := source_digest(recipe.model)) is not None:
        facts["code of the model"] = code
    if start is not None:
        facts["warm_start"] = start.digest
    if first is not None:
        facts["first training"] = [[e.epoch, e.learning_rate] for e in first.evaluations]
        if first.lr is not None:
            facts["first training of LR"] = [
                [e.epoch, e.learning_rate] for e in first.lr.evaluations
            ]
    return facts


def _held_out(bundle: Bundle, name: str, digest: str) -> bool:
    """Whether the run of a bundle, and those that it started from, held out the rows of this digest."""
    former = bundle.about.get("run", {})
    if (name == "valid" and "refit" in former) or former.get(f"{name}_digest") != digest:
        return False
    return "warm_start" not in former or former["warm_start"].get(f"same_{name}_rows") is True


def rows_digest(frame: pl.DataFrame, schema: Schema) -> str:
    """SHA-256 over the columns that a schema reads of a table's rows, in order."""
    columns = dict.fromkeys(
        [*schema.row_keys, *schema.columns, *(label.column for label in schema.labels)]
    )
    return digest_rows(frame.select([c for c in columns if c in frame.columns]))


def scored_rows_digest(frame: pl.DataFrame, recipe: Recipe) -> str:
    """A digest that identifies rows independently of a recipe's fields: by keys and labels, or all raw columns."""
    schema = recipe.schema
    made = {recipe.history.column} if recipe.history is not None else set()
    made |= set(recipe.target_encoding.made) if recipe.target_encoding is not None else set()
    named = (
        [*schema.row_keys, *(label.column for label in schema.labels)]
        if schema.row_keys
        else frame.columns
    )
    return digest_rows(
        frame.select([c for c in dict.fromkeys(named) if c in frame.columns and c not in made])
    )


def recipe_of(bundle: Bundle, folder: Path, instead: str) -> Recipe:
    """The recipe of a bundle, from a folder; an error ends with the advice `instead`.

    Errors:
        BundleError: it was not made by a recipe.
    """
    saved = bundle.about.get("recipe")
    if not isinstance(saved, dict) or "settings" not in saved:
        raise BundleError(
            f"the bundle {folder} was not made by a recipe, so its rows are unknown: {instead}"
        )
    return Recipe.from_dict(
        {"defaults": "fixed", **saved["settings"]}, str(saved.get("name", folder))
    )


def rows_of_run(
    bundle: Bundle, recipe: Recipe, prepared: Prepared, part: Literal["valid", "test"], instead: str
) -> tuple[pl.DataFrame, bool]:
    """The raw rows of one part of a run, and whether they are verified to be those of the run.

    Errors:
        DataError: there are none, the network was trained on them, or the data have changed since;
            the message ends with `instead`.
    """
    if part == "valid" and "refit" in bundle.about.get("run", {}):
        raise DataError(
            f"the network was trained on the recipe's validation rows too (training.refit): {instead}"
        )
    frame = getattr(prepared, part).frame
    word = PART_WORDS[part]
    if frame.height == 0:
        raise DataError(f"the recipe {recipe.name} has no {word} rows: {instead}")
    digest = bundle.about.get("run", {}).get(f"{part}_digest")
    if digest is not None and digest != rows_digest(frame, recipe.schema):
        raise DataError(
            f"the recipe's {word} rows must be those of the training run, but the data of {recipe.name} have changed "
            f"since: restore them, or {instead}"
        )
    return frame, digest is not None


def environment(device: torch.device = CPU) -> dict[str, Any]:
    """Date (UTC), machine (processor and cores), device, threads, versions and commit, as plain values."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = (
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if "model name" in line
        )
        processor = next(models, processor)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{processor}, {os.cpu_count()} cores",
        "device": device_words(device),
        "threads": torch.get_num_threads(),
        "fieldwise": __version__,
        "torch": torch.__version__,
        "commit": commit(),
    }


@cache
def commit() -> str:
    """The running commit, with `+` if the tree has changes; `unknown` if the package is not a checkout."""
    commands = (
        ["ls-files", Path(__file__).name],
        ["rev-parse", "--short", "HEAD"],
        ["status", "--porcelain"],
    )
    options: dict[str, Any] = {
        "cwd": Path(__file__).parent,
        "check": True,
        "capture_output": True,
        "text": True,
    }
    try:
        known, head, changes = (
            subprocess.run(["git", *one], **options).stdout.strip() for one in commands
        )
        # an installed copy inside another checkout
        return head + ("+" if changes else "") if known else "unknown"
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
