"""Runs of a comparison: stored runs are reused, the others are trained and stored."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared, encoded_by
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.ops.devices import device_of
from fieldwise.runs.data import Inputs, data_inputs, data_settings, prepare_recipe
from fieldwise.runs.environment import commit, environment
from fieldwise.runs.identity import scored_rows_digest
from fieldwise.runs.pipeline import TrainingResult, train_recipe
from fieldwise.runs.ranking import RankingSettings, RankingTask, check_ranking, rank_items
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import RunRecord, Store, run_key
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.storage.cache import Cache
from fieldwise.storage.files import keep_elsewhere
from fieldwise.training.callbacks import Callback
from fieldwise.training.checkpoint import Unfinished

__all__ = ["RunContext", "recorded_runs", "with_seed", "with_words"]

WAIT_SECONDS = 5.0


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed of weights, row order and dropout, and the same rows."""
    return dataclasses.replace(recipe, seed=seed, data_seed=recipe.rows_seed)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Where runs read their data, and where they report their progress.

    Args:
        data_dir: the folder of public data sets.
        cache: cache of prepared data.
        note: called with a sentence on each step.
        callbacks: makes the callbacks of a training, by its title.
    """

    data_dir: Path
    cache: Cache | None = None
    note: Callable[[str], None] = lambda _: None
    callbacks: Callable[[str], Sequence[Callback]] = lambda _: ()


def recorded_runs(
    recipes: Sequence[Recipe],
    seeds: Sequence[int],
    *,
    store: Store,
    context: RunContext,
    again: bool = False,
    ranking: RankingSettings | None = None,
) -> dict[str, list[RunRecord]]:
    """A run of every recipe with every seed, by recipe name; stored runs are not run again.

    Processes that share a store share the work: runs in progress in another process are waited for at the end.

    Args:
        recipes: recipes with different names.
        seeds: seeds of weights, row order and dropout; split and negatives use each recipe's own seed.
        store: the store of runs; each run is stored when it is finished.
        context: where runs read their data and report their progress.
        again: run everything again.
        ranking: also rank items for the users of the test rows; stored runs without this ranking are run again.

    Errors:
        KeyboardInterrupt: Ctrl-C; finished runs are kept, and the one in progress is resumed the next time.
        ConfigError, DataError, TrainingError: an error of a run; the message names recipe and seed.
    """
    began = time.time()
    commit()  # read now: the checkout may change before a run ends
    names = [recipe.name for recipe in recipes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"recipes to compare must differ in name, found {twice[0]!r} twice: give each once")
    store.check()
    for recipe in recipes if ranking is not None else ():
        try:
            check_ranking(recipe.schema)
        except ConfigError as e:
            raise ConfigError(f"{recipe.name}: {e}") from None
    inputs: dict[str, Inputs] = {}
    wanted: list[Wanted] = []
    for recipe in recipes:
        if (source := repr(recipe.data)) not in inputs:
            inputs[source] = data_inputs(recipe, context.data_dir)
        own = [with_seed(recipe, seed) for seed in seeds]
        wanted += [(one, inputs[source], run_key(one, inputs[source])) for one in own]
    for caution in {recipe.target_encoding.caution() for recipe in recipes if recipe.target_encoding is not None}:
        if caution:
            context.note(caution)
    runs = _Runs(store, context, ranking, since=began if again else None)
    found: dict[tuple[str, int], RunRecord] = {}
    for recipe, record, how in runs.ended(wanted):
        found[recipe.name, recipe.seed] = record
        context.note(f"{recipe.name} seed {recipe.seed}: {how}, {len(found)} of {len(wanted)} runs")
    return {name: [found[name, seed] for seed in seeds] for name in names}


def with_words(record: RunRecord, recipe: Recipe) -> RunRecord:
    """A stored run, with the recipe's current names of task and protocol."""
    source = recipe.data.name or Path(str(recipe.data.path)).name
    words = {"benchmark": recipe.benchmark or source, "protocol": recipe.protocol or recipe.split.kind}
    return dataclasses.replace(record, about={**record.about, **words})


Wanted = tuple[Recipe, Inputs, str]  # a run that is needed: its recipe, the files of its data, and its key


