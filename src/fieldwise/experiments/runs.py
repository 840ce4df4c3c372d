"""Runs that a comparison needs: those of the store as they are, the others trained and put there."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fieldwise.data.cache import Cache
from fieldwise.data.prepare import Prepared
from fieldwise.errors import ConfigError, TrainingError
from fieldwise.experiments.environment import environment
from fieldwise.experiments.records import Record, Store, run_key
from fieldwise.models.scoring import SCORING_BATCH, score_batches
from fieldwise.pipeline import data_inputs, data_settings, prepare_recipe, train_recipe
from fieldwise.recipe import Recipe
from fieldwise.training.progress import Progress, Silent

__all__ = ["LastPrepared", "recorded_runs", "with_seed"]

WAIT_SECONDS = 5.0


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed of weights, row order and dropout, and the rows that it had."""
    return dataclasses.replace(recipe, seed=seed, data_seed=recipe.rows_seed)


def recorded_runs(
    recipes: Sequence[Recipe],
    seeds: Sequence[int],
    *,
    store: Store,
    data_dir: Path,
    cache: Cache | None = None,
    again: bool = False,
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[str], Progress] = lambda _: Silent(),
) -> dict[str, list[Record]]:
    """A run of every recipe with every seed, by the recipe's name; what the store has is not run again.

    Processes that share a store share the work: a run that another one is at is left to it, and waited for at the end.

    Args:
        recipes: of different names.
        seeds: of weights, row order and dropout; split and negatives are each recipe's own.
        store: where runs are found and kept, each as soon as it is done.
        data_dir: the folder of public data sets.
        cache: of prepared data.
        again: run everything anew.
        note: hears, in a sentence, what is done.
        progress: what shows a run, by its title.

    Errors:
        KeyboardInterrupt: Ctrl-C; finished runs are kept, the one in progress is not.
        ConfigError, DataError, TrainingError: of the recipe and seed that the sentence names.
    """
    names = [recipe.name for recipe in recipes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"recipes to compare must differ in name, found {twice[0]!r} twice: give each once")
    wanted = list(_keyed(recipes, seeds, data_dir))
    found: dict[tuple[str, int], Record] = {}
    made: set[str] = set()
    open_runs = wanted
    rows = LastPrepared(data_dir, cache)
    while open_runs:
        left = []
        for recipe, key in open_runs:
            record = None if again and key not in made else store.get(key)
            if record is None:
                with store.claim(key) as mine:
                    if not mine:
                        left.append((recipe, key))
                        continue
                    record = None if again and key not in made else store.get(key)  # another may just have ended it
                    if record is None:
                        record = _run(recipe, key, store, rows, progress)
            made.add(key)
            found[recipe.name, recipe.seed] = record
            note(f"{recipe.name} seed {recipe.seed}: {len(found)} of {len(wanted)} runs")
        open_runs = left
        if left:
            time.sleep(WAIT_SECONDS)
    return {name: [found[name, seed] for seed in seeds] for name in names}


def _keyed(recipes: Sequence[Recipe], seeds: Sequence[int], data_dir: Path) -> Iterator[tuple[Recipe, str]]:
    inputs: dict[str, object] = {}
    for recipe in recipes:
        source = repr(recipe.data)
        if source not in inputs:
            inputs[source] = data_inputs(recipe, data_dir)
        for seed in seeds:
            one = with_seed(recipe, seed)
            yield one, run_key(one, inputs[source])  # type: ignore[arg-type]


class LastPrepared:
    """Prepared data, the last kept: runs that follow each other mostly read the same.

    Args:
        data_dir: the folder of public data sets.
        cache: of prepared data.
    """

    def __init__(self, data_dir: Path, cache: Cache | None) -> None:
        self.data_dir, self.cache = data_dir, cache
        self.last: tuple[Mapping[str, object], Prepared] | None = None

    def of(self, recipe: Recipe) -> Prepared:
        """What `prepare_recipe` gives."""
        settings = data_settings(recipe)
        if self.last is None or self.last[0] != settings:
            self.last = None  # let go of the old rows before new ones are made
            self.last = settings, prepare_recipe(recipe, self.data_dir, cache=self.cache)
        return self.last[1]


def _run(recipe: Recipe, key: str, store: Store, rows: LastPrepared, progress: Callable[[str], Progress]) -> Record:
    title = f"{recipe.name} seed {recipe.seed}"
    prepared = rows.of(recipe)
    try:
        run = train_recipe(recipe, prepared, progress(title))
    except TrainingError as e:
        raise TrainingError(f"{title}: {e}") from None
    if run.result.stopped == "interrupted":
        raise KeyboardInterrupt
    label = recipe.schema.label
    score = score_batches(run.bundle.network, prepared.test.table.batches(SCORING_BATCH))
    y = prepared.test.y
    if y.ndim == 2:
        y, score = y[:, 0], score[:, 0]
    if label.range is not None and label.task == "regression":
        score = np.clip(score, *label.range)
    about = {
        **run.record(),
        "benchmark": recipe.benchmark,
        "protocol": recipe.protocol,
        "task": label.task,
        "environment": environment(),
        "settings": recipe.to_dict(),
    }
    return store.put(key, about, y.astype(np.float64), score.astype(np.float64))
