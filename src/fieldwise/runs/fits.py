"""Runs of a comparison: stored runs are reused, the others are trained and stored."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fieldwise.config import to_plain
from fieldwise.data.prepare.all_rows import encoded_by
from fieldwise.data.prepare.files import Inputs
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.ops.devices import device_of
from fieldwise.runs.data import data_inputs, data_settings, prepare_recipe
from fieldwise.runs.environment import commit, environment
from fieldwise.runs.identity import scored_rows_digest
from fieldwise.runs.pipeline import Run, train_recipe
from fieldwise.runs.ranking import RankingTask, rank_items
from fieldwise.runs.ranking_settings import RankingSettings, check_ranking
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import Record, RunFacts, Store, run_key
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.storage.cache import Cache
from fieldwise.storage.files import keep_elsewhere
from fieldwise.training.callbacks import Callback
from fieldwise.training.result import result_to_plain
from fieldwise.training.unfinished import Unfinished

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
) -> dict[str, list[Record]]:
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
    names = _names(recipes)
    store.check()
    for recipe in recipes if ranking is not None else ():
        try:
            check_ranking(recipe.schema)
        except ConfigError as e:
            raise ConfigError(f"{recipe.name}: {e}") from None
    wanted = list(_wanted(recipes, seeds, context.data_dir))
    for caution in {recipe.target_encoding.caution() for recipe in recipes if recipe.target_encoding is not None}:
        if caution:
            context.note(caution)
    runs = _Runs(store, context, ranking, since=began if again else None)
    found: dict[tuple[str, int], Record] = {}
    for recipe, record, how in runs.ended(wanted):
        found[recipe.name, recipe.seed] = record
        context.note(f"{recipe.name} seed {recipe.seed}: {how}, {len(found)} of {len(wanted)} runs")
    return {name: [found[name, seed] for seed in seeds] for name in names}


def with_words(record: Record, recipe: Recipe) -> Record:
    """A stored run, with the recipe's current names of task and protocol."""
    source = recipe.data.name or Path(str(recipe.data.path)).name
    words = {"benchmark": recipe.benchmark or source, "protocol": recipe.protocol or recipe.split.kind}
    return dataclasses.replace(record, about={**record.about, **words})


@dataclass(frozen=True)
class _Wanted:
    """A run that is needed."""

    recipe: Recipe
    inputs: Inputs
    key: str


def _names(recipes: Sequence[Recipe]) -> list[str]:
    names = [recipe.name for recipe in recipes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"recipes to compare must differ in name, found {twice[0]!r} twice: give each once")
    return names


def _wanted(recipes: Sequence[Recipe], seeds: Sequence[int], data_dir: Path) -> Iterator[_Wanted]:
    inputs: dict[str, Inputs] = {}
    for recipe in recipes:
        source = repr(recipe.data)
        if source not in inputs:
            inputs[source] = data_inputs(recipe, data_dir)
        for seed in seeds:
            one = with_seed(recipe, seed)
            yield _Wanted(one, inputs[source], run_key(one, inputs[source]))


