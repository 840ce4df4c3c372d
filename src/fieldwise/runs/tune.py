"""Hyperparameter search on the validation rows; the test rows are evaluated once, at the end.

The study is one append-only file of JSON lines (Optuna's journal): an interrupted search is resumed from it, and
several processes can share it.
"""

import hashlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import ConfigError, TrainingError
from fieldwise.evaluation.registry import METRICS
from fieldwise.models.build import build_network
from fieldwise.runs.data import data_inputs, prepare_recipe
from fieldwise.runs.fits import RunContext, recorded_runs
from fieldwise.runs.fitting import fit_recipe, settled
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import setting_path
from fieldwise.runs.recipe_space import check_space, search_space, value_at, with_values
from fieldwise.runs.records import Record, Store, run_key
from fieldwise.runs.search_space import Bounds, Choices, chosen_value, suggested
from fieldwise.runs.study import (
    CHECKPOINTS,
    begun_alone,
    counted,
    open_study,
    optuna_library,
    read_test_evaluations,
    remove_incomplete_line,
    resume_later,
    states,
    with_test_evaluation,
)
from fieldwise.storage.files import write_atomically
from fieldwise.training.callbacks import Callback
from fieldwise.training.checks import monitored
from fieldwise.training.objective import Objective
from fieldwise.training.penalty import l2_strengths
from fieldwise.training.result import Evaluation
from fieldwise.training.unfinished import Unfinished

if TYPE_CHECKING:
    from optuna import Study, Trial

