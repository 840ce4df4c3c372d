"""A store of finished runs, each under the digest of its settings and data, so that none is repeated.

A run is a folder `KEY` of the store (`fieldwise.storage.artifact`) with `record.json` (the recipe's
settings, `TrainingResult.facts` and the environment) and `test.HASH.npz`: the test rows' labels `y`
[N] and scores `score` [N] of the main label, logits or predicted numbers within the label's range.
With a ranking, `ranking.HASH.npz` has the ranks of the test positives, and `lists.HASH.npz` the
lists of users. `recorded_runs` reuses stored runs, and trains and stores the others.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fieldwise.bundle.bundle import bundle_digest
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.models.registry import source_digest
from fieldwise.ops.devices import device_of
from fieldwise.runs.cache_key import data_settings
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.default_settings import RULES_VERSION
from fieldwise.runs.environment import commit, environment
from fieldwise.runs.inputs import Inputs, data_inputs
from fieldwise.runs.pipeline import TrainingResult, train_recipe
from fieldwise.runs.ranking import (
    Ranked,
    RankedLists,
    RankingSettings,
    RankingTask,
    check_ranking,
    rank_items,
)
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.row_digests import scored_rows_digest
from fieldwise.storage.artifact import Artifact, ArtifactKind, writing
from fieldwise.storage.cache import Cache
from fieldwise.storage.locks import try_lock
from fieldwise.storage.outputs import check_folder, keep_elsewhere
from fieldwise.training.callbacks import Callback
from fieldwise.training.checkpoint import CheckpointFolder

WAIT_SECONDS = 5.0
LISTS = ("model", "popular", "likes")
"""The arrays of `RankedLists`."""
ABOUT = "record.json"
RUN = ArtifactKind(
    name="run",
    manifest=ABOUT,
    format=2,
    oldest=2,
    parts={"test": "npz", "ranking": "npz", "lists": "npz"},
    damage=DataError,
    remedy="remove the folder, and run again",
    origin="give a folder of a store of runs",
    nan=True,
)


@dataclass(frozen=True)
class RunRecord:
    """One finished run.

    Args:
        folder: its folder in the store.
        about: its facts as plain values: `settings` of its recipe; `task`, `test_digest` (of the
            test rows), `test` (metrics of the test rows), `parameters`, `epochs` (or a tree model's
            rounds), `seconds`, `seconds_per_epoch` (None without a whole epoch), `counts` (of rows)
            and `finished` (seconds since 1970); from `with_words` `benchmark` (the recipe's name of
            the task, or its source of data) and `protocol` (the recipe's name of the split, or the
            kind of split).
        rows: its test rows' labels and scores, if in memory; else they are read when needed.
        saved: the artifact in the store.
    """

    folder: Path
    about: Mapping[str, Any]
    rows: tuple[np.ndarray, np.ndarray] | None = None
    saved: Artifact | None = None

    def __getitem__(self, fact: str) -> Any:
        """A fact about the run, or else a setting of its recipe; a DataError if the record lacks it."""
        for facts in (self.about, self.about.get("settings", {})):
            if fact in facts:
                return facts[fact]
        raise RUN.damaged(self.folder, f"its record has no {fact!r}")

    @cached_property
    def test_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and scores of the test rows, both [N]; a DataError if the file is damaged."""
        if self.rows is not None:
            return self.rows
        y, score = self._arrays("test", ("y", "score"))
        return y, score

    @cached_property
    def ranked(self) -> Ranked | None:
        """The ranking of the run, or None if there is none; a DataError if the file is damaged."""
        if "ranking" not in self.about:
            return None
        place, popular, user = self._arrays("ranking", ("place", "popular", "user"))
        about = self.about["ranking"]
        lists = None
        assert self.saved is not None, "a record without its rows was read"
        if "lists" in self.saved.parts:
            lists = RankedLists(**dict(zip(LISTS, self._arrays("lists", LISTS), strict=True)))
        return Ranked(place=place, popular=popular, user=user, about=about, lists=lists)

    def _arrays(self, part: str, arrays: Sequence[str]) -> list[np.ndarray]:
        assert self.saved is not None, "a record without its rows was read"
        try:
            with np.load(io.BytesIO(self.saved.content(part)), allow_pickle=False) as npz:
                return [npz[array] for array in arrays]
        except (OSError, ValueError, LookupError, TypeError) as e:
            if RUN.current(self.folder).get("sha256") != self.saved.digest:
                raise DataError(
                    f"the run {self.folder} was replaced while it was read: start again"
                ) from e
            if isinstance(e, DataError):
                raise
            raise RUN.damaged(self.folder, str(e)) from e