class _LastPrepared:
    """A cache of the last prepared data, since consecutive runs usually use the same."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.last: tuple[tuple[Mapping[str, object], Inputs], Prepared] | None = None

    def of(self, one: _Wanted) -> Prepared:
        """The result of `prepare_recipe`."""
        source = data_settings(one.recipe), one.inputs  # two files may have the same settings
        if self.last is None or self.last[0] != source:
            self.last = None  # free the old rows before preparing new ones
            self.last = source, prepare_recipe(one.recipe, self.context.data_dir, cache=self.context.cache)
        return self.last[1]


class _Runs:
    """The runs of one call of `recorded_runs`; those that ended before `since` are run again."""

    def __init__(
        self, store: Store, context: RunContext, ranking: RankingSettings | None, *, since: float | None
    ) -> None:
        self.store, self.context, self.ranking, self.since = store, context, ranking, since
        self.rows = _LastPrepared(context)

    def ended(self, wanted: Sequence[_Wanted]) -> Iterator[tuple[Recipe, Record, str]]:
        """Every run as it ends, with `kept` or `done`; those in progress in another process come last."""
        while wanted:
            left = []
            for one in wanted:
                record, how = self._one(one)
                if record is None:
                    left.append(one)
                    continue
                record = with_words(record, one.recipe)
                _ = record.test_rows  # read now: another process may replace it with a newer run
                yield one.recipe, record, how
            if left and len(left) == len(wanted):
                self.context.note(f"waiting for {len(left)} runs of other processes")
            wanted = left
            if left:
                time.sleep(WAIT_SECONDS)

    def _one(self, one: _Wanted) -> tuple[Record | None, str]:
        """A stored run, or a new one; None while another process runs it."""
        record = self._kept(one.key)
        if record is not None:
            return record, "kept"
        with self.store.claim(one.key) as mine:
            if not mine:
                return None, "open"
            record = self._kept(one.key)  # another process may just have finished it
            return (self._run(one), "done") if record is None else (record, "kept")

    def _kept(self, key: str) -> Record | None:
        record = self.store.get(key)
        if record is None or (self.since is not None and record.facts.finished < self.since):
            return None
        return record if self.ranking is None or _has(record, self.ranking) else None

    def _run(self, one: _Wanted) -> Record:
        recipe, note = one.recipe, self.context.note
        title = f"{recipe.name} seed {recipe.seed}"
        unfinished = Unfinished.beside(self.store.folder / one.key, note=lambda sentence: note(f"{title}: {sentence}"))
        try:
            prepared = self.rows.of(one)
            task = None if self.ranking is None else RankingTask.of(prepared, recipe.schema, self.ranking)
            run = train_recipe(recipe, prepared, self.context.callbacks(title), unfinished)
        except FieldwiseError as e:
            raise type(e)(f"{title}: {e}") from None
        if run.result.stopped == "interrupted":
            raise KeyboardInterrupt
        if run.warm_start is not None and (caution := run.warm_start.caution()):
            note(f"{title}: {caution}")
        record = _stored(self.store, one, run, prepared, task)
        unfinished.remove()
        return record


def _stored(store: Store, one: _Wanted, run: Run, prepared: Prepared, task: RankingTask | None) -> Record:
    """Evaluate a run on its test rows, rank items if there is a task, and store the result."""
    recipe = one.recipe
    label = run.recipe.schema.label
    table = encoded_by(run.bundle.encoder, prepared.test, prepared.encoder)
    score = score_batches(run.bundle.network, table.batches(SCORING_BATCH))
    y, score = prepared.test.main, score.reshape(len(score), -1)[:, 0]
    score = label.predicted(score)
    facts = RunFacts(
        benchmark=recipe.benchmark,
        protocol=recipe.protocol,
        task=label.task,
        test_digest=scored_rows_digest(prepared.test.frame, recipe),
        seed=recipe.seed,
        test=run.test,
        parameters=run.parameters,
        epochs=run.result.epochs,
        seconds=round(run.seconds, 3),
        seconds_per_epoch=run.result.seconds_per_epoch,
        counts=run.counts,
        finished=time.time(),
    )
    about = {
        **run.record(),
        **to_plain(facts),
        "environment": environment(device_of(run.bundle.network)),
        "history": result_to_plain(run.result)["history"],
        "settings": run.recipe.to_dict(),
    }
    ranked = None if task is None else rank_items(run.bundle, task)
    y, score = y.astype(np.float64), score.astype(np.float64)
    return _put(store, one.key, lambda place: place.put(one.key, about, y, score, ranked))


def _has(record: Record, ranking: RankingSettings) -> bool:
    return "ranking" in record.about and record.about["ranking"].get("settings") == to_plain(ranking)


def _put(store: Store, key: str, put: Callable[[Store], Record]) -> Record:
    """Store a run; if the store is not writable, save it elsewhere, which the error names."""
    try:
        return put(store)
    except DataError as e:
        kept = keep_elsewhere(lambda folder: put(Store(folder)))
        if kept is None:
            raise
        raise DataError(f"{e}. The run was saved as {kept / key}: move that folder into {store.folder}") from e
