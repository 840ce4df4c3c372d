"""A store of finished runs, each under the digest of its settings and data, so that none is repeated.

A run is a folder `KEY` of the store (`fieldwise.storage.artifact`) with `record.json` (the recipe's
settings, `TrainingResult.facts` and the environment) and `test.HASH.npz`: the test rows' labels `y`
[N] and scores `score` [N] of the main label, logits or predicted numbers within the label's range.
With a ranking, `ranking.HASH.npz` has the ranks of the test positives. `recorded_runs` reuses
stored runs, and trains and stores the others.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.bundle.bundle import bundle_digest
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared, encoded_by
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.models.registry import source_digest
from fieldwise.ops.devices import device_of
from fieldwise.runs.cache_key import data_settings
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.default_settings import RULES
from fieldwise.runs.environment import commit, environment
from fieldwise.runs.inputs import Inputs, data_inputs
from fieldwise.runs.pipeline import train_recipe
from fieldwise.runs.ranking import Ranked, RankingSettings, RankingTask, check_ranking, rank_items
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.row_digests import scored_rows_digest
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.storage.artifact import Artifact, Kind, writing
from fieldwise.storage.cache import Cache
from fieldwise.storage.files import check_folder, keep_elsewhere, try_lock
from fieldwise.training.callbacks import Callback
from fieldwise.training.checkpoint import CheckpointFolder

WAIT_SECONDS = 5.0
ABOUT = "record.json"
RUN = Kind(
    name="run",
    manifest=ABOUT,
    format=2,
    oldest=2,
    parts={"test": "npz", "ranking": "npz"},
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
        return Ranked(place=place, popular=popular, user=user, about=self.about["ranking"])

    def _arrays(self, part: str, arrays: Sequence[str]) -> list[np.ndarray]:
        assert self.saved is not None, "a record without its rows was read"
        try:
            with np.load(io.BytesIO(self.saved.content(part)), allow_pickle=False) as result:
                return [result[array] for array in arrays]
        except (OSError, ValueError, LookupError, TypeError) as e:
            if RUN.current(self.folder).get("sha256") != self.saved.digest:
                raise DataError(
                    f"the run {self.folder} was replaced while it was read: start again"
                ) from e
            raise e if isinstance(e, DataError) else RUN.damaged(self.folder, str(e)) from e


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
    if recipe.defaults == "data":
        settings["rules"] = RULES  # for settings that the recipe does not give
    for word in ("description", "benchmark", "protocol", "search"):
        settings.pop(word, None)
    settings["training"] = {
        k: v for k, v in settings["training"].items() if k != "checkpoint_minutes"
    }
    if (code := source_digest(recipe.model)) is not None:
        settings["code"] = code  # code of a user-defined model
    settings["data"] = {k: v for k, v in settings["data"].items() if k != "memory"}
    if "path" in settings["data"]:
        settings["data"] = {**settings["data"], "path": "file"}
    if recipe.warm_start is not None:
        settings["warm_start"] = bundle_digest(Path(recipe.warm_start))
    text = json.dumps(
        {"format": RUN.format, "settings": settings, "files": dict(inputs.files)}, sort_keys=True
    )
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
            saved = writer.finish(**facts)
        return RunRecord(self.folder / key, saved.about, saved=saved)

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """A context that claims the run of `key` unless another process has; yields whether it has the claim."""
        self.check()
        with contextlib.ExitStack() as held:
            try:
                mine = held.enter_context(try_lock(self.folder / f".{key}.lock"))
            except OSError as e:
                raise DataError(
                    f"runs in {self.folder} cannot be shared between processes: {e.strerror or e}; choose a folder on "
                    "another disk"
                ) from e
            yield mine


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
    names = [recipe.name for recipe in recipes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"recipes to compare must differ in name, found {twice[0]!r} twice: give each once"
        )
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
    for sentence in dict.fromkeys(sentence for recipe in recipes for sentence in recipe.cautions()):
        context.note(f"WARNING: {sentence}")
    runs = _Runs(store, context, ranking, began if again else None)
    results: dict[tuple[str, int], RunRecord] = {}
    for recipe, record, how in runs.ended(wanted):
        results[recipe.name, recipe.seed] = record
        context.note(
            f"{recipe.name} seed {recipe.seed}: {how}, {len(results)} of {len(wanted)} runs"
        )
    return {name: [results[name, seed] for seed in seeds] for name in names}


def with_words(record: RunRecord, recipe: Recipe) -> RunRecord:
    """A stored run, with the recipe's current names of task and protocol."""
    source = recipe.data.name or Path(str(recipe.data.path)).name
    words = {
        "benchmark": recipe.benchmark or source,
        "protocol": recipe.protocol or recipe.split.kind,
    }
    return dataclasses.replace(record, about={**record.about, **words})


