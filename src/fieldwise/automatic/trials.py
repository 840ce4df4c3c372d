"""Training within the time budget: all models and LightGBM with defaults, then a short search, without test rows."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fieldwise.automatic.settings import Clock, Note
from fieldwise.automatic.task import AutoTask
from fieldwise.data.encode.columns import as_number
from fieldwise.data.prepare.prepared import SplitPart
from fieldwise.display import counted
from fieldwise.errors import DataError, FieldwiseError, MissingExtraError
from fieldwise.evaluation.binary import row_losses
from fieldwise.evaluation.calibration import Calibration, fit_platt
from fieldwise.evaluation.metrics import METRICS
from fieldwise.models import MODELS
from fieldwise.runs.pipeline import TrainingResult, fit_again, fit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.setting_paths import with_values
from fieldwise.runs.tune import Climb
from fieldwise.schema import Schema
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep
from fieldwise.training.history import STOPPED, Evaluation

LEAST_EPOCHS = 3.0  # a model with time for fewer epochs is not trained
MANY_EPOCHS = 100.0  # epochs that a model may take if the other models keep time for `LEAST_EPOCHS`
# maximum share of the remaining time for a model that others follow, unless its cost share is
# larger
MOST_SHARE = 0.25
# minimum share of the estimated time for a second training, because the estimate is generous
ENOUGH = 0.7
PROBE_STEPS = 6
MOST_TREES = 5000
TREES_PATIENCE = 50
MOST_BAG_VALUES = 256
BEHIND = 0.01  # a trial is stopped when it is worse by this share of the other training's metric


class Deadline(Callback):
    """Ends a training after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    def on_part(self) -> None:
        """Called within a step."""
        if time.perf_counter() >= self._end:
            raise OutOfTime

    def on_step(self, step: TrainingStep) -> None:
        """Called after a step."""
        self.on_part()


class PrunedTrial(Exception):  # noqa: N818  # not an error: it ends a trial
    """Raised to stop a trial that is too far behind."""


class TrialDeadline(Deadline):
    """Ends a trial after a number of seconds, or when it falls behind another training.

    The comparison starts at half of the other training's best epoch. From then on, the trial is
    stopped if its best value so far is more than 1 % worse than the other training's best value up
    to the same epoch.
    """

    def __init__(self, seconds: float, other: Sequence[Evaluation], metric: str) -> None:
        super().__init__(seconds)
        self._metric = metric
        self._sign = -1.0 if METRICS[metric].higher else 1.0
        self._other = [(one.epoch, self._sign * one.metrics[metric]) for one in other]
        self._from = min(self._other, key=lambda pair: pair[1])[0] / 2
        self._best = np.inf

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        self._best = min(self._best, self._sign * evaluation.metrics[self._metric])
        then = [value for epoch, value in self._other if epoch <= evaluation.epoch]
        if (
            then
            and evaluation.epoch >= self._from
            and self._best > min(then) + BEHIND * abs(min(then))
        ):
            raise PrunedTrial


