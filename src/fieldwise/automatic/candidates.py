"""The candidates of `auto`: which models fit the task, the cost of an epoch of each, and their training."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fieldwise.automatic.budget import Probe
from fieldwise.automatic.problem import Problem
from fieldwise.automatic.trees import Trees
from fieldwise.data.prepare.prepared import Part
from fieldwise.errors import DataError
from fieldwise.evaluation import logloss_from_logits, rmse
from fieldwise.evaluation.calibration import Calibration, fit_platt
from fieldwise.models import parameter_count
from fieldwise.runs.fitting import FittedRecipe as Fitted
from fieldwise.runs.fitting import fit_recipe, refit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.schema.label import Label
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.callbacks import Callback

__all__ = [
    "ALL_ROWS",
    "CONSTANT",
    "TITLES",
    "TREES",
    "Candidate",
    "constant",
    "fit_on_all",
    "fit_one",
    "of_trees",
    "recipes_for",
    "resolved",
    "seconds_of",
    "seconds_on_all",
]

TITLES = {
    "lr": "LR",
    "fm": "FM",
    "afm": "AFM",
    "autoint+": "AutoInt+",
    "finalmlp": "FinalMLP",
    "dssm": "DSSM",
    "inttower": "IntTower",
}
TOWERS = ("dssm", "inttower")
TREES, CONSTANT = "LightGBM", "constant"
ALL_ROWS = "all rows"  # end of the title of a candidate trained on training and validation rows
FOLDS, FEWEST_TO_CALIBRATE = 5, 2_000
AGAIN_TIMES, AGAIN_SECONDS = 1.4, 2.0  # a second training has more rows, no evaluations, and encodes the rows again


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A trained model or baseline of the leaderboard; it has not seen the test rows.

    Args:
        title: title on the leaderboard.
        valid: scores of the validation rows [N]: logits, or numbers within the label's range. If there is a
            calibration, each score is calibrated by one that was fitted on other rows.
        value: logloss or RMSE of these scores.
        seconds: duration of its training.
        epochs: epochs of its training; for LightGBM, the number of trees.
        stopped: why its training ended.
        parameters: number of learned parameters.
        recipe: recipe that trains it again; None for baselines, which cannot be bundles.
        fitted: the trained network; None for baselines.
        trees: the LightGBM model, if it is one.
        level: score of the constant.
        calibration: calibration of its logits, if that improves validation rows that it was not fitted on.
        changes: settings that the search changed from the defaults, by dotted path.
    """

    title: str
    valid: np.ndarray
    value: float
    seconds: float = 0.0
    epochs: int = 0
    stopped: str = ""
    parameters: int = 1
    recipe: Recipe | None = None
    fitted: Fitted | None = None
    trees: Trees | None = None
    level: float = 0.0
    calibration: Calibration | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def score(self, part: Part, schema: Schema) -> np.ndarray:
        """Scores of a part's rows [N], calibrated if it has a calibration."""
        raw = self.raw(part, schema)
        return raw if self.calibration is None else self.calibration.logit(raw)

    @property
    def on_all_rows(self) -> bool:
        """Whether the network was trained on training and validation rows."""
        return self.fitted is not None and self.fitted.refit is not None

    def raw(self, part: Part, schema: Schema) -> np.ndarray:
        """Uncalibrated scores of a part's rows [N], within the label's range."""
        if self.fitted is not None:
            raw = _numbers(self.fitted, part)
        elif self.trees is not None:
            raw = self.trees.score(part, schema)
        else:
            raw = np.full(len(part.table), self.level)
        return _within(raw, schema.label)


def recipes_for(problem: Problem, stem: str) -> dict[str, Recipe]:
    """Recipes with default settings, by model name, of all models that can be trained on the schema's fields."""
    roles = {f.role for f in problem.schema.fields}
    towers = {"user", "item"} <= roles
    names = [name for name in TITLES if towers or name not in TOWERS]
    if len(problem.schema.fields) < 2:
        names = ["lr"]  # the others need pairs of fields
    numbers = problem.schema.label.task == "regression"
    own = {"inttower": {"cir_weight": 0.0}} if numbers else {}  # its contrastive loss needs a binary label
    return {name: problem.recipe({"name": name, **own.get(name, {})}, f"{stem}/{name}") for name in names}


def resolved(candidate: Candidate) -> Recipe:
    """The recipe of a candidate with all settings resolved that follow from the rows."""
    assert candidate.fitted is not None, "networks are fitted"
    return candidate.fitted.recipe


def seconds_of(recipe: Recipe, problem: Problem) -> float:
    """Estimated seconds of an epoch of a recipe, from a few steps.

    Errors:
        FieldwiseError: the recipe cannot be trained.
    """
    probe = Probe()
    fit_recipe(recipe, problem.prepared, (probe,))
    return probe.seconds_per_epoch


