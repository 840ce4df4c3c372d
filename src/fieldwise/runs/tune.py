"""Hyperparameter search on the validation rows; the test rows are evaluated once, at the end.

The study is one append-only file of JSON lines (Optuna's journal): an interrupted search is resumed from it, and
several processes can share it.
"""

import contextlib
import hashlib
import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import ConfigError, DataError, TrainingError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.models.build import build_network
from fieldwise.runs.data import data_inputs, prepare_recipe
from fieldwise.runs.pipeline import fit_recipe, resolve_defaults
from fieldwise.runs.recipe import (
    Bounds,
    Choices,
    Recipe,
    check_space,
    recipe_toml,
    search_space,
    setting_path,
    stored,
    value_at,
    with_values,
)
from fieldwise.runs.records import RunContext, RunRecord, Store, recorded_runs, run_key
from fieldwise.storage.files import write_atomically
from fieldwise.storage.folders import one_writer
from fieldwise.training.callbacks import Callback
from fieldwise.training.checkpoint import Unfinished
from fieldwise.training.history import Evaluation
from fieldwise.training.objective import Objective, monitored
from fieldwise.training.optimizers import l2_strengths

if TYPE_CHECKING:
    from optuna import Study, Trial

LINEAR = "linear"  # attribute of a trial whose mean with LR (`linear_start`) is LR alone
CHECKPOINTS = "checkpoints"  # attribute of a trial: what names the folder of its checkpoints
UNFINISHED_SECONDS = 1.0  # an incomplete line that is not continued for this long is abandoned


class TestEvaluation(TypedDict):
    """An evaluation of a study's best settings on the test rows."""

    trial: int
    after_trials: int
    values: dict[str, Any]


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
        caution: a sentence if the best trials are equal whatever their settings; else empty.
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
    caution: str
    runs: tuple[RunRecord, ...]
    test_evaluations: tuple[TestEvaluation, ...]