# a run that is needed: its recipe, the files of its data, and its key
Wanted = tuple[Recipe, Inputs, str]


@dataclass
class _Runs:
    """The runs of one call of `recorded_runs`; those that ended before `since` are run again."""

    store: Store
    context: RunContext
    ranking: RankingSettings | None
    since: float | None
    last: tuple[tuple[Mapping[str, object], Inputs], Prepared] | None = None

    def ended(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Recipe, RunRecord, str]]:
        """Every run as it ends, with `kept` or `done`; those in progress in another process come last."""
        while wanted:
            left = []
            for recipe, inputs, key in wanted:
                record = self._kept(key)
                how = "kept"
                if record is None:
                    with self.store.claim(key) as mine:
                        if not mine:
                            left.append((recipe, inputs, key))
                            continue
                        record = self._kept(key)  # another process may just have finished it
                        if record is None:
                            record = self._run(recipe, inputs, key)
                            how = "done"
                record = with_words(record, recipe)
                _ = record.test_rows  # read now: another process may replace it with a newer run
                yield recipe, record, how
            if left and len(left) == len(wanted):
                self.context.note(f"waiting for {len(left)} runs of other processes")
            wanted = left
            if left:
                time.sleep(WAIT_SECONDS)

    def _kept(self, key: str) -> RunRecord | None:
        record = self.store.get(key)
        if record is None or (
            self.since is not None and record.about.get("finished", 0.0) < self.since
        ):
            return None
        ranked = record.about.get("ranking", {})
        return (
            record
            if self.ranking is None or ranked.get("settings") == to_plain(self.ranking)
            else None
        )

    def _run(self, recipe: Recipe, inputs: Inputs, key: str) -> RunRecord:
        title = f"{recipe.name} seed {recipe.seed}"

        def note(sentence: str) -> None:
            self.context.note(f"{title}: {sentence}")

        unfinished = CheckpointFolder.beside(self.store.folder / key, note)
        try:
            source = data_settings(recipe), inputs  # two files may have the same settings
            # the next run usually needs the same rows
            if self.last is None or self.last[0] != source:
                self.last = None  # free the old ones before preparing new ones
                self.last = (
                    source,
                    prepare_recipe(recipe, self.context.data_dir, cache=self.context.cache),
                )
            prepared = self.last[1]
            task = (
                None if self.ranking is None else RankingTask(prepared, recipe.schema, self.ranking)
            )
            done = train_recipe(recipe, prepared, self.context.callbacks(title), unfinished)
        except FieldwiseError as e:
            raise type(e)(f"{title}: {e}") from None
        if done.history.stopped == "interrupted":
            raise KeyboardInterrupt
        if done.warm_start is not None and (caution := done.warm_start.caution()):
            note(caution)
        label = done.recipe.schema.label
        bundle = done.bundle
        table = encoded_by(bundle.encoder, prepared.test, prepared.encoder)
        score = score_batches(bundle.network, table.batches(SCORING_BATCH))
        score = label.predicted(score.reshape(len(score), -1)[:, 0])
        about = {
            "recipe": done.recipe.name,
            **done.facts(),
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
            record = self.store.put(key, about, *rows, ranked)
        except DataError as e:
            kept = keep_elsewhere(lambda folder: Store(folder).put(key, about, *rows, ranked))
            if kept is None:
                raise
            where = f"{kept / key}: move that folder into {self.store.folder}"
            raise DataError(f"{e}. The run was saved as {where}") from e
        unfinished.remove()
        return record
