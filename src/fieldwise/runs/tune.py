"""Hyperparameter search on the validation rows; the test rows are evaluated once, at the end.

In `tune` Optuna chooses the settings; `Climb`, for few trials, tries those near the best ones. The
study is one append-only file of JSON lines (Optuna's journal): an interrupted search is resumed
from it, and several processes can share it.
"""

import contextlib
import hashlib
import json
import os
import secrets
import socket
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fieldwise.config import parse, to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.display import counted
from fieldwise.errors import ConfigError, DataError, TrainingError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.models.build import build_network
from fieldwise.runs.bounds import Bounds, Choices, study_value
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.inputs import data_inputs
from fieldwise.runs.pipeline import fit_recipe, resolve_defaults
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import recipe_toml
from fieldwise.runs.records import RunContext, RunRecord, Store, recorded_runs, run_key
from fieldwise.runs.search_space import check_space, search_space
from fieldwise.runs.setting_paths import setting_path, value_at, with_values
from fieldwise.storage.files import one_writer, write_atomically
from fieldwise.training.callbacks import Callback
from fieldwise.training.checkpoint import CheckpointFolder
from fieldwise.training.history import Evaluation
from fieldwise.training.objective import Objective, monitored
from fieldwise.training.optimizers import l2_strengths

if TYPE_CHECKING:
    from optuna import Study, Trial

LINEAR = "linear"  # attribute of a trial whose mean with LR (`mean_with_lr`) is LR alone
CHECKPOINTS = "checkpoints"  # attribute of a trial: what names the folder of its checkpoints
# they matter most
FIRST_SEARCHED = ("training.learning_rate", "training.l2.", "dropout", "model.embedding_dim")
# steps from one end of a range to the other, on a log scale where the range has one
STEPS_OF_RANGE = 6
UNFINISHED_SECONDS = 1.0  # an incomplete line that is not continued for this long is abandoned


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
    recipe = resolve_defaults(recipe, prepared.train)[0]  # the search needs complete settings
    short = (
        Path(recipe.name).stem if recipe.name.endswith(".toml") else recipe.name.replace("/", "-")
    )
    file = store / f"{short}-{key[:8]}.journal"
    search = _Search(file, recipe, space, prepared, context, seed)
    record = file.with_suffix(".test.json")
    _read_test_evaluations(record)  # before any work
    search.run(trials)
    study = search.study
    values = search.best()
    result = with_values(recipe, values)
    plain = {
        **result.to_dict(),
        "description": f"{result.description or result.name}, tuned on its validation rows",
    }
    write_atomically(file.with_suffix(".toml"), recipe_toml(plain).encode())
    evaluations = _read_test_evaluations(record)
    states = _states(study)
    # recorded before the evaluation itself
    if not evaluations or evaluations[-1].values != to_plain(dict(values)):
        last = FinalEvaluation(
            trial=study.best_trial.number,
            after_trials=sum(states.values()),
            values=to_plain(dict(values)),
        )
        evaluations.append(last)
        write_atomically(record, (json.dumps(to_plain(evaluations), indent=1) + "\n").encode())
    caution = ""
    # so are others, and their equal values say nothing of the settings
    if LINEAR in study.best_trial.user_attrs:
        done = [
            trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"
        ]
        linear = sum(LINEAR in trial.user_attrs for trial in done)
        caution = (
            f"CHECK the best settings: in {linear} of {len(done)} complete trials the best mean of the model with LR "
            "is LR alone (training.mean_with_lr), with one value whatever the settings: take LR, or another model"
        )
    runs = recorded_runs([result], range(final_seeds), store=Store(store / "runs"), context=context)
    return Tuned(
        study=file,
        recipe=result,
        recipe_file=file.with_suffix(".toml"),
        values=values,
        metric=search.metric,
        value=float(study.best_value),
        trials=states,
        caution=caution,
        runs=tuple(runs[result.name]),
        test_evaluations=tuple(evaluations),
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
        content = file.read_bytes() if file.exists() else b""
        # a crash left a line to which Optuna would append the next one
        if content and not content.endswith(b"\n"):
            time.sleep(UNFINISHED_SECONDS)  # another process may be writing it
            if file.read_bytes() == content:
                write_atomically(file, content[: content.rfind(b"\n") + 1])
                self.note(f"the last line of {file} was incomplete and has been removed")
        optuna = _optuna()
        try:
            self.study: Study = optuna.create_study(
                storage=optuna.storages.JournalStorage(
                    optuna.storages.journal.JournalFileBackend(str(file))
                ),
                study_name=file.stem,
                direction="maximize" if METRICS[self.metric].higher else "minimize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
            )
        except (ValueError, LookupError, RecursionError) as e:
            raise DataError(
                f"the study {file} is damaged ({e}): remove everything after its last complete line, or remove the "
                "file to start a new search"
            ) from None
        # else two processes that begin a study at once both add its first trial
        with one_writer(file.parent):
            if not self.study.get_trials(deepcopy=False):
                self.study.enqueue_trial(_own_values(recipe, space))
        for trial in self.study.get_trials(
            deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)
        ):
            host, process = trial.user_attrs.get("process", (None, 0))
            # to be resumed from its checkpoints
            if host == socket.gethostname() and not _alive(int(process)):
                with contextlib.suppress(ValueError):  # another process was quicker
                    self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                    if (token := trial.user_attrs.get(CHECKPOINTS)) is not None:
                        self.study.enqueue_trial(trial.params, user_attrs={CHECKPOINTS: token})
        states = Counter(trial.state.name for trial in self.study.get_trials(deepcopy=False))
        # The number of this process's next trial if no other process is at work.
        self.next = None if "RUNNING" in states else states.total() - states["WAITING"]
        self._draw_anew(self._ended())  # not the samples of earlier calls

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
            failed = f"the last one failed: {self.failures[-1]}" if self.failures else None
            raise ConfigError(
                f"no trial of {self.file} was completed: {failed or 'widen the space, or give more trials'}"
            )
        best = _optuna().trial.FixedTrial(self.study.best_params)
        return {path: self.space[path].suggest(best, path) for path in self.study.best_params}

    def run(self, trials: int) -> None:
        """Run trials until the study has `trials` ended ones."""
        recipe = self.recipe
        begun = self._ended()
        of = counted(trials, "trial")
        done = (
            f"{begun} of {of}"
            if begun <= trials
            else f"{begun} trials, more than the {trials} requested"
        )
        self.note(f"{recipe.name}: {done}; searching {', '.join(self.space)}")
        for sentence in recipe.cautions(self.prepared):
            self.note(f"WARNING: {sentence}")
        named = [setting_path(path)[2] for path in self.space if path.startswith("training.l2.")]
        layout = self.prepared.encoder.layout
        labels = len(recipe.schema.labels)
        # Every L2 pattern of the space must match parameters of the network.
        l2_strengths(
            build_network(recipe.model, layout, recipe.seed, labels=labels),
            dict.fromkeys(named, 1.0),
        )

        def stop(study: "Study", _: object) -> None:
            if self._ended() >= trials:
                study.stop()

        if begun < trials:
            self.study.optimize(self._trial, callbacks=[stop], catch=(TrainingError, ConfigError))

    def _trial(self, trial: "Trial") -> float:
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
        one = with_values(
            self.recipe, {path: bounds.suggest(trial, path) for path, bounds in self.space.items()}
        )
        callbacks = [
            *self.callbacks(f"{self.recipe.name} trial {trial.number}"),
            _Pruning(trial, self, one),
        ]
        try:
            rows = self.prepared
            result = fit_recipe(
                one, rows.encoder, rows.train, rows.valid, callbacks, unfinished
            ).history
            if result.stopped == "interrupted":
                raise KeyboardInterrupt
            if result.network_share == 0:
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
        value = result.best.metrics[self.metric]
        self.note(f"trial {trial.number}: {self.metric} {value:.4f}")
        unfinished.remove()
        return value


