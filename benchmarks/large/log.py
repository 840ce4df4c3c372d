"""A generated log of clicks in the shape of Criteo's, as Parquet files: 13 numbers, 26 categories, a time, a label.

Row i depends on the seed and on i alone: a log of N rows is the first N rows of every longer one, in any number of
files. Files of the same rows, seed and number of files are equal byte by byte with the same version of pyarrow.
Memory does not depend on the number of rows.

Letters: n rows of a piece of a block, V values of a category.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fieldwise.storage.files import write_atomically

__all__ = ["CATEGORIES", "LABEL", "NUMBERS", "TIME", "Category", "Log", "Number", "about", "write_log"]

BLOCK = 125_000  # rows that are generated at once, and of a row group
LABEL, TIME = "label", "time"
FIRST_MOMENT = 1_767_225_600_000  # 2026-01-01 in milliseconds
MS_PER_ROW, LATEST = 50, 60_000  # a row every 50 ms, stored up to a minute late: times are nearly sorted
STRETCH = 20_000  # rows for which a number may be absent altogether
FACTOR, MODULUS = 2_654_435_761, 2**31  # an odd factor permutes the numbers below a power of 2: values differ
LATENT = 4
BIAS = -1.0  # of the planted logit
CODED = 20_000  # categories with fewer values, and text, are stored as Parquet's dictionaries
DICTIONARY_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Number:
    """A number of every row.

    Args:
        name: column.
        kind: `count` (integers with a long tail), `amount` (two decimals, a long tail), `score` (normal), `share`
            (0 to 1).
        missing: `never`; `random`, each cell alone; `stretches` of 20,000 rows, as when a source is down; `category`,
            in all rows of some values of `category_4`.
        part: of the cells that are missing, about.
        weight: of the number in the planted logit.
    """

    name: str
    kind: str
    missing: str = "never"
    part: float = 0.0
    weight: float = 0.0


@dataclass(frozen=True)
class Category:
    """A category of every row; the value of rank r has a frequency near 1 / r.

    Args:
        name: column.
        size: V, number of possible values.
        text: whether values are text of 8 hexadecimal digits, else integers below 2^31.
        part: of the cells that are missing, about.
        weight: of the value's effects in the planted logit; 0 for none.
    """

    name: str
    size: int
    text: bool
    part: float = 0.0
    weight: float = 0.0


NUMBERS = (
    Number("number_1", "count", weight=0.25),
    Number("number_2", "count", "random", 0.05, 0.15),
    Number("number_3", "count", "random", 0.21),
    Number("number_4", "count", "random", 0.77, 0.2),
    Number("number_5", "count", "stretches", 0.1),
    Number("number_6", "count", "category", 0.25, 0.1),
    Number("number_7", "amount", weight=0.15),
    Number("number_8", "amount", "random", 0.45),
    Number("number_9", "amount", "stretches", 0.3),
    Number("number_10", "score", weight=0.4),
    Number("number_11", "score", "category", 0.25),
    Number("number_12", "share", "random", 0.02, 0.3),
    Number("number_13", "share"),
)
SIZES = np.geomspace(4, 2_000_000, 26).round().astype(int).tolist()
TEXTS = {2, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20, 22, 24, 26}
PARTS = {6: 0.02, 11: 0.45, 16: 0.05, 21: 0.12, 25: 0.03}
WEIGHTS = {1: 0.5, 3: 0.5, 5: 0.5, 8: 0.5, 10: 0.5, 12: 0.5, 15: 0.5, 18: 0.5, 24: 0.4}
CATEGORIES = tuple(
    Category(f"category_{k}", size, k in TEXTS, PARTS.get(k, 0.0), WEIGHTS.get(k, 0.0))
    for k, size in enumerate(SIZES, start=1)
)
TIED = 3  # the category that `missing="category"` goes by, from 0


@dataclass(frozen=True)
class Log:
    """The rows that a seed stands for.

    Args:
        seed: of all values and effects.
    """

    seed: int = 0

    def rows(self, start: int, stop: int) -> Iterator[pa.Table]:
        """Rows `start` to `stop`, in pieces of at most 125,000."""
        while start < stop:
            block, first = divmod(start, BLOCK)
            last = min(stop - block * BLOCK, BLOCK)
            yield self.block(block, last).slice(first)
            start = block * BLOCK + last

    def block(self, block: int, n: int) -> pa.Table:
        """The first n rows of a block."""
        columns: dict[str, pa.Array] = {}
        planted = np.zeros((n, 1 + LATENT), np.float32)
        for k, category in enumerate(CATEGORIES):
            rng = self._rng(block, 1, k)
            rank = _ranks(rng, n, category.size)
            if k == TIED:
                tied = rank
            absent = self._rng(block, 6, k).random(n, np.float32) < category.part if category.part else None
            columns[category.name] = self._cells(k, rank, absent)
            if k in self._effects:
                planted += self._effects[k].take(rank, axis=0)
        logit = BIAS + planted[:, 0] + 0.5 * np.einsum("nk,nk->n", planted[:, 1:], planted[:, 1:])
        for k, number in enumerate(NUMBERS):
            rng = self._rng(block, 2, k)
            value, effect = _numbers(rng, n, number)
            absent = self._absent(n, k, block, tied)
            if number.weight:
                logit += effect if absent is None else np.where(absent, np.float32(0.3 * number.weight), effect)
            columns[number.name] = pa.array(value, mask=absent)
        late = self._rng(block, 3, 0).random(n, np.float32)
        moment = FIRST_MOMENT + MS_PER_ROW * np.arange(block * BLOCK, block * BLOCK + n) + (LATEST * late).astype(int)
        clicked = self._rng(block, 3, 1).random(n, np.float32) * (1 + np.exp(-logit)) < 1
        ends = {LABEL: pa.array(clicked.astype(np.int8)), TIME: pa.array(moment, pa.timestamp("ms"))}
        return pa.table({**ends, **{f.name: columns[f.name] for f in (*NUMBERS, *CATEGORIES)}})

    def _rng(self, block: int, kind: int, column: int) -> np.random.Generator:
        """A generator to draw n numbers from once: the first ones do not depend on n."""
        return np.random.default_rng([self.seed, block, kind, column])

    @cached_property
    def _effects(self) -> dict[int, np.ndarray]:
        """Of categories with a weight: each value's own effect less half the square of its vector; the vector [V, 5].

        Sums over a row's values give all products of two vectors, as in a factorization machine.
        """
        found = {}
        for k, category in enumerate(CATEGORIES):
            if category.weight:
                effects = self._rng(0, 0, k).standard_normal((category.size, 1 + LATENT), np.float32)
                effects *= np.float32(category.weight) * np.float32([1.0] + [0.5] * LATENT)
                effects[:, 0] -= 0.5 * np.square(effects[:, 1:]).sum(1)
                found[k] = effects
        return found

    @cached_property
    def _stretches(self) -> np.ndarray:
        """Numbers within (0, 1) that say which stretches lack a number [1009, numbers]."""
        return self._rng(0, 4, 0).random((1009, len(NUMBERS)))

    def _absent(self, n: int, k: int, block: int, tied: np.ndarray) -> np.ndarray | None:
        number = NUMBERS[k]
        if number.missing == "random":
            return self._rng(block, 7, k).random(n, np.float32) < number.part
        if number.missing == "stretches":
            stretch = np.arange(block * BLOCK, block * BLOCK + n) // STRETCH % len(self._stretches)
            return self._stretches[stretch, k] < number.part
        if number.missing == "category":
            size = CATEGORIES[TIED].size
            return (self._rng(0, 5, k).random(size) < number.part)[tied]
        return None

    def _cells(self, k: int, rank: np.ndarray, absent: np.ndarray | None) -> pa.Array:
        """A category's cells, from ranks."""
        category = CATEGORIES[k]
        if not category.text:
            return pa.array(_values(rank, k).astype(np.int32), mask=absent)
        if category.size <= len(rank):
            used, index = np.arange(category.size), rank
        else:
            seen = np.zeros(category.size, bool)
            seen[rank] = True
            used = np.flatnonzero(seen)
            place = np.empty(category.size, np.int32)
            place[used] = np.arange(len(used), dtype=np.int32)
            index = place[rank]
        return pa.DictionaryArray.from_arrays(pa.array(index, mask=absent), _texts(_values(used, k)))


