"""Arrays as .npy, tensors as safetensors, tables as Arrow files: never pickled; those that processes share."""

import contextlib
import json
import math
import mmap
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import torch
from numpy.typing import DTypeLike
from safetensors.torch import load_file
from torch import Tensor

from fieldwise.storage.files import Written, new_file
from fieldwise.storage.locks import LOCK, one_writer


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


def map_array(path: Path) -> np.ndarray:
    """An array file mapped into memory, copy-on-write: it never changes, and PyTorch can use the array directly."""
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    return np.asarray(array) if array.size else np.empty(array.shape, array.dtype)


def mapped_array(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array of zeros in a mapping of its own, which goes back to the system with the last reference to it.

    For large arrays that live longer than a batch: where freed arrays are kept
    (`storage.machine.keep_freed_arrays`), they would leave gaps, which small arrays then fill in
    part, so that the next large ones do not fit.

    >>> mapped_array((2, 3), np.int32).sum()
    np.int64(0)
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size == 0:
        return np.zeros(shape, dtype)
    private = (
        {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    )
    memory = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def map_frame(path: Path) -> pl.DataFrame:
    """A table of an Arrow file that is mapped into memory: processes share it, and nobody may write into the file.

    Polars cannot map a file by itself: the table is a copy without pyarrow, and if it has types
    that Arrow lacks.
    """
    try:
        import pyarrow as arrow
    except ImportError:
        return pl.read_ipc(path)
    try:
        with arrow.memory_map(str(path)) as file:
            result = pl.DataFrame(arrow.ipc.open_file(file).read_all())
    except arrow.ArrowException:  # 128-bit integers
        return pl.read_ipc(path)
    return result if result.schema == pl.Schema(pl.read_ipc_schema(path)) else pl.read_ipc(path)


def arrow_bytes(frame: pl.DataFrame) -> bytes:
    """A table as the bytes of an Arrow file."""
    return frame.write_ipc(None).getvalue()


# in the order in which safetensors' own writer sorts tensors, before their names: all are aligned
KINDS = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
CHUNK_BYTES = 1 << 24  # other threads run between two chunks
ALIGNED = 8
MATRIX_TYPES = {"float32": "F32", "float16": "F16"}
MATRIX_ROWS_AT_ONCE = 4_096


def write_tensors(file: Written, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to an open file, with the bytes of `safetensors.torch.save`; none on the CPU is copied whole."""
    for chunk in tensor_chunks(tensors):
        file.write(chunk)


def tensor_chunks(tensors: Mapping[str, Tensor]) -> Iterator[Any]:
    """The bytes of `write_tensors`, in chunks."""
    kinds = list(KINDS)
    in_order = sorted(tensors.items(), key=lambda entry: (kinds.index(entry[1].dtype), entry[0]))
    yield _header(
        (name, KINDS[tensor.dtype], tensor.shape, tensor.numel() * tensor.element_size())
        for name, tensor in in_order
    )
    for _, tensor in in_order:
        octets = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        yield from (
            octets[begin : begin + CHUNK_BYTES] for begin in range(0, len(octets), CHUNK_BYTES)
        )


def _header(entries: Iterable[tuple[str, str, Sequence[int], int]]) -> bytes:
    """The header of a safetensors file: of each tensor in order its name, type, shape and bytes."""
    header = {}
    start = 0
    for name, dtype, shape, size in entries:
        end = start + size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text


def write_matrices(file: Written, matrices: Mapping[str, np.ndarray]) -> None:
    """Write matrices of float16 or float32 by name as safetensors; none is copied whole."""
    write_matrix_parts(file, {name: [matrix] for name, matrix in matrices.items()})


def write_matrix_parts(file: Written, matrices: Mapping[str, Sequence[np.ndarray]]) -> None:
    """`write_matrices` of matrices that are each given as consecutive parts of their rows."""
    entries = []
    for name, parts in matrices.items():
        dtype = MATRIX_TYPES[parts[0].dtype.name]
        shape = (sum(map(len, parts)), parts[0].shape[1])
        entries.append((name, dtype, shape, sum(part.nbytes for part in parts)))
    file.write(_header(entries))
    for part in chain(*matrices.values()):
        for first in range(0, len(part), MATRIX_ROWS_AT_ONCE):
            write_values(file, part[first : first + MATRIX_ROWS_AT_ONCE])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of such a file, each in its own memory."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


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
        used: the owners of what was requested since `used.clear()`.
    """

    folder: Path
    used: set[str] = field(default_factory=set, init=False, compare=False)

    def array(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The mapped array of a name, which the first process makes while the others wait.

        `make` must not request a shared array.
        """
        return self._kept(
            self.place(f"{name}.npy"), lambda file: write_array(file, make()), map_array
        )

    def frame(self, name: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """The mapped table of a name; otherwise as `array`."""
        path = self.place(f"{name}.arrow")
        return self._kept(path, lambda file: file.write(arrow_bytes(make().rechunk())), map_frame)

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