class Probe(Callback):
    """Ends a training after a few steps, and estimates the duration of an epoch."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._rows = 0
        self._of = 1
        self._ended = False

    def on_start(self, start: TrainingStart) -> None:
        """Called before the first step."""
        self._of = start.rows
        self._times.append(time.perf_counter())

    def on_step(self, step: TrainingStep) -> None:
        """Called after a step."""
        self._times.append(time.perf_counter())
        self._rows = max(self._rows, step.rows)
        if len(self._times) > PROBE_STEPS:
            self._ended = True
            raise OutOfTime

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        self._times.append(time.perf_counter())
        if not self._ended:  # the first evaluation ends it too; one more follows after the end
            self._ended = True
            raise OutOfTime

    @property
    def seconds_per_epoch(self) -> float:
        """Estimated seconds of an epoch with one evaluation; the first step, which is slower, does not count."""
        spans = np.diff(self._times)
        steps = spans[:-1]
        evaluation = float(spans[-1])
        usual = float(np.median(steps[1:] if len(steps) > 1 else steps)) if len(steps) else 0.0
        return usual * max(1.0, self._of / max(self._rows, 1)) + evaluation


def admitted(costs: Mapping[str, float], seconds: float) -> list[str]:
    """Names of the models that fit into the time, the cheapest first.

    The most expensive models are removed until all others have time for three epochs.

    >>> admitted({"lr": 1.0, "afm": 4.0, "autoint": 30.0}, 20)
    ['lr', 'afm']
    """
    names = sorted(costs, key=lambda name: costs[name])
    while names and sum(costs[name] for name in names) * LEAST_EPOCHS > seconds:
        names.pop()
    return names


def allotted(costs: Sequence[float], seconds: float) -> float:
    """Seconds that the first of several models may take: its share by cost, or more if there is time to spare.

    With time to spare it may take up to a hundred epochs, and up to a quarter of the time while
    other models follow. Time that it does not use, because early stopping ends its training, goes
    to the other models. `costs` are the seconds per epoch of each model, this model's first.

    >>> allotted([1.0, 9.0], 100.0), allotted([1.0, 9.0], 50.0), allotted([5.0], 60.0)
    (25.0, 12.5, 60.0)
    """
    share = seconds * costs[0] / sum(costs)
    spare = seconds - LEAST_EPOCHS * sum(costs[1:])
    return max(share, min(MANY_EPOCHS * costs[0], spare, MOST_SHARE * seconds))


@dataclass(frozen=True, kw_only=True)
class Trees:
    """A fitted LightGBM model."""

    booster: Any  # of LightGBM; its raw scores are logits, or numbers for a regression label
    trees: int  # kept
    leaves: int  # of these trees
    seconds: float
    stopped: Literal["patience", "epochs", "time"]  # epochs: the maximum number of trees

    def score(self, part: SplitPart, schema: Schema) -> np.ndarray:
        """Logits of a part's rows, or for a regression label predicted numbers within its range [N]."""
        raw = self.booster.predict(
            features(part, schema)[0],
            raw_score=True,
            num_threads=torch.get_num_threads(),
            num_iteration=self.trees,
        )
        score = np.asarray(raw, dtype=np.float64)
        label = schema.label
        return (
            np.clip(score, *label.range)
            if label.task == "regression" and label.range is not None
            else score
        )


def left_out(part: SplitPart) -> list[str]:
    """Names of the fields that `features` omits: sequences, and bags with more than `MOST_BAG_VALUES` values."""
    return [
        f.name
        for f in part.table.layout.fields
        if f.kind == "bag" and (f.ordered or f.rows > MOST_BAG_VALUES)
    ]


def features(part: SplitPart, schema: Schema) -> tuple[np.ndarray, list[int]]:
    """A feature matrix [N, columns] and the indices of its categorical columns.

    Numbers are unchanged, with NaN for missing cells. A category is its code in the training
    vocabulary, with NaN for missing and unknown values. A bag has one column per value of its
    vocabulary.
    """
    table = part.table
    skipped = set(left_out(part))
    columns: list[np.ndarray] = []
    categories: list[int] = []
    single = iter(range(table.ids.shape[1]))
    local = table.layout.local_rows()
    bags = iter(range(sum(f.kind == "bag" for f in table.layout.fields)))
    for place, own in zip(table.layout.fields, schema.fields, strict=True):
        if place.kind == "bag":
            position = next(bags)
            if place.name not in skipped:
                bag = table.bag(position)
                cell = bag.segments * place.rows + torch.from_numpy(local)[bag.ids]
                counts = torch.bincount(cell, minlength=len(table) * place.rows).view(
                    len(table), place.rows
                )
                columns += list(counts.double().numpy().T)
            continue
        codes = local[table.ids[:, next(single)]]
        if own.cell == "number":
            cells = part.frame.get_column(own.column)
            number = as_number(
                cells, f"column {own.column!r}", form=own.number_format, missing=schema.missing
            )
            columns.append(number.fill_null(float("nan")).to_numpy())
            continue
        categories.append(len(columns))
        known = codes.astype(np.float64)
        if place.unknown:
            known[codes < 2] = np.nan  # missing and unknown: no training row has an unknown value
        columns.append(known)
    return np.column_stack(columns) if columns else np.zeros((len(table), 1)), categories