def _ranks(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """Ranks from 0 [n] int32, with frequencies near 1 / (rank + 1)."""
    kind = np.float32 if size < 100_000 else np.float64  # with float32 some large ranks would never come
    rank = np.exp(rng.random(n, kind) * kind(np.log(size + 1))).astype(np.int32)
    rank -= 1
    return np.minimum(rank, size - 1, out=rank)


def _values(rank: np.ndarray, k: int) -> np.ndarray:
    """The value of each rank of category k, uint64 below 2^31; different ranks have different values."""
    return (rank.astype(np.uint64) * np.uint64(FACTOR) + np.uint64(97 * k + 11)) % np.uint64(MODULUS)


def _texts(values: np.ndarray) -> pa.Array:
    """Values below 2^32 as text of 8 hexadecimal digits."""
    digits = values.astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, 8 * len(values) + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(digits))


def _numbers(rng: np.random.Generator, n: int, number: Number) -> tuple[np.ndarray, np.ndarray]:
    """A number's cells [n], and their effects on the logit [n] float32."""
    if number.kind == "share":
        share = rng.random(n, np.float32)
        return share, np.float32(number.weight) * (4 * share - 2)
    normal = rng.standard_normal(n, np.float32)
    effect = np.float32(number.weight) * normal
    if number.kind == "score":
        return normal, effect
    spread = 1.0 + 0.1 * int(number.name.rpartition("_")[2])
    tail = np.exp(np.float32(spread) * normal + np.float32(1.5))
    if number.kind == "count":
        return np.minimum(tail, np.float32(2**30)).astype(np.int32), effect
    return (100 * tail).astype(np.int64) / 100, effect


