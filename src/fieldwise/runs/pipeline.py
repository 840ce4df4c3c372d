"""Running a recipe on prepared rows: train, evaluate and make a bundle."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.bundle.bundle import Bundle, sample_rows
from fieldwise.bundle.trained_rows import TRAINED_ROWS, trained_rows
from fieldwise.bundle.warm_start import WarmStart
from fieldwise.config import to_plain
from fieldwise.data.prepare.all_rows import encoded_by
from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.evaluation import binary_metrics
from fieldwise.models import parameter_count
from fieldwise.models.build import model_to_dict
from fieldwise.ops.devices import device_of
from fieldwise.runs.defaults import Chosen
from fieldwise.runs.environment import environment
from fieldwise.runs.fit_parts import Refit
from fieldwise.runs.fitting import FittedRecipe, fit_recipe, refit_recipe
from fieldwise.runs.identity import rows_digest
from fieldwise.runs.recipe import Recipe
from fieldwise.training.callbacks import Callback
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.reported import Reported
from fieldwise.training.result import FitResult, result_to_plain
from fieldwise.training.unfinished import Unfinished

__all__ = ["Run", "best_possible", "finish_run", "train_recipe"]

PROBABILITY = "true_probability"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One trained recipe.

    Args:
        best_possible: metrics of the main label's true probabilities on the test rows, if the data have them.
        warm_start: the report of the warm start, if there was one.
        chosen: settings chosen from the data, which are also in `recipe`.
        refit: the second training, on training and validation rows, if there was one.
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
    refit: Refit | None = None

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
        if self.refit is not None:
            record["refit"] = to_plain(self.refit)
        if self.best_possible is not None:
            record["best_possible"] = dict(self.best_possible)
        if self.warm_start is not None:
            record["warm_start"] = {"bundle": self.recipe.warm_start, **to_plain(self.warm_start)}
        return record


def train_recipe(
    recipe: Recipe, prepared: Prepared, callbacks: Sequence[Callback] = (), unfinished: Unfinished | None = None
) -> Run:
    """Train a recipe, restore the best weights, and evaluate validation rows and (once) test rows.

    With `training.refit` the network is trained again on training and validation rows before the test rows are
    evaluated. Given a folder of an unfinished run, checkpoints are written there, and the same run resumes from them.

    Errors:
        As for `fit_recipe`.
    """
    began = time.perf_counter()
    fitted = fit_recipe(recipe, prepared, callbacks, unfinished)
    if fitted.recipe.training.refit:
        fitted = refit_recipe(fitted, prepared, callbacks, unfinished)
    here = time.perf_counter() - began  # of a resumed run only the part in this process
    told = next((one for one in callbacks if isinstance(one, Reported)), None)
    return finish_run(prepared, fitted, spent=max(here, fitted.result.seconds), told=told)


def finish_run(prepared: Prepared, fitted: FittedRecipe, *, spent: float, told: Reported | None = None) -> Run:
    """The run of a trained network: its bundle and its metrics, with the test rows evaluated once.

    Args:
        prepared: its rows.
        fitted: the network with its recipe.
        spent: duration of training in seconds, with the part before an interruption.
        told: told the test rows that are scored.
    """
    began, recipe = time.perf_counter(), fitted.recipe
    parts = {"test": prepared.test, "valid": prepared.valid}
    digests = {f"{name}_digest": rows_digest(part.frame, recipe.schema) for name, part in parts.items()}
    network, result = fitted.network, fitted.result
    objective, by_loss = Objective.of(*recipe.schema.labels), recipe.training.monitor == "loss"
    table = encoded_by(fitted.encoder, prepared.test, prepared.encoder)
    if told is not None:
        told.scoring(len(table))
    scored = None if told is None else told.scored
    test = evaluate(network, table, objective, prepared.test.group, loss=by_loss, scored=scored)
    run = Run(
        recipe=recipe,
        bundle=Bundle(
            recipe.schema, fitted.encoder, recipe.model, network, sample_rows(recipe.schema, prepared.valid.frame)
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
        refit=fitted.refit,
    )
    about = {
        "recipe": {"name": recipe.name, "settings": recipe.to_dict()},
        "run": {**run.record(), **digests},
        "history": result_to_plain(result)["history"],
        "environment": environment(device_of(network)),
        TRAINED_ROWS: trained_rows(
            recipe.schema, prepared.train.frame, prepared.valid.frame, refit=fitted.refit is not None
        ),
    }
    return dataclasses.replace(run, bundle=dataclasses.replace(run.bundle, about=about))


def best_possible(part: Part) -> dict[str, float] | None:
    """Metrics of the true probabilities of a part's main label, if the rows have them."""
    if PROBABILITY not in part.frame.columns:
        return None
    column = part.frame.get_column(PROBABILITY)
    if not (column.dtype.is_float() and column.is_between(0, 1, closed="none").all()):
        return None
    p = column.to_numpy()
    return binary_metrics(part.main.astype(np.float64), np.log(p) - np.log1p(-p), group=part.group)
