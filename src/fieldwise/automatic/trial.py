"""The trials of a run: trained models and baselines, evaluated and calibrated on the validation rows, and the best."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fieldwise.automatic.budget import Clock
from fieldwise.automatic.settings import Note
from fieldwise.automatic.task import AutoTask
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.prepared import SplitPart
from fieldwise.data.table import mean_target
from fieldwise.display import counted
from fieldwise.errors import DataError
from fieldwise.evaluation.binary import row_losses
from fieldwise.evaluation.calibration import Calibration, fit_platt
from fieldwise.models import MODELS
from fieldwise.runs.pipeline import TrainingResult, fit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.training.callbacks import Callback
from fieldwise.training.history import STOPPED


def _title(name: str) -> str:
    return str(getattr(MODELS[name], "title", MODELS[name].__name__))


_NETWORKS = ("lr", "fm", "afm", "autoint+", "finalmlp", "dssm", "inttower")
TITLES = {name: _title(name) for name in _NETWORKS}
"""The title of each network on the leaderboard, the simplest first."""
TREES = {name: _title(name) for name in ("lightgbm", "catboost")}
"""The title of each model of trees."""
CONSTANT = "constant"
ALL_ROWS = "all rows"
"""The end of the title of a trial trained on training and validation rows."""
CALIBRATION_FOLDS = 5
LEAST_ROWS_TO_CALIBRATE = 2_000
REFIT_SECONDS_FACTOR = 1.4
"""A second training has more rows, no evaluations, and encodes the rows again."""
REFIT_EXTRA_SECONDS = 2.0
STANDARD_ERRORS_TO_GAIN = 1.0
"""By which a trial must improve on validation rows to count as better."""
LEAST_GAIN = 1e-4
"""The share of the constant's loss that a model must gain to have learned something."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """A trained model or baseline of the leaderboard; it has not seen the test rows.

    Args:
        title: its name on the leaderboard.
        raw: gives uncalibrated scores of a part [N]: logits, or numbers of the label's range.
        valid: scores of the validation rows [N], each calibrated by a fit on other rows, if at all.
        value: logloss or RMSE of these scores.
        calibration: of its logits, if that improves rows that it was not fitted on.
        trained: the trained model; None for the constant, which cannot be a bundle.
        seconds: duration of its training with scoring.
        epochs: of trees, their number.
        stopped: why its training ended.
        parameters: their number; of trees, that of their leaves.
        changes: settings that the search changed, by dotted path.
    """

    title: str
    raw: Callable[[SplitPart], np.ndarray]
    valid: np.ndarray
    value: float
    calibration: Calibration | None = None
    trained: TrainingResult | None = None
    seconds: float = 0.0
    epochs: int = 0
    stopped: str = ""
    parameters: int = 1
    changes: Mapping[str, Any] = field(default_factory=dict)

    def score(self, part: SplitPart) -> np.ndarray:
        """Scores of a part's rows [N], calibrated if it has a calibration."""
        raw = self.raw(part)
        return raw if self.calibration is None else self.calibration.logit(raw)

    @property
    def training(self) -> TrainingResult:
        """The training of a trial that is not the constant."""
        assert self.trained is not None, "the constant is not trained"
        return self.trained

    @property
    def unit(self) -> str:
        """What its epochs are called."""
        return "epoch" if self.trained is None else self.trained.history.unit

    @property
    def on_all_rows(self) -> bool:
        """Whether the network was trained on training and validation rows."""
        return self.trained is not None and self.trained.refit is not None


def constant(task: AutoTask) -> Trial:
    """The constant baseline: the training rows' share of positives, or their mean, by their weights in metrics."""
    train = task.prepared.train
    mean = mean_target(train.main, metric_weights(task, train))
    score = mean
    if task.schema.label.task == "binary":
        score = float(np.log(mean) - np.log1p(-mean))
    return evaluated_trial(CONSTANT, lambda part: np.full(len(part.table), score), task)


