"""Arrays and tables that processes of one server share: files of its own, which each of them maps."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from fieldwise.storage.arrays import arrow_bytes, map_array, map_frame, write_array
from fieldwise.storage.checksums import Written
from fieldwise.storage.files import new_file
from fieldwise.storage.folders import LOCK, one_writer

T = TypeVar("T")


@dataclass(frozen=True)
class SharedArrays:
    """Arrays in a folder that only the processes of one server write to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shared = SharedArrays(Path(folder))
    ...     first = shared.array("weights", lambda: np.arange(3.0))
    ...     SharedArrays(Path(folder)).array("weights", lambda: 1 / 0).tolist()  # is not made again
    [0.0, 1.0, 2.0]

    A name is `WHAT-OF`: what it is, and what it belongs to.

    Attributes:
        used: what was asked for since `used.clear()` belongs to these.
    """

    folder: Path
    used: set[str] = field(default_factory=set, init=False, compare=False)

    def array(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The mapped array of a name, which the first process makes while the others wait.

        `make` asks for nothing that is shared.
        """
        return self._kept(self.place(f"{name}.npy"), lambda file: write_array(file, make()), map_array)

    def frame(self, name: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """The mapped table of a name; otherwise as `array`.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = SharedArrays(Path(folder)).frame("users", lambda: pl.DataFrame({"user": ["a", None]}))
        ...     again = SharedArrays(Path(folder)).frame("users", lambda: 1 / 0)  # is not made again
        ...     again.rows()
        [('a',), (None,)]
        """
        return self._kept(
            self.place(f"{name}.arrow"), lambda file: file.write(arrow_bytes(make().rechunk())), map_frame
        )

    def place(self, name: str) -> Path:
        """The path of a file or folder here, which counts as used."""
        self.used.add(_owner(name))
        return self.folder / name

    def remove_unused(self) -> None:
        """Remove all that belongs to nothing in `used`. Processes that have mapped it keep it.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shared = SharedArrays(Path(folder))
        ...     old, more = (shared.array(name, lambda: np.arange(2.0)) for name in ("heads-old", "places-new"))
        ...     shared.used.clear()
        ...     new = shared.array("heads-new", lambda: np.arange(3.0))
        ...     shared.remove_unused()
        ...     sorted(path.name for path in shared.folder.iterdir()), old.tolist()
        (['heads-new.npy', 'places-new.npy'], [0.0, 1.0])
        """
        with one_writer(self.folder):
            for path in self.folder.iterdir():
                if path.name == LOCK or _owner(path.name) in self.used:
                    continue
                with contextlib.suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _kept(self, path: Path, write: Callable[[Written], object], read: Callable[[Path], T]) -> T:
        with contextlib.suppress(FileNotFoundError):
            return read(path)
        with one_writer(self.folder):
            if not path.exists():
                with new_file(path, flush=False) as file:
                    write(file)
            return read(path)


def _owner(name: str) -> str:
    """What a file or folder belongs to."""
    return name.partition("-")[2].partition(".")[0]