def fit_trees(
    train: SplitPart, valid: SplitPart, schema: Schema, *, seed: int, seconds: float = float("inf")
) -> Trees:
    """LightGBM with default settings, stopped after 50 trees without a better validation loss or after a time."""
    try:
        import lightgbm as lgb
    except ImportError:
        raise MissingExtraError("trees need LightGBM: pip install 'fieldwise[lightgbm]'") from None
    began = time.perf_counter()
    binary = schema.label.task == "binary"
    settings = {
        "objective": "binary" if binary else "regression",
        "metric": "binary_logloss" if binary else "rmse",
        "num_threads": torch.get_num_threads(),
        "seed": seed,
        "deterministic": True,
        # else LightGBM chooses by timing, and a run is not reproducible to the bit
        "force_row_wise": True,
        "verbosity": -1,
    }
    x, categories = features(train, schema)
    data = lgb.Dataset(x, train.main, categorical_feature=categories, params=settings)
    against = lgb.Dataset(features(valid, schema)[0], valid.main, reference=data)
    late = False

    def clock(env: Any) -> None:
        nonlocal late
        if time.perf_counter() - began >= seconds:
            late = True
            raise lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    losses: dict[str, Any] = {}
    callbacks: list[Any] = [
        lgb.record_evaluation(losses),
        lgb.early_stopping(TREES_PATIENCE, verbose=False),
        clock,
    ]
    clock.order = 99  # type: ignore[attr-defined]  # runs after the other callbacks of an iteration
    booster = lgb.train(
        settings, data, num_boost_round=MOST_TREES, valid_sets=[against], callbacks=callbacks
    )
    by_tree = losses["valid_0"][settings["metric"]]
    trees = int(np.argmin(by_tree)) + 1
    return Trees(
        booster=booster,
        trees=trees,
        leaves=sum(
            int(tree["num_leaves"]) for tree in booster.dump_model(num_iteration=trees)["tree_info"]
        ),
        seconds=time.perf_counter() - began,
        stopped="time" if late else "patience" if len(by_tree) < MOST_TREES else "epochs",
    )


_NETWORKS = ("lr", "fm", "afm", "autoint+", "finalmlp", "dssm", "inttower")
TITLES = {name: str(getattr(MODELS[name], "title", MODELS[name].__name__)) for name in _NETWORKS}
TOWERS = ("dssm", "inttower")
TREES = "LightGBM"
CONSTANT = "constant"
ALL_ROWS = "all rows"  # end of the title of a trial trained on training and validation rows
FOLDS = 5
FEWEST_TO_CALIBRATE = 2_000
# a second training has more rows, no evaluations, and encodes the rows again
AGAIN_TIMES = 1.4
AGAIN_SECONDS = 2.0
# share of the training time for models with default settings; the rest is for the search
DEFAULTS_SHARE = 0.6
FIRST_SHARE = 0.15  # maximum share of the training time for LR
TREES_SHARE = 0.25  # maximum share of the time for models with default settings for LightGBM
MOST_TRIALS = 40
PATIENCE = 16
TRIAL_TIMES = 3.0  # maximum duration of a trial of the search, relative to the training to beat
LEAST_GAIN = 1e-4  # share of the constant's loss that a model must gain to have learned something
BETTER = 1.0  # standard errors by which a trial must improve on validation rows to count as better


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """A trained model or baseline of the leaderboard; it has not seen the test rows."""

    title: str  # on the leaderboard
    # uncalibrated scores of a part [N]: logits, or numbers of the label's range
    raw: Callable[[SplitPart], np.ndarray]
    # scores of the validation rows [N], each calibrated by a fit on other rows, if at all
    valid: np.ndarray
    value: float  # logloss or RMSE of these scores
    # of its logits, if that improves rows that it was not fitted on
    calibration: Calibration | None = None
    trained: TrainingResult | None = None  # None for baselines, which cannot be bundles
    seconds: float = 0.0
    epochs: int = 0  # for LightGBM, the number of trees
    stopped: str = ""  # why its training ended
    parameters: int = 1  # for LightGBM, of leaves
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the search, by dotted path

    def score(self, part: SplitPart) -> np.ndarray:
        """Scores of a part's rows [N], calibrated if it has a calibration."""
        raw = self.raw(part)
        return raw if self.calibration is None else self.calibration.logit(raw)

    @property
    def network(self) -> TrainingResult:
        """The trained network of a trial that is no baseline."""
        assert self.trained is not None, "baselines have no network"
        return self.trained

    @property
    def on_all_rows(self) -> bool:
        """Whether the network was trained on training and validation rows."""
        return self.trained is not None and self.trained.refit is not None