def read_record(folder: Path) -> RunRecord | None:
    """The run in a folder of a store, or None; a DataError if there is one that cannot be read."""
    if not (folder / ABOUT).is_file():
        return None
    saved = RUN.open(folder)
    return RunRecord(folder, saved.about, saved=saved)


def run_key(recipe: Recipe, inputs: Inputs) -> str:
    """The key of a recipe's run on its files: equal only if settings, seeds, files and warm start are equal.

    It does not include the recipe's name, description and search space, the data file's folder or
    fieldwise's version.
    """
    settings = recipe.to_dict()
    for name in ("description", "benchmark", "protocol", "search"):
        settings.pop(name, None)
    settings["training"].pop("checkpoint_minutes", None)
    settings["data"].pop("memory", None)
    if "path" in settings["data"]:
        settings["data"]["path"] = "file"
    if recipe.defaults == "data":
        settings["rules"] = RULES_VERSION  # for settings that the recipe does not give
    code_of_own_model = source_digest(recipe.model)
    if code_of_own_model is not None:
        settings["code"] = code_of_own_model
    if recipe.warm_start is not None:
        settings["warm_start"] = bundle_digest(Path(recipe.warm_start))

    facts = {"format": RUN.format, "settings": settings, "files": dict(inputs.files)}
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Store:
    """A folder of runs, which several processes may share."""

    folder: Path

    def check(self) -> None:
        """Create the folder and check that it is writable; else a DataError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise DataError(
                f"runs need a writable folder, but {self.folder} is not: {e.strerror or e}; choose another"
            ) from None
        check_folder(self.folder)

    def get(self, key: str) -> RunRecord | None:
        """The run with this key, or None (`read_record`)."""
        return read_record(self.folder / key)

    def put(
        self,
        key: str,
        about: Mapping[str, Any],
        y: np.ndarray,
        score: np.ndarray,
        ranked: Ranked | None = None,
    ) -> RunRecord:
        """Store a run, replacing one with the same key; a DataError if the disk does not let it."""
        facts = dict(about)
        with writing(RUN, self.folder / key) as writer:
            writer.add("test", _packed(y=y, score=score))
            if ranked is not None:
                writer.add(
                    "ranking", _packed(place=ranked.place, popular=ranked.popular, user=ranked.user)
                )
                facts["ranking"] = ranked.about
                if ranked.lists is not None:
                    writer.add("lists", _packed(**vars(ranked.lists)))
            saved = writer.finish(**facts)
        return RunRecord(self.folder / key, saved.about, saved=saved)

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """A context that claims the run of `key` unless another process has; yields whether it has the claim."""
        self.check()
        with contextlib.ExitStack() as stack:
            try:
                is_claimed = stack.enter_context(try_lock(self.folder / f".{key}.lock"))
            except OSError as e:
                raise DataError(
                    f"runs in {self.folder} cannot be shared between processes: {e.strerror or e}; choose a folder on "
                    "another disk"
                ) from e
            yield is_claimed


def _packed(**arrays: np.ndarray) -> bytes:
    """Arrays as the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


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
    """A run of every recipe with every seed; the files of equal data are read once."""
    inputs_by_data: dict[str, Inputs] = {}
    wanted = []
    for recipe in recipes:
        data = repr(recipe.data)
        if data not in inputs_by_data:
            inputs_by_data[data] = data_inputs(recipe, data_dir)
        inputs = inputs_by_data[data]
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
        record = self._put(run.key, about, y, score, ranked)
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
        y: np.ndarray,
        score: np.ndarray,
        ranked: Ranked | None,
    ) -> RunRecord:
        """Store a run; if the store cannot take it, save it elsewhere and raise a DataError that says where."""
        try:
            return self.store.put(key, about, y, score, ranked)
        except DataError as e:
            saved_in = keep_elsewhere(
                lambda folder: Store(folder).put(key, about, y, score, ranked), e
            )
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
