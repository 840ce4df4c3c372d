"""A store of finished runs: each under the digest of all that decides it, so that none is made twice.

A run is a folder `KEY` of the store with `record.json` (what `Run.record` gives, the protocol, and where it was made)
and `test.HASH.npz`, which the record names: the test rows' labels `y` [N] and scores `score` [N] of the main label,
logits or predicted numbers within the label's range. Where items were ranked, `ranking.HASH.npz` has the places of the
test positives. The record is written last, by renaming: a run that has none is not there.
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

from fieldwise.bundle.bundle import bundle_digest
from fieldwise.data.prepare.files import Inputs
from fieldwise.errors import DataError
from fieldwise.runs.defaults import RULES
from fieldwise.runs.ranking import Ranked
from fieldwise.runs.recipe import Recipe
from fieldwise.storage.files import check_folder, write_atomically

__all__ = ["Record", "Store", "read_record", "run_key"]

FORMAT = 1
ABOUT = "record.json"


@dataclass(frozen=True)
class Record:
    """One finished run.

    Args:
        rows: its test rows' labels and scores, where they are at hand; else they are read when first asked for.
    """

    folder: Path
    about: Mapping[str, Any]
    rows: tuple[np.ndarray, np.ndarray] | None = None

    @cached_property
    def test_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and scores of the test rows, both [N].

        Errors:
            DataError: the file is damaged.
        """
        if self.rows is not None:
            return self.rows
        y, score = self._arrays("test_rows", ("y", "score"))
        return y, score

    @cached_property
    def ranked(self) -> Ranked | None:
        """Where the run put the test positives among other items, or None where nothing was ranked.

        Errors:
            DataError: the file is damaged.
        """
        if "ranking" not in self.about:
            return None
        place, popular, user = self._arrays("ranking", ("place", "popular", "user"))
        return Ranked(place=place, popular=popular, user=user, about=self.about["ranking"])

    def _arrays(self, name: str, arrays: Sequence[str]) -> list[np.ndarray]:
        try:
            kept = self.about[name]
            content = (self.folder / Path(kept["file"]).name).read_bytes()
            if hashlib.sha256(content).hexdigest() != kept["sha256"]:
                raise ValueError(f"{kept['file']} does not have the checksum that the record names")
            with np.load(io.BytesIO(content), allow_pickle=False) as found:
                return [found[array] for array in arrays]
        except (OSError, ValueError, LookupError, TypeError) as e:
            raise DataError(f"the run {self.folder} is damaged: {e}; remove the folder, and run again") from e


def read_record(folder: Path) -> Record | None:
    """The run that a folder of a store holds, or None.

    Errors:
        DataError: it is there, but cannot be read.
    """
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as e:
        raise DataError(f"the run {folder} cannot be read: {e}; remove the folder, and run again") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DataError(f"the run {folder} is of another format; remove the folder, and run again")
    return Record(folder, about)


def run_key(recipe: Recipe, inputs: Inputs) -> str:
    """A name for the run of a recipe on its files: equal only where settings, seeds, files and warm start are.

    The recipe's name, words and search space do not count, nor where its file of data lies, nor fieldwise's version.
    """
    settings = recipe.to_dict()
    if recipe.defaults == "data":
        settings["rules"] = RULES  # which decide what the recipe leaves open
    for word in ("description", "benchmark", "protocol", "search"):
        settings.pop(word, None)
    if "path" in settings["data"]:
        settings["data"] = {**settings["data"], "path": "file"}
    if recipe.warm_start is not None:
        settings["warm_start"] = bundle_digest(Path(recipe.warm_start))
    text = json.dumps({"format": FORMAT, "settings": settings, "files": dict(inputs.files)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Store:
    """A folder of runs; several processes may fill it together."""

    folder: Path

    def check(self) -> None:
        """Make the folder.

        Errors:
            DataError: it cannot be one, or nothing can be written to it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise DataError(
                f"runs need a folder to be written to, but {self.folder} is none: {e.strerror or e}; choose another"
            ) from None
        check_folder(self.folder)

    def get(self, key: str) -> Record | None:
        """The run of this key, or None.

        Errors:
            DataError: it is there, but cannot be read.
        """
        return read_record(self.folder / key)

    def put(
        self, key: str, about: Mapping[str, Any], y: np.ndarray, score: np.ndarray, ranked: Ranked | None = None
    ) -> Record:
        """Keep a run, in place of one of this key that is there already.

        Errors:
            DataError: the disk is full or the folder cannot be written to.
        """
        folder = self.folder / key
        kept = {"format": FORMAT, **about, "test_rows": _write_arrays(folder, "test", y=y, score=score)}
        if ranked is not None:
            file = _write_arrays(folder, "ranking", place=ranked.place, popular=ranked.popular, user=ranked.user)
            kept["ranking"] = {**ranked.about, **file}
        write_atomically(folder / ABOUT, (json.dumps(kept, indent=1) + "\n").encode())
        named = {kept[part]["file"] for part in ("test_rows", "ranking") if part in kept}
        for old in (*folder.glob("test.*.npz"), *folder.glob("ranking.*.npz")):
            if old.name not in named:
                old.unlink(missing_ok=True)
        return Record(folder, kept)

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Whether this process may make the run of `key`: no other is at it. A claim ends with its process."""
        try:
            import fcntl
        except ImportError:  # no such locks on this system: two processes may then make the same run
            yield True
            return
        self.check()
        with open(self.folder / f".{key}.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError as e:
                raise DataError(
                    f"runs in {self.folder} cannot be shared between processes: {e.strerror or e}; choose a folder on "
                    "another disk"
                ) from e
            yield True


def _write_arrays(folder: Path, what: str, **arrays: np.ndarray) -> dict[str, str]:
    """Write arrays to a file `WHAT.HASH.npz`; its name and checksum."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    name = f"{what}.{digest[:12]}.npz"
    write_atomically(folder / name, buffer.getvalue())
    return {"file": name, "sha256": digest}
