"""The folder of an unfinished run: its checkpoints, until its result is saved."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fieldwise.errors import DataError
from fieldwise.storage.artifact import Artifact, Kind
from fieldwise.storage.files import cannot_write
from fieldwise.storage.folders import try_lock

__all__ = ["CHECKPOINT", "Unfinished", "open_checkpoint"]

LOCK, PART = "lock", "-training"
CHECKPOINT = Kind(
    name="checkpoint",
    manifest="checkpoint.json",
    format=1,
    parts={"tensors": "safetensors"},
    damage=DataError,
    remedy="remove its folder to train from the start",
    origin="give the folder of an unfinished run",
    fast=True,
    nan=True,
)


def open_checkpoint(folder: Path) -> Artifact:
    """The checkpoint in a folder; its manifest is checked, its tensors are not.

    Errors:
        DataError: there is none, or it is damaged.
    """
    saved = CHECKPOINT.open(folder)
    if type(number := saved.about.get("number")) is not int:
        raise CHECKPOINT.damaged(folder, f"its number must be a whole number, found {number!r:.60}")
    if not all(isinstance(saved.about.get(part), dict) for part in ("about", "run")):
        raise CHECKPOINT.damaged(folder, f"{CHECKPOINT.manifest} must describe its run")
    return saved


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """The folder of a run that may be killed: its checkpoints, until its result is saved.

    Args:
        folder: made when it is needed.
        note: called with a sentence when a run is resumed.
    """

    folder: Path
    note: Callable[[str], None] = lambda _: None

    @classmethod
    def beside(cls, out: Path, note: Callable[[str], None] = lambda _: None) -> "Unfinished":
        """The folder `.NAME.unfinished` beside a result's folder."""
        out = out.absolute()
        return cls(folder=out.with_name(f".{out.name}.unfinished"), note=note)

    @property
    def remedy(self) -> str:
        """How to start over, at the end of an error's sentence."""
        return f"remove {self.folder} to train from the start"

    def part(self, training: str) -> Path:
        """The folder of one of its trainings."""
        return self.folder / f"{training}{PART}"

    def exists(self) -> bool:
        """Whether there is a checkpoint."""
        return any(self.folder.glob(f"*{PART}/*/{CHECKPOINT.manifest}"))

    def clear(self) -> None:
        """Remove the checkpoints, to start over."""
        for path in self.folder.glob(f"*{PART}"):
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the checkpoints and the folder: the result is saved."""
        self.clear()
        with contextlib.suppress(OSError):
            (self.folder / LOCK).unlink(missing_ok=True)
            self.folder.rmdir()

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """A context in which no other process trains here; at the end an empty folder is removed.

        Errors:
            DataError: another process does, the folder holds other files, or it cannot be created.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise cannot_write(self.folder, e) from e
        others = sorted(p.name for p in self.folder.iterdir() if p.name != LOCK and not p.name.endswith(PART))
        if others:
            raise DataError(
                f"checkpoints need a folder of their own: {self.folder} holds other files, such as {others[0]!r}; "
                "choose another folder"
            )
        with contextlib.ExitStack() as held:
            alone = True
            with contextlib.suppress(OSError):  # a file system without locks
                alone = held.enter_context(try_lock(self.folder / LOCK))
            if not alone:
                raise DataError(
                    f"only one training at a time can use {self.folder}, and another process does: wait for its end, "
                    "or choose another folder"
                )
            try:
                yield
            finally:
                if not self.exists():
                    self.remove()