__all__ = ["Tuned", "tune"]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of a search.

    Args:
        study: its file.
        recipe: the best settings as a recipe, also in `recipe_file`.
        values: the best values, by path.
        metric: the validation metric of the search.
        value: its best value.
        trials: number of ended trials by state: complete, pruned, fail.
        runs: runs of the best settings with each final seed, including test metrics.
        test_evaluations: the evaluations of this study's best settings on the test rows so far.
    """

    study: Path
    recipe: Recipe
    recipe_file: Path
    values: Mapping[str, Any]
    metric: str
    value: float
    trials: Mapping[str, int]
    runs: tuple[Record, ...]
    test_evaluations: tuple[Mapping[str, Any], ...]


def tune(
    recipe: Recipe,
    *,
    trials: int,
    store: Path,
    context: RunContext,
    seed: int = 0,
    final_seeds: int = 3,
) -> Tuned:
    """Search until the study has `trials` ended trials, then evaluate the best settings on the test rows.

    The first trial has the recipe's own settings, as far as they are in the space. Each trial trains on the training
    rows and is scored by its best evaluation on the validation rows; a trial below the median of the others at the same
    evaluation is stopped (Optuna's TPE sampler and median pruner).

    Args:
        recipe: the recipe to vary.
        trials: total trials of the study, including earlier calls and other processes.
        store: a folder of studies, with the final runs below `runs`.
        context: where runs read their data and report their progress.
        seed: seed of the search.
        final_seeds: number of runs of the best settings, with seeds 0, 1, ...

    Errors:
        ConfigError: a space that does not fit the recipe; Optuna is missing; no trial was completed.
        KeyboardInterrupt: Ctrl-C; the ended trials are kept.
    """
    optuna_library()
    space = search_space(recipe)
    check_space(recipe, space)
    key = _study_key(recipe, space, context.data_dir)
    Store(store).check()
    prepared = prepare_recipe(recipe, context.data_dir, cache=context.cache)
    recipe = settled(recipe, prepared)[0]  # the search needs complete settings
    search = _Search(store / f"{_short(recipe)}-{key[:8]}.journal", recipe, space, prepared, context)
    study = search.opened(trials, seed)
    if recipe.target_encoding is not None and (caution := recipe.target_encoding.caution()):
        context.note(caution)
    _check_parameters(recipe, space, prepared)
    search.run(study, trials)
    values = search.best(study)
    found = with_values(recipe, values)
    recipe_file = _write_recipe(found, search.file.with_suffix(".toml"))
    evaluations = with_test_evaluation(search.test_evaluations, study, values)  # recorded before the evaluation itself
    runs = recorded_runs([found], range(final_seeds), store=Store(store / "runs"), context=context)
    return Tuned(
        study=search.file,
        recipe=found,
        recipe_file=recipe_file,
        values=values,
        metric=search.metric,
        value=float(study.best_value),
        trials=states(study),
        runs=tuple(runs[found.name]),
        test_evaluations=tuple(evaluations),
    )


class _Search:
    """The study of one call of `tune`, and its trials."""

    def __init__(
        self, file: Path, recipe: Recipe, space: Mapping[str, Bounds], prepared: Prepared, context: RunContext
    ) -> None:
        self.file, self.test_evaluations = file, file.with_suffix(".test.json")
        self.recipe, self.space, self.prepared = recipe, space, prepared
        self.note, self.callbacks = context.note, context.callbacks
        objective, grouped = Objective.of(*recipe.schema.labels), recipe.schema.grouping is not None
        self.metric = monitored(recipe.training, objective, grouped=grouped)
        self.failures: list[str] = []
        self.seed = 0
        self.next: int | None = None  # the number of this process's next trial if no other process is at work

    def opened(self, trials: int, seed: int) -> "Study":
        """The study, new or resumed, which is to have `trials` ended trials."""
        remove_incomplete_line(self.file, self.note)
        first = _own_values(self.recipe, self.space)
        study = open_study(self.file, self.file.stem, maximize=METRICS[self.metric].higher, first=first)
        begun = counted(study)
        read_test_evaluations(self.test_evaluations)  # before any work
        self.seed, self.next = seed, begun_alone(study)
        self._draw_anew(study, begun)  # not the samples of earlier calls
        done = f"{begun} of {trials} trials" if begun <= trials else f"{begun} trials, more than the {trials} requested"
        self.note(f"{self.recipe.name}: {done}; searching {', '.join(self.space)}")
        return study

    def _draw_anew(self, study: "Study", number: int) -> None:
        study.sampler = optuna_library().samplers.TPESampler(seed=hash((self.seed, number)) % 2**32)

    def _draw_apart(self, trial: "Trial") -> None:
        """Draw other values than the processes that share the study: their samplers began with the same seed."""
        if trial.number != self.next:
            self._draw_anew(trial.study, -1 - trial.number)
        self.next = trial.number + 1

    def best(self, study: "Study") -> dict[str, Any]:
        """The best values of a study, by path.

        Errors:
            ConfigError: no trial was completed.
        """
        if "complete" not in states(study):
            failed = f"the last one failed: {self.failures[-1]}" if self.failures else None
            raise ConfigError(
                f"no trial of {self.file} was completed: {failed or 'widen the space, or give more trials'}"
            )
        return {path: chosen_value(self.space[path], chosen) for path, chosen in study.best_params.items()}

    def run(self, study: "Study", trials: int) -> None:
        """Run trials until the study has `trials` ended ones."""

        def stop(study: "Study", _: object) -> None:
            if counted(study) >= trials:
                study.stop()

        if counted(study) < trials:
            study.optimize(self._trial, callbacks=[stop], catch=(TrainingError, ConfigError))

    def _trial(self, trial: "Trial") -> float:
        trial.set_user_attr("process", [socket.gethostname(), os.getpid()])
        self._draw_apart(trial)
        token = trial.user_attrs.get(CHECKPOINTS) or secrets.token_hex(6)  # of the trial that this one resumes
        trial.set_user_attr(CHECKPOINTS, token)
        unfinished = Unfinished.beside(
            self.file.with_name(f"{self.file.stem}.{token}"),
            note=lambda sentence: self.note(f"trial {trial.number} {sentence}"),
        )
        one = with_values(self.recipe, suggested(trial, self.space))
        try:
            value = self._value(one, trial, unfinished)
        except KeyboardInterrupt:
            resume_later(trial.study, trial.params, token)
            raise
        except BaseException:  # pruned or failed
            unfinished.remove()
            raise
        unfinished.remove()
        return value

    def _value(self, one: Recipe, trial: "Trial", unfinished: Unfinished) -> float:
        pruning = _Pruning(trial, self.metric, self.note, one.training.evaluations_per_epoch)
        callbacks = [*self.callbacks(f"{self.recipe.name} trial {trial.number}"), pruning]
        try:
            result = fit_recipe(one, self.prepared, callbacks, unfinished).result
        except (ConfigError, TrainingError) as e:  # incompatible settings, or divergence: the search continues
            self.failures.append(str(e))
            trial.set_user_attr("failed", str(e))
            self.note(f"trial {trial.number} failed: {e}")
            raise
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        value = result.best.metrics[self.metric]
        self.note(f"trial {trial.number}: {self.metric} {value:.4f}")
        return value


def _write_recipe(found: Recipe, path: Path) -> Path:
    plain = {**found.to_dict(), "description": f"{found.description or found.name}, tuned on its validation rows"}
    plain = {key: value for key, value in plain.items() if value not in ("", {})}
    write_atomically(path, tomli_w.dumps(plain).encode())
    return path


class _Pruning(Callback):
    """Reports every evaluation to the study, which may prune the trial."""

    def __init__(self, trial: "Trial", metric: str, note: Callable[[str], None], per_epoch: int) -> None:
        self.trial, self.metric, self.note, self.per_epoch = trial, metric, note, per_epoch

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        self.trial.report(evaluation.metrics[self.metric], round(evaluation.epoch * self.per_epoch) - 1)
        if self.trial.should_prune():
            self.note(f"trial {self.trial.number}: stopped at {self.metric} {evaluation.metrics[self.metric]:.4f}")
            raise optuna_library().TrialPruned


def _own_values(recipe: Recipe, space: Mapping[str, Bounds]) -> dict[str, Any]:
    """The recipe's own values of a space, as a study stores them; those outside the bounds are sampled."""
    found = {}
    for path, bounds in space.items():
        value = value_at(recipe, path)
        if isinstance(bounds, Choices):
            if value in [to_plain(choice) for choice in bounds.choices]:
                found[path] = value if isinstance(value, (str, int, float)) else json.dumps(value)
        elif isinstance(value, (int, float)) and bounds.low <= value <= bounds.high:
            steps = 0.0 if bounds.step is None else (value - bounds.low) / bounds.step
            if abs(steps - round(steps)) < 1e-9:
                found[path] = value
    return found


def _check_parameters(recipe: Recipe, space: Mapping[str, Bounds], prepared: Prepared) -> None:
    """Check that every L2 pattern of the space matches parameters of the network."""
    named = [setting_path(path)[2] for path in space if path.startswith("training.l2.")]
    network = build_network(recipe.model, prepared.encoder.layout, recipe.seed, labels=len(recipe.schema.labels))
    l2_strengths(network, dict.fromkeys(named, 1.0))


def _study_key(recipe: Recipe, space: Mapping[str, Bounds], data_dir: Path) -> str:
    words = json.dumps([run_key(recipe, data_inputs(recipe, data_dir)), to_plain(dict(space))], sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()


def _short(recipe: Recipe) -> str:
    return Path(recipe.name).stem if recipe.name.endswith(".toml") else recipe.name.replace("/", "-")
