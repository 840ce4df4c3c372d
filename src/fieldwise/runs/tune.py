"""Hyperparameter search on the validation rows; the test rows are evaluated once, at the end.

Optuna chooses the settings. The study is one append-only file of JSON lines (Optuna's journal): an
interrupted search is resumed from it, and several processes can share it.
"""

import contextlib
import hashlib
import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldwise.config import parse, to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.display import counted
from fieldwise.errors import ConfigError, DataError, TrainingError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.models.build import build_network
from fieldwise.models.trees import TreeSettings
from fieldwise.runs.bounds import Bounds, OneOf, Range, study_value
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.inputs import data_inputs
from fieldwise.runs.pipeline import fit_recipe, resolve_defaults
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import recipe_toml
from fieldwise.runs.recorded_runs import RunContext, recorded_runs
from fieldwise.runs.records import RunRecord, Store, run_key
from fieldwise.runs.search_space import check_space, search_space
from fieldwise.runs.setting_paths import setting_path, value_at, with_values
from fieldwise.storage.files import write_atomically
from fieldwise.storage.locks import one_writer
from fieldwise.training.callbacks import Callback
from fieldwise.training.checkpoint import CheckpointFolder
from fieldwise.training.history import Evaluation, History
from fieldwise.training.objective import Objective, monitored
from fieldwise.training.optimizers import l2_strengths

if TYPE_CHECKING:
    from optuna import Study, Trial

