"""A search for better settings on the validation rows; the test rows are looked at once, when it is over.

The study lies in one append-only file of JSON lines (Optuna's journal): a search that was broken off goes on from it,
and processes that name the same one share it.
"""

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fieldwise.config import to_plain
from fieldwise.data.cache import Cache
from fieldwise.errors import ConfigError, TrainingError
from fieldwise.experiments.records import Record, Store, run_key
from fieldwise.experiments.runs import LastPrepared, recorded_runs
from fieldwise.files import write_atomically
from fieldwise.models.build import model_name
from fieldwise.pipeline import data_inputs, fit_recipe
from fieldwise.recipe import Recipe
from fieldwise.search_space import Bounds, Choices, default_space, grid_ends, merged_space, suggested
from fieldwise.training.fit import HIGHER_IS_BETTER, Evaluation, monitored
from fieldwise.training.objective import Objective
from fieldwise.training.progress import Progress, Silent

if TYPE_CHECKING:
    from optuna import Study, Trial

__all__ = ["Tuned", "check_space", "search_space", "tune", "with_values"]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search found.

    Args:
        study: its file.
        recipe: the best settings as a recipe of their own, also in `recipe_file`.
        values: what the search chose, by path.
        metric: what it went by, on the validation rows.
        value: the best of it.
        trials: how many ended, by how: complete, pruned, fail.
        runs: of the best settings with each final seed, test rows and all.
        test_looks: how often, and for which settings, this study's best was measured on the test rows so far.
    """

    study: Path
    recipe: Recipe
    recipe_file: Path
    values: Mapping[str, Any]
    metric: str
    value: float
    trials: Mapping[str, int]
    runs: tuple[Record, ...]
    test_looks: tuple[Mapping[str, Any], ...]


def search_space(recipe: Recipe) -> dict[str, Bounds]:
    """What may change: the package's space for the model, with the recipe's own `[search]` laid over it."""
    return merged_space(default_space(model_name(recipe.model)), recipe.search)


def check_space(recipe: Recipe, space: Mapping[str, Bounds]) -> None:
    """Try every end of a space on the recipe, before any work.

    Errors:
        ConfigError: a path that the recipe has not, or a value that it does not take.
    """
    if not space:
        raise ConfigError(f"recipe {recipe.name} has nothing to search: give it a [search]")
    for path, value in grid_ends(space):
        with_values(recipe, {path: value})


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values at dotted paths.

    Errors:
        ConfigError: a path or value that it does not take.
    """
    plain = recipe.to_dict()
    for path, value in values.items():
        keys = path.split(".")
        if keys[:2] == ["training", "l2"] and len(keys) > 2:
            keys = ["training", "l2", ".".join(keys[2:])]
        table = plain
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ConfigError(f"search.{path}: {key!r} of the recipe is no table of settings")
        table[keys[-1]] = to_plain(value)
    return Recipe.from_dict(plain, recipe.name)


