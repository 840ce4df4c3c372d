"""A store of finished runs, each under the digest of its settings and data, so that none is repeated.

A run is a folder `KEY` of the store (`fieldwise.storage.artifact`) with `record.json` (the recipe's
settings, `TrainingResult.facts` and the environment) and `test.HASH.npz`: the test rows' labels `y`
[N] and scores `score` [N] of the main label, logits or predicted numbers within the label's range.
With a ranking, `ranking.HASH.npz` has the ranks of the test positives, and `lists.HASH.npz` the
lists of users.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fieldwise.bundle.bundle import bundle_digest
from fieldwise.errors import DataError
from fieldwise.models.registry import source_digest
from fieldwise.runs.default_settings import RULES_VERSION
from fieldwise.runs.inputs import Inputs
from fieldwise.runs.ranking import Ranked, RankedLists
from fieldwise.runs.recipe import Recipe
from fieldwise.storage.artifact import Artifact, ArtifactKind, writing
from fieldwise.storage.locks import try_lock
from fieldwise.storage.outputs import check_folder

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


class LabelScores(NamedTuple):
    """A label's targets and scores [N]: logits, or for a regression predictions within the label's range.

    Rows may have weights [N]. `fieldwise.evaluation.metrics.ScoredRows` are such rows after a check.
    """

    y: np.ndarray
    score: np.ndarray
    weight: np.ndarray | None = None


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
        rows: its scored test rows, if in memory; else they are read when needed.
        saved: the artifact in the store.
    """

    folder: Path
    about: Mapping[str, Any]
    rows: LabelScores | None = None
    saved: Artifact | None = None

    def __getitem__(self, fact: str) -> Any:
        """A fact about the run, or else a setting of its recipe; a DataError if the record lacks it."""
        for facts in (self.about, self.about.get("settings", {})):
            if fact in facts:
                return facts[fact]
        raise RUN.damaged(self.folder, f"its record has no {fact!r}")

    @cached_property
    def test_rows(self) -> LabelScores:
        """The scored test rows; a DataError if the file is damaged."""
        if self.rows is not None:
            return self.rows
        assert self.saved is not None, "a record without its rows was read"
        arrays = ["y", "score"]
        if self.about.get("weighted", False):
            arrays.append("weight")
        return LabelScores(*self._arrays("test", arrays))

    @cached_property
    def ranked(self) -> Ranked | None:
        """The ranking of the run, or None if there is none; a DataError if the file is damaged."""
        if "ranking" not in self.about:
            return None
        rank, popular, user = self._arrays("ranking", ("place", "popular", "user"))
        about = self.about["ranking"]
        lists = None
        assert self.saved is not None, "a record without its rows was read"
        if "lists" in self.saved.parts:
            lists = RankedLists(**dict(zip(LISTS, self._arrays("lists", LISTS), strict=True)))
        return Ranked(rank=rank, popular=popular, user=user, about=about, lists=lists)

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
        weight: np.ndarray | None = None,
    ) -> RunRecord:
        """Store a run, replacing one with the same key; a DataError if the disk does not let it."""
        facts = dict(about)
        with writing(RUN, self.folder / key) as writer:
            arrays = {"y": y, "score": score}
            if weight is not None:
                arrays["weight"] = weight
                facts["weighted"] = True
            writer.add("test", _packed(**arrays))
            if ranked is not None:
                writer.add(
                    "ranking", _packed(place=ranked.rank, popular=ranked.popular, user=ranked.user)
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