def _training_words(one: Trial) -> str:
    """How long a trial was trained, and why it ended: `3 epochs (time limit reached)`."""
    if one.stopped == "converged":
        return f"solved exactly with {counted(one.epochs, 'prior')}"
    what = "tree" if one.title == TREES else "epoch"
    return f"{counted(one.epochs, what)} ({STOPPED.get(one.stopped, one.stopped)})"


class Trials:
    """The models trained so far."""

    def __init__(self, task: AutoTask, clock: Clock, reserve: float, note: Note) -> None:
        self.task = task
        self.clock = clock
        self.reserve = reserve
        self.note = note
        self.trials: list[Trial] = [constant(task)]  # then the others in the order of training
        # for each model that was not trained, by its title, the reason
        self.skipped: dict[str, str] = {}
        self.late: list[str] = []  # titles of those of them that were left out for time
        self.searched = 0  # number of trials of the search
        # the chosen trial, trained again on training and validation rows
        self.on_all: Trial | None = None
        self.interrupted = False  # by Ctrl-C

    @property
    def left(self) -> float:
        """Seconds left for training."""
        return self.clock.left - self.reserve

    @property
    def networks(self) -> list[Trial]:
        """Trials that can become a bundle, best on validation rows first."""
        return sorted(
            (one for one in self.trials if one.trained is not None), key=lambda one: one.value
        )

    @property
    def chosen(self) -> Trial:
        """The simplest network, in the order of `TITLES`, that is not significantly worse than the best one.

        If the best one is better than the constant, so must the simplest be. The order is fixed, so
        that the choice does not depend on how long each training took.
        """
        best = self.networks[0]
        learned = self.learned(self.networks[0])
        equals = [one for one in self.networks if one is best or not _gains(self.task, best, one)]
        equals = [one for one in equals if not learned or self.learned(one)]
        simple = list(TITLES.values())
        return min(equals, key=lambda one: (simple.index(one.title.partition(",")[0]), one.value))

    def learned(self, one: Trial) -> bool:
        """Whether a trial is significantly better than the constant on validation rows, by at least `LEAST_GAIN`.

        Any step towards the rows' share of positives is a gain for all of them, and rounding can be
        one for a network that ended before its first step: neither counts.
        """
        least = (1 - LEAST_GAIN) * self.trials[0].value
        return one.value < least and _gains(self.task, one, self.trials[0])

    def add(self, one: Trial, allowed: float) -> None:
        """Add a trial and report its validation metric and duration, with the seconds that it was allowed."""
        self.trials.append(one)
        self.interrupted |= one.stopped == "interrupted"
        mapped = ", calibrated" if one.calibration is not None else ""
        self.note(
            f"{one.title}: validation {self.task.metric} {one.value:.4f}{mapped}, {_training_words(one)}, "
            f"{one.seconds:.1f} s with scoring (its training may take {allowed:.1f} s)"
        )

    def skip(self, title: str, why: str, *, late: bool = False) -> None:
        """Report why a model is not trained; `late`: for time."""
        self.skipped[title] = why
        self.late += [title] * late
        self.note(f"{title} is left out: {why}")


def try_models(task: AutoTask, stem: str, clock: Clock, *, reserve: float, note: Note) -> Trials:
    """The trials that could be trained until `reserve` seconds before the end; Ctrl-C ends it with those so far."""
    tried = Trials(task, clock, reserve, note)
    try:
        for step in (partial(_defaults, recipes=recipes_for(task, stem)), _search, _train_again):
            if not tried.interrupted:
                step(tried)
    except KeyboardInterrupt:
        if not tried.networks:
            raise
        tried.interrupted = True
    return tried


