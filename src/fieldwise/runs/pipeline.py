"""Training a recipe on prepared rows: fit, train again on all rows, evaluate on the test rows, make a bundle."""

import dataclasses
import hashlib
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

from fieldwise.bundle.about import About, RecipeFacts
from fieldwise.bundle.bundle import Bundle, sample_rows
from fieldwise.bundle.trained_rows import trained_rows
from fieldwise.bundle.warm_start import WarmStart, warm_start
from fieldwise.config import to_plain
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.prepared import (
    Prepared,
    SplitPart,
    encoded_by,
    encoded_together,
    groups_together,
)
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError
from fieldwise.evaluation import binary_metrics
from fieldwise.evaluation.classes import classes_of
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network
from fieldwise.models.mean_with_lr import as_former
from fieldwise.models.registry import source_digest
from fieldwise.models.serialise import model_to_dict
from fieldwise.models.trees import TreeSettings
from fieldwise.ops.devices import device_of, open_device, use_passive_openmp_wait
from fieldwise.runs.default_settings import ResolvedSetting, resolve, scaled_labels
from fieldwise.runs.environment import commit, environment
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.row_digests import rows_digest
from fieldwise.runs.training_facts import Facts
from fieldwise.schema import Label
from fieldwise.training.callbacks import Callback, OutOfTime
from fieldwise.training.checkpoint import CheckpointFolder, Checkpoints, check_same_on_all_ranks
from fieldwise.training.fit import Training
from fieldwise.training.history import History
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.progress import Reported
from fieldwise.training.settings import LBFGS
from fieldwise.training.tree_run import check_tree_settings
from fieldwise.version import __version__