LINEAR = "linear"
"""The attribute of a trial whose mean with LR (`mean_with_lr`) is LR alone."""
CHECKPOINTS = "checkpoints"
"""The attribute of a trial with the token that names the folder of its checkpoints."""
ABANDONED_LINE_SECONDS = 1.0
"""An incomplete line that is not continued for this long is abandoned."""
STEP_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class FinalEvaluation:
    """An evaluation of a study's best settings on the test rows."""

    trial: int
    after_trials: int
    values: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The result of a search."""

    study: Path
    recipe: Recipe  # the best settings, also in `recipe_file`
    recipe_file: Path
    values: Mapping[str, Any]  # the best ones, by path
    metric: str  # on the validation rows
    value: float  # the best one
    trials: Mapping[str, int]  # number of ended trials by state: complete, pruned, fail
    caution: str  # if the best trials are equal whatever their settings; else empty
    runs: tuple[RunRecord, ...]  # of the best settings with each final seed, including test metrics
    test_evaluations: tuple[FinalEvaluation, ...]  # of this study's best settings so far


def tune(
    recipe: Recipe, *, trials: int, store: Path, context: RunContext, seed: int, final_seeds: int
) -> Tuned:
    """Search until the study has `trials` ended trials, then evaluate the best settings on the test rows.

    The first trial has the recipe's own settings, as far as they are in the space. Each trial
    trains on the training rows and is scored by its best evaluation on the validation rows; a trial
    below the median of the others at the same evaluation is stopped (Optuna's TPE sampler and
    median pruner). Trials of earlier calls and other processes count. The folder `store` has the
    studies and, below `runs`, the runs of the best settings with seeds 0, 1, ...

    Errors:
        ConfigError: a space that does not fit the recipe; Optuna is missing; no trial was
            completed.
        KeyboardInterrupt: Ctrl-C; the ended trials are kept.
    """
    _optuna()
    space = search_space(recipe)
    check_space(recipe, space)
    key_parts = [run_key(recipe, data_inputs(recipe, context.data_dir)), to_plain(dict(space))]
    key = hashlib.sha256(json.dumps(key_parts, sort_keys=True).encode()).hexdigest()
    Store(store).check()
    prepared = prepare_recipe(recipe, context.data_dir, cache=context.cache)
    recipe, _ = resolve_defaults(recipe, prepared.train)  # the search needs complete settings
    name = recipe.title.replace("/", "-")
    file = store / f"{name}-{key[:8]}.journal"
    recipe_file = file.with_suffix(".toml")
    evaluations_file = file.with_suffix(".test.json")
    search = _Search(file, recipe, space, prepared, context, seed)
    _read_test_evaluations(evaluations_file)  # before any work
    search.run(trials)

    study = search.study
    values = search.best()
    best_recipe = with_values(recipe, values)
    _write_recipe(best_recipe, recipe_file)
    # recorded before the evaluation itself
    evaluations = _with_test_evaluation(evaluations_file, study, values)
    runs = recorded_runs(
        [best_recipe], range(final_seeds), store=Store(store / "runs"), context=context
    )
    return Tuned(
        study=file,
        recipe=best_recipe,
        recipe_file=recipe_file,
        values=values,
        metric=search.metric,
        value=float(study.best_value),
        trials=_states(study),
        caution=_caution(study),
        runs=tuple(runs[best_recipe.name]),
        test_evaluations=tuple(evaluations),
    )


def _write_recipe(recipe: Recipe, file: Path) -> None:
    """Write the recipe of the best settings, which says that it was tuned."""
    title = recipe.description or recipe.name
    plain = recipe.to_dict()
    plain["description"] = f"{title}, tuned on its validation rows"
    write_atomically(file, recipe_toml(plain).encode())


def _with_test_evaluation(
    file: Path, study: "Study", values: Mapping[str, Any]
) -> list[FinalEvaluation]:
    """The test evaluations of a study with one of these values, which is added to the file if it is not the last."""
    evaluations = _read_test_evaluations(file)
    plain_values = to_plain(dict(values))
    if evaluations and evaluations[-1].values == plain_values:
        return evaluations
    evaluation = FinalEvaluation(
        trial=study.best_trial.number,
        after_trials=sum(_states(study).values()),
        values=plain_values,
    )
    evaluations.append(evaluation)
    text = json.dumps(to_plain(evaluations), indent=1) + "\n"
    write_atomically(file, text.encode())
    return evaluations


def _caution(study: "Study") -> str:
    """A sentence if the best trial is LR alone, as others are then: their values say nothing of the settings."""
    if LINEAR not in study.best_trial.user_attrs:
        return ""
    complete = [
        trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"
    ]
    linear = [trial for trial in complete if LINEAR in trial.user_attrs]
    return (
        f"CHECK the best settings: in {len(linear)} of {len(complete)} complete trials the best mean of the model with "
        "LR is LR alone (training.mean_with_lr), with one value whatever the settings: take LR, or another model"
    )


class _Search:
    """The study of one call of `tune`, new or resumed, and its trials."""

    def __init__(
        self,
        file: Path,
        recipe: Recipe,
        space: Mapping[str, Bounds],
        prepared: Prepared,
        context: RunContext,
        seed: int,
    ) -> None:
        self.file = file
        self.recipe = recipe
        self.space = space
        self.prepared = prepared
        self.seed = seed
        self.note = context.note
        self.callbacks = context.callbacks
        objective = Objective.of(*recipe.schema.labels)
        grouped = recipe.schema.grouping is not None
        self.metric = monitored(recipe.training, objective, grouped=grouped)
        self.failures: list[str] = []
        self._remove_incomplete_line()
        self.study = self._open_study()
        # else two processes that begin a study at once both add its first trial
        with one_writer(file.parent):
            if not self.study.get_trials(deepcopy=False):
                self.study.enqueue_trial(_values_of_recipe(recipe, space))
        self._enqueue_interrupted_trials()
        states = Counter(trial.state.name for trial in self.study.get_trials(deepcopy=False))
        # The number of this process's next trial if no other process is at work.
        self.next: int | None = None
        if "RUNNING" not in states:
            self.next = states.total() - states["WAITING"]
        self._draw_anew(self._ended())  # not the samples of earlier calls

    def _remove_incomplete_line(self) -> None:
        """Remove the line that a crash left, to which Optuna would append the next one."""
        content = self.file.read_bytes() if self.file.exists() else b""
        if not content or content.endswith(b"\n"):
            return
        time.sleep(ABANDONED_LINE_SECONDS)  # another process may be writing it
        if self.file.read_bytes() == content:
            complete_lines = content[: content.rfind(b"\n") + 1]
            write_atomically(self.file, complete_lines)
            self.note(f"the last line of {self.file} was incomplete and has been removed")

    def _open_study(self) -> "Study":
        """The study in the file, or a new one."""
        optuna = _optuna()
        try:
            backend = optuna.storages.journal.JournalFileBackend(str(self.file))
            study: Study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name=self.file.stem,
                direction="maximize" if METRICS[self.metric].higher else "minimize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
            )
        except (ValueError, LookupError, RecursionError) as e:
            raise DataError(
                f"the study {self.file} is damaged ({e}): remove everything after its last complete line, or remove "
                "the file to start a new search"
            ) from None
        return study

    def _enqueue_interrupted_trials(self) -> None:
        """Trials of this machine's killed processes fail, and are tried again from their checkpoints."""
        trial_states = _optuna().trial.TrialState
        running = self.study.get_trials(deepcopy=False, states=(trial_states.RUNNING,))
        for trial in running:
            host, process = trial.user_attrs.get("process", (None, 0))
            if host != socket.gethostname() or _is_alive(int(process)):
                continue
            with contextlib.suppress(ValueError):  # another process was quicker
                self.study.tell(trial.number, state=trial_states.FAIL)
                token = trial.user_attrs.get(CHECKPOINTS)
                if token is not None:
                    self.study.enqueue_trial(trial.params, user_attrs={CHECKPOINTS: token})

    def _draw_anew(self, number: int) -> None:
        self.study.sampler = _optuna().samplers.TPESampler(seed=hash((self.seed, number)) % 2**32)

    def _ended(self) -> int:
        """The number of trials that ended by themselves; those of an interrupted or killed process do not count."""
        return sum(
            trial.state.name in ("COMPLETE", "PRUNED") or "failed" in trial.user_attrs
            for trial in self.study.get_trials(deepcopy=False)
        )

    def best(self) -> dict[str, Any]:
        """The best values, by path."""
        if "complete" not in _states(self.study):
            reason = "widen the space, or give more trials"
            if self.failures:
                reason = f"the last one failed: {self.failures[-1]}"
            raise ConfigError(f"no trial of {self.file} was completed: {reason}")
        best = _optuna().trial.FixedTrial(self.study.best_params)
        return {path: self.space[path].suggest(best, path) for path in self.study.best_params}

    def run(self, trials: int) -> None:
        """Run trials until the study has `trials` ended ones."""
        recipe = self.recipe
        ended = self._ended()
        progress = f"{ended} of {counted(trials, 'trial')}"
        if ended > trials:
            progress = f"{ended} trials, more than the {trials} requested"
        self.note(f"{recipe.name}: {progress}; searching {', '.join(self.space)}")
        for sentence in recipe.cautions(self.prepared):
            self.note(f"WARNING: {sentence}")

        # every L2 pattern of the space must match parameters of the network
        patterns = [setting_path(path)[2] for path in self.space if path.startswith("training.l2.")]
        layout = self.prepared.encoder.layout
        labels = len(recipe.schema.labels)
        network = build_network(recipe.model, layout, recipe.seed, labels=labels)
        l2_strengths(network, dict.fromkeys(patterns, 1.0))

        def stop(study: "Study", _: object) -> None:
            if self._ended() >= trials:
                study.stop()

        if ended < trials:
            self.study.optimize(self._trial, callbacks=[stop], catch=(TrainingError, ConfigError))

    def _trial(self, trial: "Trial") -> float:
        """Train with the settings that the study suggests; the value of the best evaluation."""
        trial.set_user_attr("process", [socket.gethostname(), os.getpid()])
        # else processes that share the study draw alike: their samplers have one seed
        if trial.number != self.next:
            self._draw_anew(-1 - trial.number)
        self.next = trial.number + 1
        # of the trial that this one resumes
        token = trial.user_attrs.get(CHECKPOINTS) or secrets.token_hex(6)
        trial.set_user_attr(CHECKPOINTS, token)
        unfinished = CheckpointFolder.beside(
            self.file.with_name(f"{self.file.stem}.{token}"),
            note=lambda sentence: self.note(f"trial {trial.number} {sentence}"),
        )
        values = {path: bounds.suggest(trial, path) for path, bounds in self.space.items()}
        recipe = with_values(self.recipe, values)
        try:
            history = self._fit(trial, recipe, unfinished)
            if history.stopped == "interrupted":
                raise KeyboardInterrupt
            if history.network_share == 0:
                trial.set_user_attr(LINEAR, True)
        except KeyboardInterrupt:
            # to be resumed
            trial.study.enqueue_trial(trial.params, user_attrs={CHECKPOINTS: token})
            raise
        except BaseException as e:
            # incompatible settings, or divergence: the search goes on
            if isinstance(e, (ConfigError, TrainingError)):
                self.failures.append(str(e))
                trial.set_user_attr("failed", str(e))
                self.note(f"trial {trial.number} failed: {e}")
            unfinished.remove()
            raise
        value = history.best.metrics[self.metric]
        self.note(f"trial {trial.number}: {self.metric} {value:.4f}")
        unfinished.remove()
        return value

    def _fit(self, trial: "Trial", recipe: Recipe, unfinished: CheckpointFolder) -> History:
        callbacks = [
            *self.callbacks(f"{self.recipe.name} trial {trial.number}"),
            _Pruning(trial, self, recipe),
        ]
        prepared = self.prepared
        trained = fit_recipe(
            recipe, prepared.encoder, prepared.train, prepared.valid, callbacks, unfinished
        )
        return trained.history