def recipes_for(task: AutoTask, stem: str) -> dict[str, Recipe]:
    """Recipes with default settings, by model name, of all models that can be trained on the schema's fields."""
    towers = {"user", "item"} <= {f.role for f in task.schema.fields}
    names = [name for name in TITLES if towers or name not in TOWERS]
    if len(task.schema.fields) < 2:
        names = ["lr"]  # the others need pairs of fields
    numbers = task.schema.label.task == "regression"
    # its contrastive loss needs a binary label
    own = {"inttower": {"cir_weight": 0.0}} if numbers else {}
    return {
        name: task.recipe({"name": name, **own.get(name, {})}, f"{stem}/{name}") for name in names
    }


def _defaults(tried: Trials, recipes: dict[str, Recipe]) -> None:
    """Train LR, LightGBM and then the other models with default settings, the cheapest first."""
    seconds = max(tried.left * FIRST_SHARE, 1.0)
    tried.note(
        f"{max(tried.left, 0):.0f} s for training: LR may take {seconds:.0f} s, and {1 - DEFAULTS_SHARE:.0%} of the "
        "rest is kept for the search after the models; time that a model does not use goes to the next one"
    )
    tried.add(fit_one(TITLES["lr"], recipes.pop("lr"), tried.task, Deadline(seconds)), seconds)
    if tried.interrupted:
        return
    end = tried.left * (1 - DEFAULTS_SHARE)  # seconds to keep for the search
    _trees(tried, max((tried.left - end) * TREES_SHARE, 1.0))
    costs: dict[str, float] = {}  # estimated seconds of an epoch of each model that can be trained
    for name, recipe in recipes.items():
        if tried.left <= max(costs.values(), default=0.0):
            tried.skip(
                TITLES[name], f"{max(tried.left, 0):.0f} s are left, too few to try it", late=True
            )
            continue
        try:
            costs[name] = seconds_of(recipe, tried.task)
        except FieldwiseError as e:
            tried.skip(TITLES[name], str(e))
    while costs and not tried.interrupted:
        names = admitted(costs, tried.left - end)
        if not names and end:
            end = 0.0  # an untried model has priority over the search
            names = admitted(costs, tried.left)
        if not names:
            break
        name, seconds = names[0], allotted([costs[name] for name in names], tried.left - end)
        del costs[name]
        try:
            tried.add(fit_one(TITLES[name], recipes[name], tried.task, Deadline(seconds)), seconds)
        except FieldwiseError as e:
            tried.skip(TITLES[name], str(e))
        end = _kept(tried, end) if costs else end
    for name, cost in costs.items():
        why = f"an epoch takes about {cost:.2g} s, too long for the {max(tried.left, 0):.0f} s that are left"
        why = "the run was interrupted before" if tried.interrupted else why
        tried.skip(TITLES[name], why, late=not tried.interrupted)


def _kept(tried: Trials, end: float) -> float:
    """The seconds of `end` that stay kept, before the next model, for the search and the last training.

    With too few for one trial of the search, and the last training after it, no trial begins; with
    less than `ENOUGH` of the last training of the best model, it does not begin.
    """
    best = tried.networks[:2]
    again = seconds_on_all(best[0])
    if end >= max(seconds_on_all(one) for one in best) + min(one.seconds for one in best) / 2:
        return end
    seconds = min(end, again) if end >= ENOUGH * again else 0.0
    if end - seconds >= 1:
        tried.note(
            f"the {end:.0f} s kept for the search hold no trial: {end - seconds:.0f} s go to the next models"
        )
    return seconds


def _trees(tried: Trials, seconds: float) -> None:
    task = tried.task
    prepared = tried.task.prepared
    try:
        trees = fit_trees(
            prepared.train, prepared.valid, task.schema, seed=task.settings["seed"], seconds=seconds
        )
    except MissingExtraError as e:
        tried.skip(TREES, str(e))
        return
    facts = {
        "seconds": trees.seconds,
        "epochs": trees.trees,
        "stopped": trees.stopped,
        "parameters": trees.leaves,
    }
    tried.add(_judged(TREES, partial(trees.score, schema=task.schema), task, **facts), seconds)
    if gone := left_out(prepared.train):
        tried.note(
            f"{TREES} does not read {', '.join(gone)}: a history, or a bag with more than {MOST_BAG_VALUES} values"
        )


