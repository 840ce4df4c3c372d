"""Arrays that processes of one server share: files of its own, which each of them maps."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
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
    """

    folder: Path

    def array(self, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The mapped array of a key, which the first process makes while the others wait.

        Args:
            key: determines the array; a file name.
            make: the array.

        Errors:
            DataError: the disk is full, or the folder is gone.
        """
        path = self.folder / f"{key}.npy"
        if not path.exists():
            with one_writer(self.folder):
                if not path.exists():
                    self._write(path, make())
        return map_array(path)

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
