"""Runs of recipes with seeds: those that a store has are read, the others are trained and stored."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.ops.devices import device_of
from fieldwise.runs.cache_key import data_settings
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.environment import commit, environment
from fieldwise.runs.inputs import Inputs, data_inputs, input_files
from fieldwise.runs.pipeline import TrainingResult, train_recipe
from fieldwise.runs.ranking import (
    Ranked,
    RankingSettings,
    RankingTask,
    check_ranking,
    rank_items,
)
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import LabelScores, RunRecord, Store, run_key
from fieldwise.runs.row_digests import scored_rows_digest
from fieldwise.storage.cache import Cache
from fieldwise.storage.outputs import keep_elsewhere
from fieldwise.training.callbacks import Callback
from fieldwise.training.checkpoint import CheckpointFolder

WAIT_SECONDS = 5.0


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed of weights, row order and dropout, and the same rows."""
    return dataclasses.replace(recipe, seed=seed, data_seed=recipe.rows_seed)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Where runs read their data, and where they report their progress."""

    data_dir: Path  # of public data sets
    cache: Cache | None = None  # of prepared data
    note: Callable[[str], None] = lambda _: None  # called with a sentence on each step
    # makes those of a training, by its title
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

    Processes that share a store share the work: runs in progress in another process are waited for
    at the end.

    Args:
        recipes: recipes with different names.
        seeds: seeds of weights, row order and dropout; split and negatives use each recipe's own
            seed.
        store: the store of runs; each run is stored when it is finished.
        context: where runs read their data and report their progress.
        again: run everything again.
        ranking: also rank items for the users of the test rows; stored runs without this ranking
            are run again.

    Errors:
        KeyboardInterrupt: Ctrl-C; finished runs are kept, and the one in progress is resumed the
            next time.
        ConfigError, DataError, TrainingError: an error of a run; the message names recipe and seed.
    """
    began = time.time()
    commit()  # read now: the checkout may change before a run ends
    counts = Counter(recipe.name for recipe in recipes)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ConfigError(
            f"recipes to compare must differ in name, found {repeated[0]!r} twice: give each once"
        )
    store.check()
    if ranking is not None:
        for recipe in recipes:
            try:
                check_ranking(recipe.schema)
            except ConfigError as e:
                raise ConfigError(f"{recipe.name}: ", *e.args) from None
    wanted = _wanted_runs(recipes, seeds, context.data_dir)
    cautions = (sentence for recipe in recipes for sentence in recipe.cautions())
    for sentence in dict.fromkeys(cautions):
        context.note(f"WARNING: {sentence}")

    runs = _Runs(store, context, ranking, began if again else None)
    records: dict[tuple[str, int], RunRecord] = {}
    for recipe, record, how in runs.ended(wanted):
        records[recipe.name, recipe.seed] = record
        context.note(
            f"{recipe.name} seed {recipe.seed}: {how}, {len(records)} of {len(wanted)} runs"
        )
    return {recipe.name: [records[recipe.name, seed] for seed in seeds] for recipe in recipes}


class WantedRun(NamedTuple):
    """A run that is needed."""

    recipe: Recipe
    inputs: Inputs
    key: str


def _wanted_runs(
    recipes: Sequence[Recipe], seeds: Sequence[int], data_dir: Path
) -> list[WantedRun]:
    """A run of every recipe with every seed; equal files are read once."""
    inputs_by_files: dict[str, Inputs] = {}
    wanted = []
    for recipe in recipes:
        # recipes on one table may read other files besides: of features, or of vectors by id
        files = repr((recipe.data, input_files(recipe, data_dir)))
        if files not in inputs_by_files:
            inputs_by_files[files] = data_inputs(recipe, data_dir)
        inputs = inputs_by_files[files]
        for seed in seeds:
            seeded = with_seed(recipe, seed)
            wanted.append(WantedRun(seeded, inputs, run_key(seeded, inputs)))
    return wanted


def with_words(record: RunRecord, recipe: Recipe) -> RunRecord:
    """A stored run, with the recipe's current names of task and protocol."""
    source = recipe.data.name or Path(str(recipe.data.path)).name
    words = {
        "benchmark": recipe.benchmark or source,
        "protocol": recipe.protocol or recipe.split.kind,
    }
    return dataclasses.replace(record, about={**record.about, **words})


