"""An encoded log in arrays that every contender can read, fieldwise and other libraries; needs only NumPy.

Letters: N training rows, M validation rows, F fields.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["CATEGORIES", "FRAPPE_SIZES", "NUMBERS", "Log", "random_log", "zipf"]

NUMBERS = tuple(f"I{k}" for k in range(1, 14))
CATEGORIES = tuple(f"C{k}" for k in range(1, 27))
"""Columns of the CSV file that `preparing` encodes, beside `label`."""
FRAPPE_SIZES = (957, 4082, 7, 7, 2, 3, 2, 9, 80, 233)
"""Categories of Frappe's ten fields."""


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

    def save(self, path: Path) -> None:
        np.savez(path, **vars(self))

    @classmethod
    def open(cls, path: str | Path) -> "Log":
        with np.load(path, allow_pickle=False) as result:
            arrays = dict(result)
        return cls(
            **arrays | {"sizes": tuple(arrays["sizes"].tolist()), "about": arrays["about"].item()}
        )


def random_log(rows: int, sizes: tuple[int, ...], *, valid_rows: int = 0, seed: int = 0) -> Log:
    """A log of random labels; category frequencies fall as 1 / rank."""
    rng = np.random.default_rng([seed, 20])
    total = rows + valid_rows
    ids = np.stack(
        [rng.permutation(size)[zipf(rng, total, size)] for size in sizes], axis=1
    ).astype(np.int32)
    y = (rng.random(total) < 0.5).astype(np.float32)
    about = f"simulated, {len(sizes)} fields of {sum(sizes):,} categories"
    return Log(sizes, ids[:rows], y[:rows], ids[rows:], y[rows:], about)


def zipf(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Ranks from 0 [rows], sampled with frequencies near 1 / (rank + 1)."""
    ranks: np.ndarray = np.minimum(
        np.exp(rng.random(rows) * np.log(size + 1)).astype(np.int64) - 1, size - 1
    )
    return ranks
