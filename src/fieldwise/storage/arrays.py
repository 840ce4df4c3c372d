"""Reading and writing arrays as .npy files, never pickled, and tables as Arrow files."""

import contextlib
import io
import math
import mmap
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import DTypeLike

from fieldwise.storage.checksums import Written

HEADER = 10 + 2**16  # bytes that a header has at most

__all__ = [
    "array_of",
    "arrow_bytes",
    "map_array",
    "map_frame",
    "mapped_array",
    "write_array",
    "write_header",
    "write_values",
]


def write_array(file: Written, array: np.ndarray) -> None:
    """Write an array to an open file. Unlike with `numpy.save`, a full disk raises an `OSError` that names it."""
    write_header(file, array.dtype, array.shape)
    write_values(file, array)


def write_header(file: Written, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Write the header of an array file, whose values may then be written in blocks."""
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)


def write_values(file: Written, block: np.ndarray) -> None:
    """Write the next block of values."""
    file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


def array_of(content: bytearray) -> np.ndarray:
    """The array of a file's bytes, which it shares.

    Errors:
        ValueError: they are no such file, or pickled objects.
    """
    octets = np.frombuffer(content, np.uint8)
    file = io.BytesIO(octets[:HEADER].tobytes())
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"a file of an array has format 1.0, found {version}")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject or by_columns:
        raise ValueError("a file of an array holds numbers row by row")
    values = octets[file.tell() :].view(dtype)
    return values.reshape(shape)


def map_array(path: Path) -> np.ndarray:
    """An array file mapped into memory, copy-on-write: it never changes, and PyTorch can use the array directly.

    Errors:
        OSError, ValueError: it cannot be read, or holds pickled objects.
    """
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    return np.asarray(array) if array.size else np.empty(array.shape, array.dtype)


def mapped_array(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array of zeros in a mapping of its own, which goes back to the system with the last reference to it.

    For large arrays that live longer than a batch: where freed arrays are kept (`storage.memory.keep_freed_arrays`),
    they would leave gaps, which small arrays then fill in part, so that the next large ones do not fit.

    >>> mapped_array((2, 3), np.int32).sum()
    np.int64(0)
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size == 0:
        return np.zeros(shape, dtype)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def map_frame(path: Path) -> pl.DataFrame:
    """A table of an Arrow file that is mapped into memory: processes share it, and nobody may write into the file.

    Polars cannot map a file by itself: the table is a copy without pyarrow, and if it has types that Arrow lacks.

    Errors:
        OSError, PolarsError: it cannot be read.
    """
    try:
        import pyarrow as arrow
    except ImportError:
        return pl.read_ipc(path)
    try:
        with arrow.memory_map(str(path)) as file:
            found = pl.DataFrame(arrow.ipc.open_file(file).read_all())
    except arrow.ArrowException:  # 128-bit integers
        return pl.read_ipc(path)
    return found if found.schema == pl.Schema(pl.read_ipc_schema(path)) else pl.read_ipc(path)


def arrow_bytes(frame: pl.DataFrame) -> bytes:
    """A table as the bytes of an Arrow file."""
    buffer = io.BytesIO()
    frame.write_ipc(buffer)
    return buffer.getvalue()