@dataclass
class _Runs:
    """The runs of one call of `recorded_runs`; those that ended before `since` are run again."""

    store: Store
    context: RunContext
    ranking: RankingSettings | None
    since: float | None
    last_data: tuple[Mapping[str, object], Inputs] | None = None
    last_prepared: Prepared | None = None

    def ended(self, wanted: Sequence[WantedRun]) -> Iterator[tuple[Recipe, RunRecord, str]]:
        """Every run as it ends, with `kept` or `done`; those in progress in another process come last."""
        while wanted:
            in_progress_elsewhere = []
            for run in wanted:
                ended = self._kept_or_done(run)
                if ended is None:
                    in_progress_elsewhere.append(run)
                    continue
                record, how = ended
                record = with_words(record, run.recipe)
                _ = record.test_rows  # read now: another process may replace it with a newer run
                yield run.recipe, record, how

            if in_progress_elsewhere and len(in_progress_elsewhere) == len(wanted):
                self.context.note(f"waiting for {len(wanted)} runs of other processes")
            wanted = in_progress_elsewhere
            if wanted:
                time.sleep(WAIT_SECONDS)

    def _kept_or_done(self, run: WantedRun) -> tuple[RunRecord, str] | None:
        """The record of a run, `kept` in the store or `done` now; None if another process has claimed the run."""
        record = self._kept(run.key)
        if record is not None:
            return record, "kept"
        with self.store.claim(run.key) as is_claimed:
            if not is_claimed:
                return None
            record = self._kept(run.key)  # another process may just have finished it
            if record is not None:
                return record, "kept"
            return self._run(run), "done"

    def _kept(self, key: str) -> RunRecord | None:
        """The stored run, if it is new enough and has the ranking that is needed."""
        record = self.store.get(key)
        if record is None:
            return None
        if self.since is not None and record.about.get("finished", 0.0) < self.since:
            return None
        if self.ranking is not None:
            stored_ranking = record.about.get("ranking", {})
            if stored_ranking.get("settings") != to_plain(self.ranking):
                return None
        return record

    def _run(self, run: WantedRun) -> RunRecord:
        """Train a recipe, score the test rows and store the run."""
        recipe = run.recipe
        title = f"{recipe.name} seed {recipe.seed}"

        def note(sentence: str) -> None:
            self.context.note(f"{title}: {sentence}")

        unfinished = CheckpointFolder.beside(self.store.folder / run.key, note)
        task = None
        try:
            prepared = self._prepared(recipe, run.inputs)
            if self.ranking is not None:
                task = RankingTask(prepared, recipe.schema, self.ranking)
            trained = train_recipe(recipe, prepared, self.context.callbacks(title), unfinished)
        except FieldwiseError as e:
            raise type(e)(f"{title}: ", *e.args) from None
        if trained.history.stopped == "interrupted":
            raise KeyboardInterrupt
        if trained.warm_start is not None:
            caution = trained.warm_start.caution()
            if caution:
                note(caution)

        bundle = trained.bundle
        score = bundle.part_scores(prepared.test, prepared.encoder)[:, 0]
        about = _about(trained, recipe, prepared)
        ranked = None if task is None else rank_items(bundle, task)
        y = prepared.test.main.astype(np.float64)
        weight = recipe.schema.label.log_weights(y, prepared.test.table.weight)
        record = self._put(run.key, about, LabelScores(y, score, weight), ranked)
        unfinished.remove()
        return record

    def _prepared(self, recipe: Recipe, inputs: Inputs) -> Prepared:
        """The rows of a recipe; those of the latest run are kept, since the next one usually needs the same."""
        data = (data_settings(recipe), inputs)  # two files may have the same settings
        if self.last_prepared is None or self.last_data != data:
            self.last_prepared = None  # free the old ones before preparing new ones
            self.last_prepared = prepare_recipe(
                recipe, self.context.data_dir, cache=self.context.cache
            )
            self.last_data = data
        return self.last_prepared

    def _put(
        self,
        key: str,
        about: Mapping[str, Any],
        rows: LabelScores,
        ranked: Ranked | None,
    ) -> RunRecord:
        """Store a run; if the store cannot take it, save it elsewhere and raise a DataError that says where."""

        def put(store: Store) -> RunRecord:
            return store.put(key, about, rows.y, rows.score, ranked, rows.weight)

        try:
            return put(self.store)
        except DataError as e:
            saved_in = keep_elsewhere(lambda folder: put(Store(folder)), e)
            raise DataError(
                f"{e}. The run was saved as {saved_in / key}: move that folder into {self.store.folder}"
            ) from e


def _about(trained: TrainingResult, recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """The facts of a run, as plain values; `recipe` is as it was before defaults were resolved."""
    return {
        "recipe": trained.recipe.name,
        **trained.facts(),
        "task": trained.recipe.schema.label.task,
        "test_digest": scored_rows_digest(prepared.test.frame, recipe),
        "finished": time.time(),
        "environment": environment(device_of(trained.bundle.network)),
        "history": to_plain(trained.history.evaluations),
        "settings": trained.recipe.to_dict(),
    }