class _Pruning(Callback):
    """Reports every evaluation to the study, which may prune the trial: not of trees.

    Smaller trees, or a lower rate, take more trees to the same value: they have not fallen behind.
    """

    def __init__(self, trial: "Trial", search: _Search, recipe: Recipe) -> None:
        self.trial = trial
        self.search = search
        self.per_epoch = recipe.training.evaluations_per_epoch
        self.prunes = not isinstance(recipe.model, TreeSettings)

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        if not self.prunes:
            return
        value = evaluation.metrics[self.search.metric]
        self.trial.report(value, round(evaluation.epoch * self.per_epoch) - 1)
        if self.trial.should_prune():
            self.search.note(
                f"trial {self.trial.number}: stopped at {self.search.metric} {value:.4f}"
            )
            raise _optuna().TrialPruned


def _values_of_recipe(recipe: Recipe, space: Mapping[str, Bounds]) -> dict[str, Any]:
    """The recipe's values of a space, as a study stores them; those outside the bounds are sampled."""
    values = {}
    for path, bounds in space.items():
        value = value_at(recipe, path)
        if isinstance(bounds, OneOf):
            if value in [to_plain(choice) for choice in bounds.choices]:
                values[path] = study_value(value)
        elif isinstance(value, (int, float)) and _contains(bounds, value):
            values[path] = value
    return values


