"""Arrays in files of NumPy's documented format, never pickled, and tables in Arrow files."""

import io
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

__all__ = ["arrow_bytes", "map_array", "write_array", "write_header", "write_values"]


def write_array(file: IO[bytes], array: np.ndarray) -> None:
    """Write an array to an open file. `numpy.save` says nothing of a full disk but how many numbers it wrote."""
    write_header(file, array.dtype, array.shape)
    write_values(file, array)


def write_header(file: IO[bytes], dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Begin a file of an array, whose values may then come in blocks."""
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)


def write_values(file: IO[bytes], block: np.ndarray) -> None:
    """Write the next values."""
    file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


def map_array(path: Path) -> np.ndarray:
    """An array's file mapped into memory, copy-on-write: the file is never changed, and PyTorch takes it as it is.

    Errors:
        OSError, ValueError: it cannot be read, or holds pickled objects.
    """
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    return np.asarray(array) if array.size else np.empty(array.shape, array.dtype)


def arrow_bytes(frame: pl.DataFrame) -> bytes:
    """A table as an Arrow file."""
    buffer = io.BytesIO()
    frame.write_ipc(buffer)
    return buffer.getvalue()