TRUE_PROBABILITY_COLUMN = "true_probability"


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
        is_left_out = self.recipe.training.mean_with_lr and self.bundle.network_share == 1
        return self.bundle.encoder.layout.num_rows + 1 if is_left_out else 0

    def facts(self) -> dict[str, Any]:
        """What came out, as plain values for JSON: parameters, epochs, seconds, validation and test metrics."""
        best = self.history.best
        facts: dict[str, Any] = {
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
            facts["refit"] = {
                "rows": self.refit.rows,
                "epochs": self.refit.best.epoch,
                "seconds": round(self.refit.seconds, 3),
            }
        if self.chosen:
            facts["defaults"] = to_plain(self.chosen)
        if self.best_possible is not None:
            facts["best_possible"] = to_plain(self.best_possible)
        return facts

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

    seconds_in_this_process = time.perf_counter() - began  # of a resumed run only a part
    spent = max(seconds_in_this_process, trained.history.seconds)
    reporters = (callback for callback in callbacks if isinstance(callback, Reported))
    return evaluate_on_test(trained, prepared, spent=spent, reporter=next(reporters, None))


def resolve_defaults(
    recipe: Recipe, train: SplitPart, start: Bundle | None = None
) -> tuple[Recipe, tuple[ResolvedSetting, ...]]:
    """The recipe with complete settings, and those of them that were chosen from the training rows.

    Settings with `of_schema` take the fields of user and item ids from the schema. `start` is a
    warm start's bundle.
    """
    model = recipe.model
    if isinstance(model, TreeSettings):
        check_tree_settings(model, recipe.training, len(recipe.schema.labels))
    if hasattr(model, "of_schema"):
        model = model.of_schema(recipe.schema)
    if recipe.defaults == "fixed":
        return dataclasses.replace(recipe, model=model), ()

    former_network: nn.Module | None = None
    former_labels: dict[str, Label] = {}
    if start is not None:
        former_network = start.network
        former_labels = {label.name: label for label in start.schema.labels}

    facts = Facts.of(train.table, recipe.schema.labels, warm=start is not None)
    resolved = resolve(model, recipe.training, facts, former_network)
    schema, scales = scaled_labels(recipe.schema, facts, former_labels)
    complete = dataclasses.replace(
        recipe, schema=schema, model=resolved.model, training=resolved.training, defaults="fixed"
    )
    return complete, (*resolved.chosen, *scales)


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
    if recipe.warm_start is not None and isinstance(recipe.model, TreeSettings):
        raise ConfigError(
            f"{type(recipe.model).__name__} cannot start from another model's weights: leave out warm_start"
        )
    start = None if recipe.warm_start is None else Bundle.load(Path(recipe.warm_start))
    recipe, chosen = resolve_defaults(recipe, train, start)
    learns_lr = recipe.training.solves_lr or recipe.training.optimizer == LBFGS
    if start is not None and learns_lr:
        raise ConfigError(
            "a warm start keeps its bundle's first-order weights and its share in a mean with LR, which start_from_lr, "
            "mean_with_lr and optimizer = 'lbfgs' determine anew: leave out warm_start or that setting"
        )
    facts = cache(partial(_run_facts, recipe, start, encoder, train, valid))
    group = current_group()
    if group is not None:
        check_same_on_all_ranks(group, {**facts(), "commit": commit()})

    network, warm_start_report = _untrained(recipe, encoder, start)
    training = Training(
        network,
        train.table,
        valid.table,
        settings=recipe.training,
        objective=Objective.of(*recipe.schema.labels),
        seed=recipe.seed,
        train_group=train.group,
        valid_group=valid.group,
        callbacks=callbacks,
        # the second training begins with the first one's result
        checkpoints=_checkpoints(unfinished, "first", recipe, facts, always=recipe.training.refit),
        about={"model": model_to_dict(recipe.model)},
    )
    history = training.run()
    network = training.network  # with `mean_with_lr` another one
    bundle = Bundle(recipe.schema, encoder, recipe.model, network, pl.DataFrame())
    return TrainingResult(
        recipe=recipe,
        bundle=bundle,
        history=history,
        chosen=chosen,
        start=start,
        warm_start=warm_start_report,
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
    group = groups_together(train, valid, recipe.schema) if recipe.training.ranks else None
    facts = partial(_run_facts, recipe, trained.start, encoder, train, valid, first)
    network, _ = _untrained(recipe, encoder, trained.start)
    training = Training(
        network,
        table,
        None,
        settings=recipe.training,
        objective=Objective.of(*recipe.schema.labels),
        seed=recipe.seed,
        repeats=first,
        train_group=group,
        callbacks=callbacks,
        checkpoints=_checkpoints(unfinished, "second", recipe, facts),
        about={"model": model_to_dict(recipe.model)},
    )
    stopped: Literal["interrupted", "time"]
    try:
        refit = training.run()
    except KeyboardInterrupt:
        stopped = "interrupted"
    except OutOfTime:
        stopped = "time"
    else:
        bundle = dataclasses.replace(trained.bundle, encoder=encoder, network=training.network)
        return dataclasses.replace(trained, bundle=bundle, refit=refit)
    return dataclasses.replace(trained, history=dataclasses.replace(first, stopped=stopped))


def evaluate_on_test(
    trained: TrainingResult, prepared: Prepared, *, spent: float, reporter: Reported | None = None
) -> TrainingResult:
    """The result of a training with metrics of the test rows, evaluated once, and its bundle with all facts.

    `spent` are the seconds of the training, with the part before an interruption; `reporter` gets
    the rows scored.
    """
    began = time.perf_counter()
    recipe = trained.recipe
    digests = {
        "test_digest": rows_digest(prepared.test.frame, recipe.schema),
        "valid_digest": rows_digest(prepared.valid.frame, recipe.schema),
    }
    test_table = encoded_by(trained.bundle.encoder, prepared.test, prepared.encoder)
    if reporter is not None:
        reporter.scoring(len(test_table))
    test_metrics = evaluate(
        trained.bundle.network,
        test_table,
        Objective.of(*recipe.schema.labels),
        prepared.test.group,
        loss=recipe.training.monitor == "loss",
        scored=None if reporter is None else reporter.scored,
    )
    best_metrics = None
    if recipe.schema.label.task == "binary":
        best_metrics = best_possible(prepared.test, recipe.schema.label)
    evaluated = dataclasses.replace(
        trained,
        warm_start=_with_rows_compared(trained, digests),
        counts=prepared.counts,
        test=test_metrics,
        best_possible=best_metrics,
        seconds=spent + time.perf_counter() - began,
    )
    bundle = dataclasses.replace(
        trained.bundle,
        samples=sample_rows(recipe.schema, prepared.valid.frame),
        about=_about(evaluated, prepared, digests),
    )
    return dataclasses.replace(evaluated, bundle=bundle)


def _with_rows_compared(trained: TrainingResult, digests: Mapping[str, str]) -> WarmStart | None:
    """The report of the warm start, with whether its bundle's run had held out the same rows."""
    report = trained.warm_start
    start = trained.start
    if report is None or start is None:
        return report
    return dataclasses.replace(
        report,
        same_test_rows=start.about.held_out("test", digests["test_digest"]),
        same_valid_rows=start.about.held_out("valid", digests["valid_digest"]),
    )


def _about(result: TrainingResult, prepared: Prepared, digests: Mapping[str, str]) -> About:
    """What a bundle says about its run."""
    recipe = result.recipe
    schema = recipe.schema
    train = prepared.train
    label_classes = classes_of(train.frame, train.table.targets, schema)
    return About(
        recipe=RecipeFacts(name=recipe.name, settings=recipe.to_dict()),
        run={**result.facts(), **digests},
        history=tuple(to_plain(result.history.evaluations)),
        environment=environment(device_of(result.bundle.network)),
        classes=tuple(to_plain(label_classes)),
        train_rows=trained_rows(
            schema, train.frame, prepared.valid.frame, refit=result.refit is not None
        ),
    )


def best_possible(part: SplitPart, label: Label) -> dict[str, float] | None:
    """Metrics of the true probabilities of a part's main label, if the rows have them."""
    if TRUE_PROBABILITY_COLUMN not in part.frame.columns:
        return None
    column = part.frame.get_column(TRUE_PROBABILITY_COLUMN)
    are_probabilities = column.dtype.is_float() and column.is_between(0, 1, closed="none").all()
    if not are_probabilities:
        return None
    p = column.to_numpy()
    logit = np.log(p) - np.log1p(-p)
    y = part.main.astype(np.float64)
    weight = label.log_weights(y, part.table.weight)
    return binary_metrics(y, logit, group=part.group, weight=weight)


def _untrained(
    recipe: Recipe, encoder: Encoder, start: Bundle | None
) -> tuple[nn.Module, WarmStart | None]:
    """The network of a recipe before its training, and the report of its warm start if it has one."""
    use_passive_openmp_wait()
    labels = recipe.schema.labels
    network = build_network(recipe.model, encoder.layout, recipe.seed, labels=len(labels))
    if start is None:
        return network, None
    network = as_former(network, encoder.layout, start.network)
    return network, warm_start(network, encoder, start, labels=labels)


def _checkpoints(
    unfinished: CheckpointFolder | None,
    name: str,
    recipe: Recipe,
    facts: Callable[[], Mapping[str, Any]],
    *,
    always: bool = False,
) -> Checkpoints | None:
    """The checkpoints of a training of this name; None without a folder, and in all processes but the main one."""
    group = current_group()
    is_main_process = group is None or group.rank == 0
    if unfinished is None or not is_main_process:
        return None
    return Checkpoints(
        unfinished=unfinished,
        name=name,
        minutes=recipe.training.checkpoint_minutes,
        about=facts,
        always=always,
    )


def _run_facts(
    recipe: Recipe,
    start: Bundle | None,
    encoder: Encoder,
    train: SplitPart,
    valid: SplitPart,
    first: History | None = None,
) -> dict[str, Any]:
    """What processes that resume a training, or share it, must have in common: settings, rows and versions.

    For a second training, also the course of the first.
    """
    training: dict[str, Any] = to_plain(recipe.training)
    del training["checkpoint_minutes"]
    device = open_device(recipe.training.device)
    if device.type != "cpu":  # another device rounds otherwise
        training["device"] = device.type

    facts: dict[str, Any] = {
        "schema": to_plain(recipe.schema),
        "model": model_to_dict(recipe.model),
        "training": training,
        "seed": recipe.seed,
        "versions": {"fieldwise": __version__, "torch": torch.__version__},
        "training rows": _weighted_rows_digest(train, recipe),
        "validation rows": _weighted_rows_digest(valid, recipe),
    }
    if encoder.vector_digests:
        facts["vectors by id"] = encoder.vector_digests
    model_code = source_digest(recipe.model)
    if model_code is not None:
        facts["code of the model"] = model_code
    if start is not None:
        facts["warm_start"] = start.digest
    if first is not None:
        facts["first training"] = _course(first)
        if first.lr is not None:
            facts["first training of LR"] = _course(first.lr)
    return facts


def _weighted_rows_digest(part: SplitPart, recipe: Recipe) -> str:
    """The digest of a part's rows, followed by that of their weights if they have some."""
    digest = rows_digest(part.frame, recipe.schema)
    weight = part.table.weight
    if weight is None:
        return digest
    weight_digest = hashlib.sha256(np.ascontiguousarray(weight).data).hexdigest()
    return f"{digest} {weight_digest}"


def _course(history: History) -> list[list[float]]:
    """Epoch and learning rate of every evaluation of a training."""
    return [[evaluation.epoch, evaluation.learning_rate] for evaluation in history.evaluations]
