"""A store of finished runs, each under the digest of its settings and data, so that none is repeated.

A run is a folder `KEY` of the store (`fieldwise.storage.artifact`) with `record.json` (`TrainingResult.record`, the
protocol and the environment) and `test.HASH.npz`: the test rows' labels `y` [N] and scores `score` [N] of the main
label, logits or predicted numbers within the label's range. With a ranking, `ranking.HASH.npz` has the ranks of the
test positives.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.bundle.files import bundle_digest
from fieldwise.errors import DataError
from fieldwise.models.own import source_digest
from fieldwise.runs.data import Inputs
from fieldwise.runs.default_settings import RULES
from fieldwise.runs.ranking import Ranked
from fieldwise.runs.recipe import Recipe
from fieldwise.storage.artifact import Artifact, Kind, writing
from fieldwise.storage.files import check_folder
from fieldwise.storage.folders import try_lock

__all__ = ["RunRecord", "Store", "read_record", "run_key"]

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
        about: its facts as plain values; leaderboards, `tune` and reports read `benchmark` (the recipe's name of the
            task, or its source of data), `protocol` (the recipe's name of the split, or the kind of split), `task`,
            `test_digest` (of the test rows), `seed`, `test` (metrics of the test rows), `parameters`, `epochs` (or a
            tree model's rounds), `seconds`, `seconds_per_epoch` (None without a whole epoch), `counts` (of rows) and
            `finished` (seconds since 1970).
        rows: its test rows' labels and scores, if in memory; else they are read when needed.
        saved: the artifact in the store.
    """

    folder: Path
    about: Mapping[str, Any]
    rows: tuple[np.ndarray, np.ndarray] | None = None
    saved: Artifact | None = None

    def __getitem__(self, fact: str) -> Any:
        """A fact about the run.

        Errors:
            DataError: the record lacks it.
        """
        if fact not in self.about:
            raise RUN.damaged(self.folder, f"its record has no {fact!r}")
        return self.about[fact]

    @cached_property
    def test_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and scores of the test rows, both [N].

        Errors:
            DataError: the file is damaged.
        """
        if self.rows is not None:
            return self.rows
        y, score = self._arrays("test", ("y", "score"))
        return y, score

    @cached_property
    def ranked(self) -> Ranked | None:
        """The ranking of the run, or None if there is none.

        Errors:
            DataError: the file is damaged.
        """
        if "ranking" not in self.about:
            return None
        place, popular, user = self._arrays("ranking", ("place", "popular", "user"))
        return Ranked(place=place, popular=popular, user=user, about=self.about["ranking"])

    def _arrays(self, part: str, arrays: Sequence[str]) -> list[np.ndarray]:
        assert self.saved is not None, "a record without its rows was read"
        try:
            with np.load(io.BytesIO(self.saved.content(part)), allow_pickle=False) as found:
                return [found[array] for array in arrays]
        except (OSError, ValueError, LookupError, TypeError) as e:
            if RUN.current_digest(self.folder) != self.saved.digest:
                raise DataError(f"the run {self.folder} was replaced while it was read: start again") from e
            raise e if isinstance(e, DataError) else RUN.damaged(self.folder, str(e)) from e


def read_record(folder: Path) -> RunRecord | None:
    """The run in a folder of a store, or None.

    Errors:
        DataError: there is one, but it cannot be read.
    """
    if not (folder / ABOUT).is_file():
        return None
    saved = RUN.open(folder)
    return RunRecord(folder, saved.about, saved=saved)


def run_key(recipe: Recipe, inputs: Inputs) -> str:
    """The key of a recipe's run on its files: equal only if settings, seeds, files and warm start are equal.

    It does not include the recipe's name, description and search space, the data file's folder or fieldwise's version.
    """
    settings = recipe.to_dict()
    if recipe.defaults == "data":
        settings["rules"] = RULES  # for settings that the recipe does not give
    for word in ("description", "benchmark", "protocol", "search"):
        settings.pop(word, None)
    settings["training"] = {k: v for k, v in settings["training"].items() if k != "checkpoint_minutes"}
    if (code := source_digest(recipe.model)) is not None:
        settings["code"] = code  # code of a user-defined model
    settings["data"] = {k: v for k, v in settings["data"].items() if k != "memory"}
    if "path" in settings["data"]:
        settings["data"] = {**settings["data"], "path": "file"}
    if recipe.warm_start is not None:
        settings["warm_start"] = bundle_digest(Path(recipe.warm_start))
    text = json.dumps({"format": RUN.format, "settings": settings, "files": dict(inputs.files)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Store:
    """A folder of runs, which several processes may share."""

    folder: Path

    def check(self) -> None:
        """Create the folder and check that it is writable.

        Errors:
            DataError: it cannot be created or is not writable.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise DataError(
                f"runs need a writable folder, but {self.folder} is not: {e.strerror or e}; choose another"
            ) from None
        check_folder(self.folder)

    def get(self, key: str) -> RunRecord | None:
        """The run with this key, or None.

        Errors:
            DataError: there is one, but it cannot be read.
        """
        return read_record(self.folder / key)

    def put(
        self, key: str, about: Mapping[str, Any], y: np.ndarray, score: np.ndarray, ranked: Ranked | None = None
    ) -> RunRecord:
        """Store a run, replacing one with the same key.

        Errors:
            DataError: the disk is full or the folder is not writable.
        """
        facts = dict(about)
        with writing(RUN, self.folder / key) as writer:
            writer.add("test", _packed(y=y, score=score))
            if ranked is not None:
                writer.add("ranking", _packed(place=ranked.place, popular=ranked.popular, user=ranked.user))
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