class _Runs:
    """The runs of one call of `recorded_runs`; those that ended before `since` are run again."""

    def __init__(
        self, store: Store, context: RunContext, ranking: RankingSettings | None, *, since: float | None
    ) -> None:
        self.store, self.context, self.ranking, self.since = store, context, ranking, since
        self.last: tuple[tuple[Mapping[str, object], Inputs], Prepared] | None = None

    def ended(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Recipe, RunRecord, str]]:
        """Every run as it ends, with `kept` or `done`; those in progress in another process come last."""
        while wanted:
            left = []
            for recipe, inputs, key in wanted:
                record, how = self._one(recipe, inputs, key)
                if record is None:
                    left.append((recipe, inputs, key))
                    continue
                record = with_words(record, recipe)
                _ = record.test_rows  # read now: another process may replace it with a newer run
                yield recipe, record, how
            if left and len(left) == len(wanted):
                self.context.note(f"waiting for {len(left)} runs of other processes")
            wanted = left
            if left:
                time.sleep(WAIT_SECONDS)

    def _one(self, recipe: Recipe, inputs: Inputs, key: str) -> tuple[RunRecord | None, str]:
        """A stored run, or a new one; None while another process runs it."""
        record = self._kept(key)
        if record is not None:
            return record, "kept"
        with self.store.claim(key) as mine:
            if not mine:
                return None, "open"
            record = self._kept(key)  # another process may just have finished it
            return (self._run(recipe, inputs, key), "done") if record is None else (record, "kept")

    def _kept(self, key: str) -> RunRecord | None:
        record = self.store.get(key)
        if record is None or (self.since is not None and record.about.get("finished", 0.0) < self.since):
            return None
        ranked = record.about.get("ranking", {})
        return record if self.ranking is None or ranked.get("settings") == to_plain(self.ranking) else None

    def _run(self, recipe: Recipe, inputs: Inputs, key: str) -> RunRecord:
        title = f"{recipe.name} seed {recipe.seed}"

        def note(sentence: str) -> None:
            self.context.note(f"{title}: {sentence}")

        unfinished = Unfinished.beside(self.store.folder / key, note=note)
        try:
            prepared = self._prepared(recipe, inputs)
            task = None if self.ranking is None else RankingTask(prepared, recipe.schema, self.ranking)
            done = train_recipe(recipe, prepared, self.context.callbacks(title), unfinished)
        except FieldwiseError as e:
            raise type(e)(f"{title}: {e}") from None
        if done.history.stopped == "interrupted":
            raise KeyboardInterrupt
        if done.warm_start is not None and (caution := done.warm_start.caution()):
            note(caution)
        record = _stored(self.store, key, recipe, done, prepared, task)
        unfinished.remove()
        return record

    def _prepared(self, recipe: Recipe, inputs: Inputs) -> Prepared:
        """The result of `prepare_recipe`, kept for the next run, which usually needs the same."""
        source = data_settings(recipe), inputs  # two files may have the same settings
        if self.last is None or self.last[0] != source:
            self.last = None  # free the old rows before preparing new ones
            self.last = source, prepare_recipe(recipe, self.context.data_dir, cache=self.context.cache)
        return self.last[1]


def _stored(
    store: Store, key: str, recipe: Recipe, done: TrainingResult, prepared: Prepared, task: RankingTask | None
) -> RunRecord:
    """Score the test rows of a run, rank items if there is a task, and store the result.

    If the store is not writable, the run is saved elsewhere, which the error names.
    """
    label, bundle = done.recipe.schema.label, done.bundle
    table = encoded_by(bundle.encoder, prepared.test, prepared.encoder)
    score = score_batches(bundle.network, table.batches(SCORING_BATCH))
    score = label.predicted(score.reshape(len(score), -1)[:, 0])
    about = {
        **done.record(),
        "benchmark": recipe.benchmark,
        "protocol": recipe.protocol,
        "task": label.task,
        "test_digest": scored_rows_digest(prepared.test.frame, recipe),
        "finished": time.time(),
        "environment": environment(device_of(bundle.network)),
        "history": to_plain(done.history.evaluations),
        "settings": done.recipe.to_dict(),
    }
    ranked = None if task is None else rank_items(bundle, task)
    rows = prepared.test.main.astype(np.float64), score.astype(np.float64)
    try:
        return store.put(key, about, *rows, ranked)
    except DataError as e:
        kept = keep_elsewhere(lambda folder: Store(folder).put(key, about, *rows, ranked))
        if kept is None:
            raise
        raise DataError(f"{e}. The run was saved as {kept / key}: move that folder into {store.folder}") from e