def tune(recipe: Recipe, *, trials: int, store: Path, context: RunContext, seed: int, final_seeds: int) -> Tuned:
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
    _optuna()
    space = search_space(recipe)
    check_space(recipe, space)
    key_parts = [run_key(recipe, data_inputs(recipe, context.data_dir)), to_plain(dict(space))]
    key = hashlib.sha256(json.dumps(key_parts, sort_keys=True).encode()).hexdigest()
    Store(store).check()
    prepared = prepare_recipe(recipe, context.data_dir, cache=context.cache)
    recipe = resolve_defaults(recipe, prepared.train)[0]  # the search needs complete settings
    search = _Search(store / f"{_short(recipe)}-{key[:8]}.journal", recipe, space, prepared, context)
    study = search.opened(trials, seed)
    if recipe.target_encoding is not None and (caution := recipe.target_encoding.caution()):
        context.note(caution)
    _check_parameters(recipe, space, prepared)
    search.run(study, trials)
    values = search.best(study)
    found = with_values(recipe, values)
    recipe_file = search.file.with_suffix(".toml")
    plain = {**found.to_dict(), "description": f"{found.description or found.name}, tuned on its validation rows"}
    write_atomically(recipe_file, recipe_toml(plain).encode())
    evaluations = _with_test_evaluation(search.test_evaluations, study, values)  # recorded before the evaluation itself
    runs = recorded_runs([found], range(final_seeds), store=Store(store / "runs"), context=context)
    return Tuned(
        study=search.file,
        recipe=found,
        recipe_file=recipe_file,
        values=values,
        metric=search.metric,
        value=float(study.best_value),
        trials=_states(study),
        caution=_caution(study),
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
        _remove_incomplete_line(self.file, self.note)
        first = _own_values(self.recipe, self.space)
        study = _open_study(self.file, maximize=METRICS[self.metric].higher, first=first)
        begun = _counted(study)
        _read_test_evaluations(self.test_evaluations)  # before any work
        self.seed, self.next = seed, _next_if_alone(study)
        self._draw_anew(study, begun)  # not the samples of earlier calls
        done = f"{begun} of {trials} trials" if begun <= trials else f"{begun} trials, more than the {trials} requested"
        self.note(f"{self.recipe.name}: {done}; searching {', '.join(self.space)}")
        return study

    def _draw_anew(self, study: "Study", number: int) -> None:
        study.sampler = _optuna().samplers.TPESampler(seed=hash((self.seed, number)) % 2**32)

    def best(self, study: "Study") -> dict[str, Any]:
        """The best values of a study, by path.

        Errors:
            ConfigError: no trial was completed.
        """
        if "complete" not in _states(study):
            failed = f"the last one failed: {self.failures[-1]}" if self.failures else None
            raise ConfigError(
                f"no trial of {self.file} was completed: {failed or 'widen the space, or give more trials'}"
            )
        best = _optuna().trial.FixedTrial(study.best_params)
        return {path: self.space[path].suggest(best, path) for path in study.best_params}

    def run(self, study: "Study", trials: int) -> None:
        """Run trials until the study has `trials` ended ones."""

        def stop(study: "Study", _: object) -> None:
            if _counted(study) >= trials:
                study.stop()

        if _counted(study) < trials:
            study.optimize(self._trial, callbacks=[stop], catch=(TrainingError, ConfigError))

    def _trial(self, trial: "Trial") -> float:
        trial.set_user_attr("process", [socket.gethostname(), os.getpid()])
        if trial.number != self.next:  # else processes that share the study draw alike: their samplers have one seed
            self._draw_anew(trial.study, -1 - trial.number)
        self.next = trial.number + 1
        token = trial.user_attrs.get(CHECKPOINTS) or secrets.token_hex(6)  # of the trial that this one resumes
        trial.set_user_attr(CHECKPOINTS, token)
        unfinished = Unfinished.beside(
            self.file.with_name(f"{self.file.stem}.{token}"),
            note=lambda sentence: self.note(f"trial {trial.number} {sentence}"),
        )
        one = with_values(self.recipe, {path: bounds.suggest(trial, path) for path, bounds in self.space.items()})
        try:
            value = self._value(one, trial, unfinished)
        except KeyboardInterrupt:
            trial.study.enqueue_trial(trial.params, user_attrs={CHECKPOINTS: token})  # to be resumed
            raise
        except BaseException:  # pruned or failed
            unfinished.remove()
            raise
        unfinished.remove()
        return value

    def _value(self, one: Recipe, trial: "Trial", unfinished: Unfinished) -> float:
        callbacks = [*self.callbacks(f"{self.recipe.name} trial {trial.number}"), _Pruning(trial, self, one)]
        try:
            rows = self.prepared
            result = fit_recipe(one, rows.encoder, rows.train, rows.valid, callbacks, unfinished).history
        except (ConfigError, TrainingError) as e:  # incompatible settings, or divergence: the search continues
            self.failures.append(str(e))
            trial.set_user_attr("failed", str(e))
            self.note(f"trial {trial.number} failed: {e}")
            raise
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        if result.interactions == 0:
            trial.set_user_attr(LINEAR, True)
        value = result.best.metrics[self.metric]
        self.note(f"trial {trial.number}: {self.metric} {value:.4f}")
        return value


class _Pruning(Callback):
    """Reports every evaluation to the study, which may prune the trial."""

    def __init__(self, trial: "Trial", search: _Search, recipe: Recipe) -> None:
        self.trial, self.search, self.per_epoch = trial, search, recipe.training.evaluations_per_epoch

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        value = evaluation.metrics[self.search.metric]
        self.trial.report(value, round(evaluation.epoch * self.per_epoch) - 1)
        if self.trial.should_prune():
            self.search.note(f"trial {self.trial.number}: stopped at {self.search.metric} {value:.4f}")
            raise _optuna().TrialPruned


def _own_values(recipe: Recipe, space: Mapping[str, Bounds]) -> dict[str, Any]:
    """The recipe's own values of a space, as a study stores them; those outside the bounds are sampled."""
    found = {}
    for path, bounds in space.items():
        value = value_at(recipe, path)
        if isinstance(bounds, Choices):
            if value in [to_plain(choice) for choice in bounds.choices]:
                found[path] = stored(value)
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


def _short(recipe: Recipe) -> str:
    return Path(recipe.name).stem if recipe.name.endswith(".toml") else recipe.name.replace("/", "-")


def _open_study(file: Path, *, maximize: bool, first: Mapping[str, Any]) -> "Study":
    """Open or create the study of a file, whose first trial has the values `first`; trials of dead processes are ended.

    Errors:
        DataError: the file is damaged. ConfigError: Optuna is missing.
    """
    optuna = _optuna()
    try:
        study: Study = optuna.create_study(
            storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file))),
            study_name=file.stem,
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
        )
    except (ValueError, LookupError, RecursionError) as e:
        raise DataError(
            f"the study {file} is damaged ({e}): remove everything after its last complete line, or remove the file "
            "to start a new search"
        ) from None
    with one_writer(file.parent):  # else two processes that begin a study at once both add its first trial
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(dict(first))
    _end_dead_trials(study)
    return study