class _Pruning(Callback):
    """Reports every evaluation to the study, which may prune the trial."""

    def __init__(self, trial: "Trial", search: _Search, recipe: Recipe) -> None:
        self.trial = trial
        self.search = search
        self.per_epoch = recipe.training.evaluations_per_epoch

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        value = evaluation.metrics[self.search.metric]
        self.trial.report(value, round(evaluation.epoch * self.per_epoch) - 1)
        if self.trial.should_prune():
            self.search.note(
                f"trial {self.trial.number}: stopped at {self.search.metric} {value:.4f}"
            )
            raise _optuna().TrialPruned


def _own_values(recipe: Recipe, space: Mapping[str, Bounds]) -> dict[str, Any]:
    """The recipe's own values of a space, as a study stores them; those outside the bounds are sampled."""
    results = {}
    for path, bounds in space.items():
        value = value_at(recipe, path)
        if isinstance(bounds, Choices):
            if value in [to_plain(choice) for choice in bounds.choices]:
                results[path] = study_value(value)
        elif isinstance(value, (int, float)) and bounds.low <= value <= bounds.high:
            steps = 0.0 if bounds.step is None else (value - bounds.low) / bounds.step
            if abs(steps - round(steps)) < 1e-9:
                results[path] = value
    return results


def _alive(process: int) -> bool:
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
    ended = (trial.state for trial in study.get_trials(deepcopy=False) if trial.state.is_finished())
    return dict(sorted(Counter(state.name.lower() for state in ended).items()))


