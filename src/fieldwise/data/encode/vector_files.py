"""Vectors by id from a file: a table with a column of lists, a `.npy` matrix, or safetensors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.encode.portable import map_matrices
from fieldwise.data.encode.vector_cells import check_finite, check_width, read_vectors
from fieldwise.data.read.tables import as_table
from fieldwise.errors import DataError, first_line
from fieldwise.storage.files import file_state

ROWS_CHECKED_AT_ONCE = 4_096


@dataclass(frozen=True, eq=False)
class VectorFile:
    """The ids of a file of vectors, as texts [T], and the matrix [T, K], float16 or float32, mapped if it can be."""

    ids: pl.Series
    matrix: np.ndarray


def read_vector_file(path: Path) -> VectorFile:
    """The vectors of a file by id; read once while the file does not change.

    - A table (Parquet, Arrow, JSON Lines): one column of lists of floats, and before it the ids.
    - `NAME.npy`, a matrix, and the ids beside it in `NAME.ids.npy`, or in `NAME.ids.txt`, one a
      line.
    - `NAME.safetensors`: a matrix `vectors`, and whole numbers `ids`, or `NAME.ids.txt` beside it.

    A `.npy` or safetensors matrix of 16 or 32 bits is mapped from disk.

    Errors:
        DataError: no such file, another content, no vector, an id that is missing or there twice, a
            number that is not finite.
    """
    try:
        return _read(path, tuple(map(file_state, files_of_vectors(path))))
    except OSError as e:
        raise DataError(f"the vectors {path} cannot be read: {e.strerror or e}") from None


def files_of_vectors(path: Path) -> list[Path]:
    """The file of vectors, and that of their ids beside it if there is one."""
    beside = [path.with_suffix(suffix) for suffix in (".ids.npy", ".ids.txt")]
    return [path, *(file for file in beside if file.exists())]


@lru_cache(maxsize=4)
def _read(path: Path, _: tuple[tuple[int, int, int], ...]) -> VectorFile:
    read: dict[str, Callable[[Path], tuple[pl.Series, np.ndarray]]] = {
        ".npy": _npy,
        ".safetensors": _safetensors,
    }
    ids, matrix = read.get(path.suffix, _table)(path)
    texts = as_text(ids)
    if not len(matrix):
        raise DataError(f"a file of vectors has at least one, found none in {path}: write it again")
    if len(texts) != len(matrix):
        raise DataError(
            f"vectors need an id each: {path} has {len(matrix):,} vectors and {len(texts):,} ids; correct it"
        )
    if texts.null_count():
        raise DataError(
            f"a vector needs an id: {path} has none for vector {int(texts.is_null().arg_max() or 0)} (counting from "
            "0); correct it"
        )
    is_repeated = texts.is_duplicated()
    if is_repeated.any():
        raise DataError(
            f"an id has one vector: {path} has {texts.filter(is_repeated)[0]!r} more than once; keep one of them"
        )
    check_width(matrix.shape[1], str(path))
    for first in range(0, len(matrix), ROWS_CHECKED_AT_ONCE):
        block = slice(first, first + ROWS_CHECKED_AT_ONCE)
        ids_of_block = texts[block]
        check_finite(
            matrix[block],
            str(path),
            lambda vector: f"the vector of id {ids_of_block[vector]!r}",  # noqa: B023
        )
    return VectorFile(texts, matrix)


def _table(path: Path) -> tuple[pl.Series, np.ndarray]:
    """Ids and vectors of a table."""
    table = as_table(path)
    lists = [name for name, dtype in table.schema.items() if isinstance(dtype, pl.List)]
    ids = [name for name in table.columns if name not in lists]
    if len(lists) != 1 or not ids:
        raise DataError(
            f"a table of vectors has a column of ids and one of lists of floats, found {', '.join(table.columns)} in "
            f"{path}; write these two"
        )
    what = f"column {lists[0]!r} of {path}"
    matrix, is_missing = read_vectors(table.get_column(lists[0]), what)
    return table.get_column(ids[0]).filter(pl.Series(~is_missing)), matrix


def _npy(path: Path) -> tuple[pl.Series, np.ndarray]:
    """Ids and vectors of a `.npy` file."""
    try:
        matrix = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError) as e:
        raise DataError(f"vectors must be an array of numbers: {path}: {first_line(e)}") from None
    return _ids_beside(path), _as_matrix(matrix, path)


def _safetensors(path: Path) -> tuple[pl.Series, np.ndarray]:
    """Ids and vectors of safetensors."""
    try:
        tensors = map_matrices(path)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path} must be safetensors, found another content") from None
    if "vectors" not in tensors:
        raise DataError(
            f"vectors are the tensor 'vectors' of float16 or float32, found {', '.join(tensors) or 'none'} in {path}"
        )
    matrix = _as_matrix(tensors["vectors"], path)
    if "ids" in tensors:
        return pl.Series("ids", np.asarray(tensors["ids"])), matrix
    return _ids_beside(path), matrix


def _as_matrix(array: np.ndarray, path: Path) -> np.ndarray:
    """A matrix of 16 or 32 bits; one of 64 bits is copied."""
    if array.ndim != 2 or array.dtype.kind != "f":
        raise DataError(
            f"vectors are a matrix [ids, numbers] of floats, found {array.dtype} {list(array.shape)} in {path}"
        )
    if array.dtype in (np.float16, np.float32):
        return np.asarray(array)
    return array.astype(np.float32)


def _ids_beside(path: Path) -> pl.Series:
    """The ids in the file beside a matrix."""
    array = path.with_suffix(".ids.npy")
    text = path.with_suffix(".ids.txt")
    if array.exists():
        try:
            return pl.Series("ids", np.load(array, allow_pickle=False).reshape(-1))
        except (ValueError, EOFError) as e:
            raise DataError(
                f"ids must be an array of texts or of whole numbers, found another content in {array}: "
                f"{first_line(e)}; save them with that type"
            ) from None
    if text.exists():
        try:
            return pl.Series("ids", text.read_text("utf-8").splitlines(), dtype=pl.String)
        except UnicodeDecodeError as e:
            raise DataError(f"the ids {text} must be UTF-8 text: byte {e.start} is not") from None
    raise DataError(
        f"vectors need their ids: write {array.name}, or {text.name} with an id a line, beside {path}"
    )
