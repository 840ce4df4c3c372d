"""An encoded log in arrays that every contender can read, fieldwise and other libraries; needs only NumPy.

Letters: N training rows, M validation rows, F fields.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["CATEGORIES", "FRAPPE_SIZES", "NUMBERS", "Log", "random_log"]

NUMBERS = tuple(f"I{k}" for k in range(1, 14))
CATEGORIES = tuple(f"C{k}" for k in range(1, 27))
"""Columns of the CSV file that `preparing` encodes, beside `label`."""
FRAPPE_SIZES = (957, 4082, 7, 7, 2, 3, 2, 9, 80, 233)
"""Categories of Frappe's ten fields."""

_ARRAYS = ("ids", "y", "valid_ids", "valid_y")


@dataclass(frozen=True, eq=False)
class Log:
    """Categorical rows with labels.

    Args:
        sizes: number of categories of each field [F].
        ids: [N, F] int32, each from 0 within its field.
        y: [N] float32, 0 or 1.
        valid_ids: [M, F] int32.
        valid_y: [M] float32.
        about: source of the rows.
    """

    sizes: tuple[int, ...]
    ids: np.ndarray
    y: np.ndarray
    valid_ids: np.ndarray
    valid_y: np.ndarray
    about: str

    @property
    def offsets(self) -> np.ndarray:
        """The first row of each field in a table shared by all fields [F]."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]])

    def first(self, rows: int | None) -> "Log":
        """The log with only its first `rows` training rows; all of them for None."""
        return Log(self.sizes, self.ids[:rows], self.y[:rows], self.valid_ids, self.valid_y, self.about)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)
        (folder / "log.json").write_text(json.dumps({"sizes": self.sizes, "about": self.about}), "utf-8")

    @classmethod
    def open(cls, folder: str | Path) -> "Log":
        about = json.loads((Path(folder) / "log.json").read_text("utf-8"))
        arrays = (np.load(Path(folder) / f"{name}.npy", allow_pickle=False) for name in _ARRAYS)
        return cls(tuple(about["sizes"]), *arrays, about["about"])


def random_log(rows: int, sizes: tuple[int, ...], *, valid_rows: int = 0, seed: int = 0) -> Log:
    """A simulated log with planted effects of categories and pairs; category frequencies fall as 1 / rank."""
    rng = np.random.default_rng([seed, 20])
    total = rows + valid_rows
    ids = np.stack([_zipf(rng, total, size) for size in sizes], axis=1)
    logit = np.zeros(total)
    vectors = np.zeros((total, 4))
    squares = np.zeros(total)
    for f, size in enumerate(sizes):
        weight, v = rng.normal(0, 0.5, size), rng.normal(0, 0.5, (size, 4))
        logit += weight[ids[:, f]]
        vectors += v[ids[:, f]]
        squares += np.square(v).sum(1)[ids[:, f]]
    logit += 0.5 * (np.square(vectors).sum(1) - squares) / np.sqrt(len(sizes))
    y = (rng.random(total) < 1 / (1 + np.exp(np.median(logit) - logit))).astype(np.float32)
    about = f"simulated, {len(sizes)} fields of {sum(sizes):,} categories"
    return Log(sizes, ids[:rows], y[:rows], ids[rows:], y[rows:], about)


def _zipf(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Categories of a field [rows] int32, sampled with frequencies near 1 / rank, with ranks in random order."""
    rank = np.floor(np.exp(rng.random(rows) * np.log(size + 1))).astype(np.int64) - 1
    order: np.ndarray = rng.permutation(size).astype(np.int32)[np.clip(rank, 0, size - 1)]
    return order