def _end_dead_trials(study: "Study") -> None:
    """Mark trials of dead processes of this machine as failed, and have them resumed from their checkpoints."""
    optuna = _optuna()
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        host, process = trial.user_attrs.get("process", (None, 0))
        if host == socket.gethostname() and not _alive(int(process)):
            with contextlib.suppress(ValueError):  # another process was quicker
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                if (token := trial.user_attrs.get(CHECKPOINTS)) is not None:
                    study.enqueue_trial(trial.params, user_attrs={CHECKPOINTS: token})


def _alive(process: int) -> bool:
    if os.name == "posix":  # elsewhere signal 0 is not a test
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except OSError:  # another user's
            pass
    return True


def _counted(study: "Study") -> int:
    """The number of trials that ended by themselves; those of an interrupted or killed process do not count."""
    return sum(
        trial.state.name in ("COMPLETE", "PRUNED") or "failed" in trial.user_attrs
        for trial in study.get_trials(deepcopy=False)
    )


def _next_if_alone(study: "Study") -> int | None:
    """The number of the next trial if no other process runs one of this study; None if one does."""
    names = Counter(trial.state.name for trial in study.get_trials(deepcopy=False))
    return None if "RUNNING" in names else names.total() - names["WAITING"]


def _remove_incomplete_line(file: Path, note: Callable[[str], None]) -> None:
    """Remove a last line that a crash left incomplete, to which Optuna would append the next one."""
    content = file.read_bytes() if file.exists() else b""
    if not content or content.endswith(b"\n"):
        return
    time.sleep(UNFINISHED_SECONDS)  # another process may be writing it
    if file.read_bytes() == content:
        write_atomically(file, content[: content.rfind(b"\n") + 1])
        note(f"the last line of {file} was incomplete and has been removed")


def _states(study: "Study") -> dict[str, int]:
    """The number of ended trials by state: complete, fail, pruned."""
    ended = (trial.state for trial in study.get_trials(deepcopy=False) if trial.state.is_finished())
    return dict(sorted(Counter(state.name.lower() for state in ended).items()))


def _caution(study: "Study") -> str:
    """A sentence if the best trial is LR alone: so are others, and their equal values say nothing of the settings."""
    if LINEAR not in study.best_trial.user_attrs:
        return ""
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    linear = sum(LINEAR in trial.user_attrs for trial in done)
    return (
        f"CHECK the best settings: in {linear} of {len(done)} complete trials the best mean of the model with LR is LR "
        "alone (training.linear_start), with one value whatever the settings: take LR, or another model"
    )


def _with_test_evaluation(path: Path, study: "Study", values: Mapping[str, Any]) -> list[TestEvaluation]:
    """Record an evaluation on the test rows in a file; returns all settings evaluated on them so far."""
    evaluations = _read_test_evaluations(path)
    plain = to_plain(dict(values))
    if not evaluations or evaluations[-1]["values"] != plain:
        ended = sum(_states(study).values())
        evaluations.append({"trial": study.best_trial.number, "after_trials": ended, "values": plain})
        write_atomically(path, (json.dumps(evaluations, indent=1) + "\n").encode())
    return evaluations


def _read_test_evaluations(path: Path) -> list[TestEvaluation]:
    """The recorded evaluations on the test rows; losing count of them would make a search look better than it is."""
    if not path.exists():
        return []
    form = Annotated[list[TestEvaluation], msgspec.Meta(min_length=1)]
    try:
        evaluations: list[TestEvaluation] = msgspec.json.decode(path.read_bytes(), type=form)
    except (OSError, ValueError, RecursionError) as e:
        raise DataError(f"the record of test evaluations {path} is damaged ({e}): restore it") from None
    return evaluations


def _optuna() -> Any:
    """The module optuna, with its logging off.

    Errors:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna: pip install 'fieldwise[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