def fit_one(
    title: str, recipe: Recipe, problem: Problem, callback: Callback, changes: Mapping[str, Any] | None = None
) -> Candidate:
    """The candidate of a recipe: trains on training rows, and chooses the epoch on validation rows.

    Errors:
        FieldwiseError: the recipe cannot be trained.
    """
    began = time.perf_counter()
    fitted = fit_recipe(recipe, problem.prepared, (callback,))
    valid, value, calibration = _judged(_numbers(fitted, problem.prepared.valid), problem)
    return Candidate(
        title=title,
        valid=valid,
        value=value,
        calibration=calibration,
        seconds=time.perf_counter() - began,
        epochs=fitted.result.epochs,
        stopped=fitted.result.stopped,
        parameters=parameter_count(fitted.network),
        recipe=recipe,
        fitted=fitted,
        changes=changes or {},
    )


def seconds_on_all(one: Candidate) -> float:
    """Estimated seconds of `fit_on_all`, from the duration of the first training."""
    assert one.fitted is not None, "networks are fitted"
    result = one.fitted.result
    return AGAIN_TIMES * result.seconds * min(1.0, result.best.epoch / result.epochs) + AGAIN_SECONDS


def fit_on_all(one: Candidate, problem: Problem, callback: Callback) -> tuple[Candidate | None, str]:
    """Train a candidate again, on training and validation rows together, for its best number of epochs.

    It keeps the calibration of the first training, which was fitted on rows that the network had not learned from.

    Returns:
        The new candidate and an empty string; without it, what ended the training.
    """
    assert one.fitted is not None, "networks are fitted"
    recipe = one.fitted.recipe
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, refit=True))
    again = refit_recipe(dataclasses.replace(one.fitted, recipe=recipe), problem.prepared, (callback,))
    if again.refit is None:
        return None, again.result.stopped
    return dataclasses.replace(
        one,
        title=f"{one.title}, {ALL_ROWS}",
        seconds=one.seconds + again.refit.seconds,
        parameters=parameter_count(again.network),
        fitted=again,
    ), ""


def of_trees(trees: Trees, problem: Problem) -> Candidate:
    """LightGBM as a candidate."""
    valid, value, calibration = _judged(trees.score(problem.prepared.valid, problem.schema), problem)
    return Candidate(
        title=TREES,
        valid=valid,
        value=value,
        calibration=calibration,
        seconds=trees.seconds,
        epochs=trees.trees,
        stopped=trees.stopped,
        parameters=trees.leaves,
        trees=trees,
    )


def constant(problem: Problem) -> Candidate:
    """The constant baseline: the training rows' share of positives, or their mean."""
    mean = float(np.mean(problem.prepared.train.main, dtype=np.float64))
    level = float(np.log(mean) - np.log1p(-mean)) if problem.schema.label.task == "binary" else mean
    valid = np.full(len(problem.prepared.valid.table), level)
    return Candidate(title=CONSTANT, valid=valid, value=_loss(problem, valid), level=level)


def _judged(score: np.ndarray, problem: Problem) -> tuple[np.ndarray, float, Calibration | None]:
    """Validation scores within the label's range, their logloss or RMSE, and a calibration if it helps."""
    valid, calibration = _within(score, problem.schema.label), None
    if problem.schema.label.task == "binary":
        valid, calibration = calibrated(problem.prepared.valid.main, valid, seed=problem.settings["seed"])
    return valid, _loss(problem, valid), calibration


def calibrated(y: np.ndarray, z: np.ndarray, *, seed: int) -> tuple[np.ndarray, Calibration | None]:
    """Platt scaling of logits, if it helps: the calibrated logits, each by a fit on other rows, and the calibration.

    It helps if the logloss over five folds of the rows improves by more than twice the standard error of the
    difference. Otherwise the logits are returned unchanged, with None, and so they are with fewer than 2,000 rows: in
    a split by time these are the rows of few users, and on 658 rows of ML-1M by time a scaling that passed this test
    raised the test logloss of LR, FM, AFM and AutoInt+ by .013 to .019.

    Args:
        y: labels of validation rows, [N].
        z: logits of these rows, [N].
        seed: seed of the folds.
    """
    if len(y) < FEWEST_TO_CALIBRATE:
        return z, None
    folds = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    mapped = np.empty(len(y))
    try:
        for fold in range(FOLDS):
            here = folds == fold
            mapped[here] = fit_platt(y[~here], z[~here]).logit(z[here])
        whole = fit_platt(y, z)
    except DataError:  # all scores are equal, or the slope is not positive
        return z, None
    signs = np.where(y > 0.5, -1.0, 1.0)
    gain = np.logaddexp(0.0, signs * z) - np.logaddexp(0.0, signs * mapped)
    if gain.mean() <= 2 * gain.std(ddof=1) / np.sqrt(len(gain)):
        return z, None
    return mapped, whole


def _loss(problem: Problem, score: np.ndarray) -> float:
    y = np.asarray(problem.prepared.valid.main, dtype=np.float64)
    return logloss_from_logits(y, score) if problem.schema.label.task == "binary" else rmse(y, score)


def _numbers(fitted: Fitted, part: Part) -> np.ndarray:
    """A network's scores of a part's rows [N]: logits, or numbers in the label's unit."""
    table = part.table if fitted.refit is None else fitted.encoder.transform(part.frame)
    score = score_batches(fitted.network, table.batches(SCORING_BATCH)).astype(np.float64)
    return fitted.recipe.schema.label.predicted(score)


def _within(score: np.ndarray, label: Label) -> np.ndarray:
    return np.clip(score, *label.range) if label.task == "regression" and label.range is not None else score