def _search(tried: Trials) -> None:
    """Search around the settings of the two best models, in turns, until the time is over."""
    best = {one.title: one for one in tried.networks[:2]}
    climbs = {
        title: Climb(one.network.recipe, seed=tried.task.settings["seed"])
        for title, one in best.items()
    }
    without = 0
    while climbs and tried.searched < MOST_TRIALS and without < PATIENCE:
        title = next(iter(climbs))
        climb = climbs.pop(title)
        other = best[title]
        left = tried.left - max(seconds_on_all(one) for one in best.values())
        if left < other.seconds / 2:
            continue
        values = climb.propose()
        if values is None:
            continue
        seconds = min(left, other.seconds * TRIAL_TIMES + 1)
        trial = None
        deadline = TrialDeadline(seconds, other.network.history.evaluations, tried.task.metric)
        # it falls behind, or its settings contradict each other
        with contextlib.suppress(PrunedTrial, FieldwiseError):
            trial = fit_one(title, with_values(climb.best, values), tried.task, deadline)
        tried.searched += 1
        without += 1
        better = trial is not None and _gains(tried.task, trial, other)
        climb.tell(values, better=better)
        if trial is not None and better:
            best[title] = dataclasses.replace(trial, changes={**other.changes, **values})
            without = 0
            words = ", ".join(f"{path} = {value}" for path, value in values.items())
            tried.note(
                f"search, {title}: validation {tried.task.metric} {trial.value:.4f} with {words}"
            )
        climbs[title] = climb  # appended: the other model is next
        if trial is not None and trial.stopped == "interrupted":
            tried.interrupted = True
            break
    tried.trials += [
        dataclasses.replace(one, title=f"{title}, searched")
        for title, one in best.items()
        if one.changes
    ]
    trials = counted(tried.searched, "trial")
    words = f"{trials} of {' and '.join(best)}" if tried.searched else "no time was left for it"
    tried.note(f"search: {words}")


def _train_again(tried: Trials) -> None:
    """Train the chosen model on training and validation rows together, for its best epochs, unless time is too short.

    It keeps the calibration of the first training, which was fitted on rows that the network had
    not learned from.
    """
    one = tried.chosen
    left = tried.left
    needed = seconds_on_all(one)
    said = f"{one.title} is not trained again on training and validation rows"
    if left < ENOUGH * needed:
        tried.note(f"{said}: that takes about {needed:.0f} s, and {max(left, 0):.0f} s are left")
        return
    recipe = one.network.recipe
    prepared = tried.task.prepared
    recipe = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, refit=True))
    first = dataclasses.replace(one.network, recipe=recipe)
    try:
        again = fit_again(first, prepared.train, prepared.valid, (Deadline(left),))
    except FieldwiseError as e:
        tried.note(f"{said}: {e}")
        return
    if again.refit is None:
        ended = again.history.stopped
        tried.interrupted |= ended == "interrupted"
        tried.note(
            f"{one.title} was not trained to the end on training and validation rows: {STOPPED[ended]}"
        )
        return
    tried.on_all = dataclasses.replace(
        one,
        title=f"{one.title}, {ALL_ROWS}",
        raw=partial(_network_scores, again),
        trained=again,
        seconds=one.seconds + again.refit.seconds,
        parameters=again.parameters,
    )
    is_exact = again.history.stopped == "converged"
    length = "solved exactly" if is_exact else counted(again.refit.best.epoch, "epoch")
    tried.note(
        f"{one.title} is chosen and trained again on all {again.refit.rows:,} training and validation rows: "
        f"{length}, {again.refit.seconds:.1f} s"
    )


def seconds_of(recipe: Recipe, task: AutoTask) -> float:
    """Estimated seconds of an epoch of a recipe, from a few steps."""
    probe = Probe()
    fit_recipe(recipe, task.prepared.encoder, task.prepared.train, task.prepared.valid, (probe,))
    return probe.seconds_per_epoch