def fit_trial(title: str, recipe: Recipe, task: AutoTask, callback: Callback) -> Trial:
    """The trial of a recipe: trains on training rows, and chooses the epoch on validation rows."""
    began = time.perf_counter()
    rows = task.prepared
    trained = fit_recipe(recipe, rows.encoder, rows.train, rows.valid, (callback,))
    trial = evaluated_trial(
        title,
        partial(network_scores, trained, rows.encoder),
        task,
        trained=trained,
        epochs=trained.history.epochs,
        stopped=trained.history.stopped,
        parameters=trained.parameters,
    )
    # with scoring and calibration
    return dataclasses.replace(trial, seconds=time.perf_counter() - began)


def evaluated_trial(
    title: str, raw: Callable[[SplitPart], np.ndarray], task: AutoTask, **facts: Any
) -> Trial:
    """A trial with its validation scores, their logloss or RMSE, a calibration if it helps, and facts about it."""
    valid = raw(task.prepared.valid)
    calibration = None
    if task.schema.label.task == "binary":
        valid, calibration = calibrated(
            task.prepared.valid.main,
            valid,
            metric_weights(task, task.prepared.valid),
            seed=task.settings["seed"],
        )
    mean_loss = float(_validation_losses(task, valid).mean())
    value = mean_loss if task.metric == "logloss" else mean_loss**0.5
    return Trial(title=title, raw=raw, valid=valid, value=value, calibration=calibration, **facts)


def metric_weights(task: AutoTask, part: SplitPart) -> np.ndarray | None:
    """The weights of a part's rows in metrics [N], if they have some."""
    y = np.asarray(part.main, dtype=np.float64)
    return task.schema.label.log_weights(y, part.table.weight)


def calibrated(
    y: np.ndarray, z: np.ndarray, weight: np.ndarray | None = None, *, seed: int
) -> tuple[np.ndarray, Calibration | None]:
    """Platt scaling of logits, if it helps: the calibrated logits, each by a fit on other rows, and the calibration.

    It helps if the logloss over five folds of the rows improves by more than twice the standard
    error of the difference. Otherwise the logits are returned unchanged, with None, and so they are
    with fewer than 2,000 rows: in a split by time these are the rows of few users, and on 658 rows
    of ML-1M by time a scaling that passed this test raised the test logloss of LR, FM, AFM and
    AutoInt+ by .013 to .019.
    """
    if len(y) < LEAST_ROWS_TO_CALIBRATE:
        return z, None
    fold_of_row = np.random.default_rng(seed).permutation(len(y)) % CALIBRATION_FOLDS
    calibrated_z = np.empty(len(y))
    try:
        for fold in range(CALIBRATION_FOLDS):
            is_held_out = fold_of_row == fold
            fold_weight = None if weight is None else weight[~is_held_out]
            calibration = fit_platt(y[~is_held_out], z[~is_held_out], fold_weight)
            calibrated_z[is_held_out] = calibration.logit(z[is_held_out])
        calibration_of_all = fit_platt(y, z, weight)
    except DataError:  # all scores are equal, or the slope is not positive
        return z, None

    gain = row_losses(y > 0.5, z) - row_losses(y > 0.5, calibrated_z)
    if weight is not None:
        gain = gain * (weight / weight.mean())
    if gain.mean() <= 2 * gain.std(ddof=1) / np.sqrt(len(gain)):
        return z, None
    return calibrated_z, calibration_of_all


def network_scores(trained: TrainingResult, encoder: Encoder, part: SplitPart) -> np.ndarray:
    """A network's scores of the rows [N] of a part that this encoder has encoded."""
    scores: np.ndarray = trained.bundle.part_scores(part, encoder)[:, 0]
    return scores


def gains(task: AutoTask, new: Trial, old: Trial) -> bool:
    """Whether `new` is better on validation rows by more than the standard error of the paired difference."""
    gain = _validation_losses(task, old.valid) - _validation_losses(task, new.valid)
    error = 0.0
    if len(gain) > 1:
        error = float(gain.std(ddof=1)) / len(gain) ** 0.5
    is_significant = float(gain.mean()) > STANDARD_ERRORS_TO_GAIN * error
    return is_significant and new.value < old.value


def _validation_losses(task: AutoTask, score: np.ndarray) -> np.ndarray:
    """The loss of each validation row: of its logit, or the square of a regression's error; times its weight."""
    y = np.asarray(task.prepared.valid.main, dtype=np.float64)
    losses = row_losses(y > 0.5, score) if task.metric == "logloss" else np.square(score - y)
    weight = metric_weights(task, task.prepared.valid)
    return losses if weight is None else losses * (weight / weight.mean())