def _contains(bounds: Range, value: float) -> bool:
    """Whether a number lies within the bounds, on one of their steps if they have steps."""
    if not bounds.low <= value <= bounds.high:
        return False
    if bounds.step is None:
        return True
    steps = (value - bounds.low) / bounds.step
    return abs(steps - round(steps)) < STEP_TOLERANCE


def _is_alive(process: int) -> bool:
    if os.name == "posix":  # elsewhere signal 0 is not a test
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except OSError:  # another user's
            pass
    return True


def _states(study: "Study") -> dict[str, int]:
    """The number of ended trials by state: complete, fail, pruned."""
    states = (trial.state for trial in study.get_trials(deepcopy=False))
    counts = Counter(state.name.lower() for state in states if state.is_finished())
    return dict(sorted(counts.items()))


def _read_test_evaluations(path: Path) -> list[FinalEvaluation]:
    """The recorded evaluations on the test rows; losing count of them would make a search look better than it is."""
    if not path.exists():
        return []
    try:
        evaluations = [
            parse(FinalEvaluation, entry, "an entry", DataError)
            for entry in json.loads(path.read_bytes())
        ]
        if not evaluations:
            raise DataError("it is empty")
    except (OSError, ValueError, TypeError, RecursionError) as e:
        raise DataError(
            f"the record of test evaluations {path} is damaged ({e}): restore it"
        ) from None
    return evaluations


def _optuna() -> Any:
    """The module optuna, with its logging off."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna: pip install 'fieldwise[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