def seconds_on_all(one: Trial) -> float:
    """Estimated seconds of a training on training and validation rows, from the duration of the first training."""
    result = one.network.history
    # none: time ended before the first
    share = min(1.0, result.best.epoch / result.epochs) if result.epochs else 1.0
    return AGAIN_TIMES * result.seconds * share + AGAIN_SECONDS


def fit_one(title: str, recipe: Recipe, task: AutoTask, callback: Callback) -> Trial:
    """The trial of a recipe: trains on training rows, and chooses the epoch on validation rows."""
    began = time.perf_counter()
    rows = task.prepared
    trained = fit_recipe(recipe, rows.encoder, rows.train, rows.valid, (callback,))
    trial = _judged(
        title,
        partial(_network_scores, trained),
        task,
        trained=trained,
        epochs=trained.history.epochs,
        stopped=trained.history.stopped,
        parameters=trained.parameters,
    )
    # with scoring and calibration
    return dataclasses.replace(trial, seconds=time.perf_counter() - began)


def constant(task: AutoTask) -> Trial:
    """The constant baseline: the training rows' share of positives, or their mean."""
    mean = float(np.mean(task.prepared.train.main, dtype=np.float64))
    level = float(np.log(mean) - np.log1p(-mean)) if task.schema.label.task == "binary" else mean
    return _judged(CONSTANT, lambda part: np.full(len(part.table), level), task)


def _judged(
    title: str, raw: Callable[[SplitPart], np.ndarray], task: AutoTask, **facts: Any
) -> Trial:
    """A trial with its validation scores, their logloss or RMSE, a calibration if it helps, and facts about it."""
    valid = raw(task.prepared.valid)
    calibration = None
    if task.schema.label.task == "binary":
        valid, calibration = calibrated(task.prepared.valid.main, valid, seed=task.settings["seed"])
    loss = float(_row_losses(task, valid).mean())
    value = loss if task.metric == "logloss" else loss**0.5
    return Trial(title=title, raw=raw, valid=valid, value=value, calibration=calibration, **facts)


def calibrated(y: np.ndarray, z: np.ndarray, *, seed: int) -> tuple[np.ndarray, Calibration | None]:
    """Platt scaling of logits, if it helps: the calibrated logits, each by a fit on other rows, and the calibration.

    It helps if the logloss over five folds of the rows improves by more than twice the standard
    error of the difference. Otherwise the logits are returned unchanged, with None, and so they are
    with fewer than 2,000 rows: in a split by time these are the rows of few users, and on 658 rows
    of ML-1M by time a scaling that passed this test raised the test logloss of LR, FM, AFM and
    AutoInt+ by .013 to .019.
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
    gain = row_losses(y > 0.5, z) - row_losses(y > 0.5, mapped)
    if gain.mean() <= 2 * gain.std(ddof=1) / np.sqrt(len(gain)):
        return z, None
    return mapped, whole


def _network_scores(trained: TrainingResult, part: SplitPart) -> np.ndarray:
    """A network's scores of a part's rows [N]: logits, or numbers within the label's range."""
    table = part.table if trained.refit is None else trained.bundle.encoder.transform(part.frame)
    score = score_batches(trained.bundle.network, table.batches(SCORING_BATCH)).astype(np.float64)
    return trained.recipe.schema.label.predicted(score)


def _row_losses(task: AutoTask, score: np.ndarray) -> np.ndarray:
    """The loss of each validation row: of its logit, or the square of a regression's error."""
    y = np.asarray(task.prepared.valid.main, dtype=np.float64)
    return row_losses(y > 0.5, score) if task.metric == "logloss" else np.square(score - y)


def _gains(task: AutoTask, new: Trial, old: Trial) -> bool:
    """Whether `new` is better on validation rows by more than the standard error of the paired difference."""
    gain = _row_losses(task, old.valid) - _row_losses(task, new.valid)
    error = float(gain.std(ddof=1)) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    return float(gain.mean()) > BETTER * error and new.value < old.value