def write_log(folder: Path, rows: int, *, seed: int = 0, files: int = 1) -> dict[str, Any]:
    """Write a log to `folder`: rows/part-000.parquet and so on, then log.json, which says what was written.

    Returns:
        What log.json has: rows, seed, files, bytes, seconds.
    """
    if rows < files or files < 1:
        raise SystemExit(f"each file needs a row: found {rows} rows and {files} files")
    began, log, place = time.perf_counter(), Log(seed), folder / "rows"
    place.mkdir(parents=True, exist_ok=True)
    for old in (folder / "log.json", *place.glob("*.parquet")):
        old.unlink(missing_ok=True)
    for k in range(files):
        path = place / f"part-{k:03}.parquet"
        partial = path.with_suffix(".partial")
        _write_file(partial, log.rows(rows * k // files, rows * (k + 1) // files))
        partial.rename(path)
    size = sum(path.stat().st_size for path in place.iterdir())
    seconds = round(time.perf_counter() - began, 2)
    found = {"rows": rows, "seed": seed, "files": files, "bytes": size, "seconds": seconds}
    write_atomically(folder / "log.json", json.dumps(found).encode())
    return found


def _write_file(path: Path, pieces: Iterator[pa.Table]) -> None:
    writer = None
    for piece in pieces:
        if writer is None:
            writer = pq.ParquetWriter(
                path,
                piece.schema,
                store_schema=False,  # text is plain text to every reader
                use_dictionary=[one.name for one in CATEGORIES if one.text or one.size < CODED],
                dictionary_pagesize_limit=DICTIONARY_BYTES,
                write_statistics=False,
            )
        writer.write_table(piece, row_group_size=BLOCK)
    assert writer is not None
    writer.close()


def about(folder: Path) -> dict[str, Any]:
    """What log.json says of a folder that `write_log` made, with `path`: its file, or the folder of its files."""
    try:
        found: dict[str, Any] = json.loads((folder / "log.json").read_text("utf-8"))
    except FileNotFoundError:
        raise SystemExit(f"{folder} holds no log: make one with `python -m benchmarks.large make`") from None
    paths = sorted((folder / "rows").glob("*.parquet"))
    return {**found, "path": str((paths[0] if len(paths) == 1 else folder / "rows").absolute())}