def tune(
    recipe: Recipe,
    *,
    trials: int,
    store: Path,
    data_dir: Path,
    cache: Cache | None = None,
    seed: int = 0,
    final_seeds: int = 3,
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[str], Progress] = lambda _: Silent(),
) -> Tuned:
    """Search until the study has so many ended trials, then measure the best settings on the test rows.

    Each trial trains on the training rows and counts by its best evaluation of the validation rows; one that falls
    behind the median of the others at the same evaluation is broken off (Optuna's TPE sampler and median pruner).

    Args:
        recipe: what is varied.
        trials: of the whole study, earlier calls and other processes included.
        store: a folder of studies, with the final runs below `runs`.
        data_dir: the folder of public data sets.
        cache: of prepared data.
        seed: of the search.
        final_seeds: runs of the best settings, with seeds 0, 1, ...
        note: hears, in a sentence, what is done.
        progress: what shows a trial, by its title.

    Errors:
        ConfigError: a space that does not fit the recipe; Optuna is absent; no trial was completed.
        KeyboardInterrupt: Ctrl-C; the ended trials are kept.
    """
    optuna = _optuna()
    space = search_space(recipe)
    check_space(recipe, space)
    key = _study_key(recipe, space, data_dir)
    stem = f"{_short(recipe)}-{key[:8]}"
    file = store / f"{stem}.journal"
    store.mkdir(parents=True, exist_ok=True)
    metric = monitored(recipe.training, Objective.of(*recipe.schema.labels), grouped=recipe.schema.group is not None)
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file))),
        study_name=stem,
        direction="maximize" if HIGHER_IS_BETTER[metric] else "minimize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
    )
    _end_dead_trials(study)
    begun = len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(seed=(seed * 1_000_003 + begun) % 2**32)  # others than those before
    if begun == 0:
        note(f"{recipe.name}: {', '.join(space)}")
    rows = LastPrepared(data_dir, cache)

    def objective(trial: "Trial") -> float:
        trial.set_user_attr("process", [socket.gethostname(), os.getpid()])
        one = with_values(recipe, suggested(trial, space))
        shown = progress(f"{recipe.name} trial {trial.number}")
        result = fit_recipe(one, rows.of(one), _Reporting(shown, trial, metric)).result
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        note(f"trial {trial.number}: {metric} {result.best.metrics[metric]:.4f}")
        return result.best.metrics[metric]

    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL)
    if len(study.get_trials(deepcopy=False, states=ended)) < trials:
        stop = optuna.study.MaxTrialsCallback(trials, states=ended)
        study.optimize(objective, callbacks=[stop], catch=(TrainingError, ConfigError))
    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not complete:
        raise ConfigError(f"no trial of {file} was completed: widen the space, or give more trials")
    values = {path: _value(space[path], chosen) for path, chosen in study.best_params.items()}
    found = with_values(recipe, values)
    recipe_file = file.with_suffix(".toml")
    plain = {**found.to_dict(), "description": f"{found.description or found.name}, tuned on its validation rows"}
    write_atomically(recipe_file, tomli_w.dumps(plain).encode())
    looks = _looked(file.with_suffix(".test.json"), study, values)  # written down before the look itself
    runs = recorded_runs(
        [found],
        range(final_seeds),
        store=Store(store / "runs"),
        data_dir=data_dir,
        cache=cache,
        note=note,
        progress=progress,
    )[found.name]
    return Tuned(
        study=file,
        recipe=found,
        recipe_file=recipe_file,
        values=values,
        metric=metric,
        value=float(study.best_value),
        trials=_states(study),
        runs=tuple(runs),
        test_looks=tuple(looks),
    )


def _looked(path: Path, study: "Study", values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings that were measured on the test rows so far, these among them; kept in a file."""
    looks: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    plain = to_plain(dict(values))
    if not looks or looks[-1]["values"] != plain:
        ended = sum(_states(study).values())
        looks.append({"trial": study.best_trial.number, "after_trials": ended, "values": plain})
        write_atomically(path, (json.dumps(looks, indent=1) + "\n").encode())
    return looks


class _Reporting:
    """Passes everything on, and tells the study of every evaluation; a hopeless trial ends there."""

    def __init__(self, shown: Progress, trial: "Trial", metric: str) -> None:
        self.shown, self.trial, self.metric, self.looks = shown, trial, metric, 0
        self.epoch, self.step, self.close = shown.epoch, shown.step, shown.close

    def evaluation(self, look: Evaluation, monitor: str, better: bool) -> None:
        """The validation rows were scored."""
        self.shown.evaluation(look, monitor, better)
        self.trial.report(look.metrics[self.metric], self.looks)
        self.looks += 1
        if self.trial.should_prune():
            raise _optuna().TrialPruned


def _end_dead_trials(study: "Study") -> None:
    """Trials of processes of this machine that are gone count as failed: they will never end by themselves."""
    optuna = _optuna()
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        host, process = trial.user_attrs.get("process", (None, 0))
        if host == socket.gethostname() and not _alive(int(process)):
            with contextlib.suppress(ValueError):  # another process was quicker
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _states(study: "Study") -> dict[str, int]:
    names = [trial.state.name.lower() for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    return {name: names.count(name) for name in sorted(set(names))}


def _value(bounds: Bounds, chosen: Any) -> Any:
    """What a study keeps of a value, as the value itself."""
    if isinstance(bounds, Choices) and chosen not in bounds.choices:
        return json.loads(chosen)
    return chosen


def _study_key(recipe: Recipe, space: Mapping[str, Bounds], data_dir: Path) -> str:
    words = json.dumps([run_key(recipe, data_inputs(recipe, data_dir)), to_plain(dict(space))], sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()


def _short(recipe: Recipe) -> str:
    return Path(recipe.name).stem if recipe.name.endswith(".toml") else recipe.name.replace("/", "-")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna: pip install 'fieldwise[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