def _read_test_evaluations(path: Path) -> list[FinalEvaluation]:
    """The recorded evaluations on the test rows; losing count of them would make a search look better than it is."""
    if not path.exists():
        return []
    try:
        evaluations = [
            parse(FinalEvaluation, one, "an entry", DataError)
            for one in json.loads(path.read_bytes())
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


class Climb:
    """Proposes recipes close to the best one so far: each differs from it by one step of one setting.

    Optuna's samplers, which `tune` has, gain less from the dozen trials that `auto` has time for,
    where much is to gain: on 1,500 simulated rows, two seeds, 12 trials took AutoInt+'s validation
    logloss from .5806 and .5860 to .5658 and .5088, `GPSampler` to .5806 and .5247, `TPESampler` to
    .5806 (seed 0), also within one step around the start. FM, from .6249 and .5693: .6249 and .4992
    here, .6249 and .4935 by `GPSampler`, .6073 and .5262 by `TPESampler`.

    The settings and their ranges are those of `fieldwise tune`'s search space for the model. A step
    that helped is repeated. When every single step was tried, proposals change two settings at
    once, sampled at random.

    >>> from fieldwise import load_recipe
    >>> climb = Climb(load_recipe("simulated/lr"), seed=0)
    >>> path, value = next(iter(climb.propose().items()))
    >>> path, value < value_at(climb.best, path)
    ('training.learning_rate', True)
    """

    def __init__(self, recipe: Recipe, *, seed: int) -> None:
        self.best = recipe
        self.space = search_space(recipe)
        self.changed: dict[str, Any] = {}
        self._rng = np.random.default_rng(seed)
        self._tried: set[str] = set()
        self._last: list[tuple[str, int]] = []
        self._moves: deque[tuple[str, int]] = deque()
        self._fill()

    def propose(self) -> dict[str, Any] | None:
        """Settings to change in the best recipe, values by dotted path; None if no untried change is found."""
        for _ in range(200):
            if self._moves:
                self._last = [self._moves.popleft()]
            else:
                count = min(2, len(self.space))
                paths: Any = (
                    self._rng.choice(sorted(self.space), count, replace=False) if count else []
                )
                self._last = [(str(path), int(self._rng.choice([-1, 1]))) for path in paths]
            values = {
                p: v for p, direction in self._last if (v := self._step(p, direction)) is not None
            }
            words = repr(sorted({**self.changed, **values}.items()))
            if values and words not in self._tried:
                self._tried.add(words)
                return values
        return None

    def tell(self, values: Mapping[str, Any], *, better: bool) -> None:
        """Report the result of the last proposal; if it was better, it becomes the best recipe."""
        if not better:
            return
        self.best = with_values(self.best, values)
        self.changed |= values
        taken = dict(self._last)
        rest = [move for move in self._moves if move[0] not in taken]
        self._fill()
        others = [move for move in self._moves if move not in rest and move[0] not in taken]
        self._moves = deque([*taken.items(), *rest, *others])

    def _fill(self) -> None:
        def rank(path: str) -> int:
            return next(
                (k for k, word in enumerate(FIRST_SEARCHED) if word in path), len(FIRST_SEARCHED)
            )

        shuffled = [str(path) for path in self._rng.permutation(sorted(self.space))]
        paths = sorted(shuffled, key=rank)
        self._moves = deque((path, direction) for path in paths for direction in (-1, 1))

    def _step(self, path: str, direction: int) -> Any:
        """The next value in a direction; None at the end of the range."""
        bounds = self.space[path]
        old = value_at(self.best, path)
        number = isinstance(old, (int, float))
        new = None
        if isinstance(bounds, Choices):
            plain = [to_plain(choice) for choice in bounds.choices]
            if old in plain:
                k = plain.index(old) + direction
                new = bounds.choices[k] if 0 <= k < len(plain) else None
            elif number and all(isinstance(c, (int, float)) for c in plain):
                beyond = [c for c in plain if (c - old) * direction > 0]
                new = min(beyond, key=lambda c: abs(c - old)) if beyond else None
            else:
                new = bounds.choices[0 if direction < 0 else -1]
            return None if new is None or to_plain(new) == old else new
        low = float(bounds.low)
        high = float(bounds.high)
        if not number or (bounds.log and old <= 0):
            new = (low * high) ** 0.5 if bounds.log else (low + high) / 2
        elif (direction < 0 and old <= low) or (direction > 0 and old >= high):
            return None
        elif bounds.log:
            new = old * (high / low) ** (direction / STEPS_OF_RANGE)
        else:
            new = old + direction * float(
                bounds.step or (1 if bounds.whole else (high - low) / STEPS_OF_RANGE)
            )
        new = min(max(new, low), high)
        new = round(new) if bounds.whole else float(f"{new:.4g}")
        return None if new == old else new
