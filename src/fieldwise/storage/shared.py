"""Arrays that processes of one server share: files of its own, which each of them maps."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fieldwise.storage.arrays import map_array, write_array
from fieldwise.storage.files import cannot_write
from fieldwise.storage.locks import one_writer

__all__ = ["SharedArrays"]


@dataclass(frozen=True)
class SharedArrays:
    """Arrays in a folder that only the processes of one server write to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shared = SharedArrays(Path(folder))
    ...     first = shared.array("weights", lambda: np.arange(3.0))
    ...     SharedArrays(Path(folder)).array("weights", lambda: 1 / 0).tolist()  # is not made again
    [0.0, 1.0, 2.0]

    Attributes:
        used: names of the files and folders that were asked for since `used.clear()`.
    """

    folder: Path
    used: set[str] = field(default_factory=set, init=False, compare=False)

    def array(self, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The mapped array of a key, which the first process makes while the others wait.

        Args:
            key: determines the array; a file name.
            make: the array.

        Errors:
            DataError: the disk is full, or the folder is gone.
        """
        path = self.place(f"{key}.npy")
        with contextlib.suppress(FileNotFoundError):
            return map_array(path)
        with one_writer(self.folder):
            if not path.exists():
                self._write(path, make())
            return map_array(path)

    def place(self, name: str) -> Path:
        """The path of a file or folder here, which counts as used."""
        self.used.add(name)
        return self.folder / name

    def remove_unused(self) -> None:
        """Remove all that is not in `used`. Processes that have mapped it keep it.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shared = SharedArrays(Path(folder))
        ...     old = shared.array("old", lambda: np.arange(2.0))
        ...     shared.used.clear()
        ...     new = shared.array("new", lambda: np.arange(3.0))
        ...     shared.remove_unused()
        ...     [path.name for path in shared.folder.iterdir()], old.tolist()
        (['new.npy'], [0.0, 1.0])
        """
        with one_writer(self.folder):
            for path in self.folder.iterdir():
                if path.name in self.used:
                    continue
                with contextlib.suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _write(self, path: Path, array: np.ndarray) -> None:
        partial = self.folder / f".{secrets.token_hex(6)}.part"
        try:
            with partial.open("xb") as file:
                write_array(file, array)
            os.replace(partial, path)
        except OSError as e:
            raise cannot_write(path, e) from e
        finally:
            partial.unlink(missing_ok=True)