def seconds_on_all(trial: Trial) -> float:
    """Estimated seconds of a training on training and validation rows, from the duration of the first training."""
    history = trial.training.history
    share_until_best = 1.0  # also if time ended before the first epoch
    if history.epochs:
        share_until_best = min(1.0, history.best.epoch / history.epochs)
    return REFIT_SECONDS_FACTOR * history.seconds * share_until_best + REFIT_EXTRA_SECONDS


class Trials:
    """The models trained so far.

    `trials` begins with the constant; the others follow in the order of training. `skipped` has the
    reason for each model that was not trained, by its title, and `skipped_for_time` the titles of
    those that were skipped for time. `searched` counts the trials of the search, `on_all` is the
    chosen trial, trained again on training and validation rows, and `interrupted` tells whether
    Ctrl-C ended the run.
    """

    def __init__(self, task: AutoTask, clock: Clock, reserve: float, note: Note) -> None:
        self.task = task
        self.clock = clock
        self.reserve = reserve
        self.note = note
        self.trials: list[Trial] = [constant(task)]
        self.skipped: dict[str, str] = {}
        self.skipped_for_time: list[str] = []
        self.searched = 0
        self.on_all: Trial | None = None
        self.interrupted = False

    @property
    def left(self) -> float:
        """Seconds left for training."""
        return self.clock.left - self.reserve

    @property
    def models(self) -> list[Trial]:
        """Trials that can become a bundle, best on validation rows first."""
        models = [trial for trial in self.trials if trial.trained is not None]
        return sorted(models, key=lambda trial: trial.value)

    @property
    def chosen(self) -> Trial:
        """The simplest model that is not significantly worse than the best one, in the order of `TITLES`, then `TREES`.

        Trees come last, since networks have towers, exports and warm starts besides. If the best
        one is better than the constant, so must the simplest be. The order is fixed, so that the
        choice does not depend on how long each training took.
        """
        models = self.models
        best = models[0]
        candidates = [
            trial for trial in models if trial is best or not gains(self.task, best, trial)
        ]
        if self.learned(best):
            candidates = [trial for trial in candidates if self.learned(trial)]
        simplest_first = [*TITLES.values(), *TREES.values()]

        def complexity(trial: Trial) -> tuple[int, float]:
            title, _, _ = trial.title.partition(",")
            return simplest_first.index(title), trial.value

        return min(candidates, key=complexity)

    def learned(self, trial: Trial) -> bool:
        """Whether a trial is significantly better than the constant on validation rows, by at least `LEAST_GAIN`.

        Any step towards the rows' share of positives is a gain for all of them, and rounding can be
        one for a network that ended before its first step: neither counts.
        """
        guess = self.trials[0]
        return trial.value < (1 - LEAST_GAIN) * guess.value and gains(self.task, trial, guess)

    def add(self, trial: Trial, allowed: float) -> None:
        """Add a trial and report its validation metric and duration, with the seconds that it was allowed."""
        self.trials.append(trial)
        if trial.stopped == "interrupted":
            self.interrupted = True
        calibrated = ", calibrated" if trial.calibration is not None else ""
        self.note(
            f"{trial.title}: validation {self.task.metric} {trial.value:.4f}{calibrated}, {_training_words(trial)}, "
            f"{trial.seconds:.1f} s with scoring (its training may take {allowed:.1f} s)"
        )

    def skip(self, title: str, why: str, *, for_time: bool = False) -> None:
        """Report why a model is not trained."""
        self.skipped[title] = why
        if for_time:
            self.skipped_for_time.append(title)
        self.note(f"{title} is left out: {why}")


def _training_words(trial: Trial) -> str:
    """How long a trial was trained, and why it ended: `3 epochs (time limit reached)`."""
    if trial.stopped == "converged":
        return f"solved exactly with {counted(trial.epochs, 'prior')}"
    return f"{counted(trial.epochs, trial.unit)} ({STOPPED.get(trial.stopped, trial.stopped)})"
