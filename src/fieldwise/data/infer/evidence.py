"""What rows tell of columns: which are functions of which, and whether whole numbers are ids or measure something."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

__all__ = ["Agreement", "agreements", "bins_lead", "collision_ratio", "is_binning", "is_round", "tail"]

ENOUGH = 20_000  # rows of a sample for one test
_LEAST_PAIRS = 20
_REPEATED = 0.3  # minimum share of rows that follow another row of their key
_ERRORS = 0.02  # of two rows of one key, the share that may differ where the key determines a column
_LIFT = 0.1  # that share relative to two rows at random
_CONSTANT = 0.99  # two rows at random have the same cell so often: nothing determines a column that never varies
_NEIGHBOURS = 3
_SHRINKAGE = 10.0
_BINS = 32


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How often two rows of one key have the same cell, and how often two rows at random."""

    same: float
    chance: float

    @property
    def determined(self) -> bool:
        """Whether the column is a function of the key, up to one row in a hundred."""
        differ = 1 - self.same
        return self.chance < _CONSTANT and differ <= _ERRORS and differ <= _LIFT * (1 - self.chance)


def agreements(frame: pl.DataFrame, key: str, columns: Sequence[str]) -> dict[str, Agreement]:
    """The agreement of each column within the values of a key; empty if too few rows share a value.

    A sample of the key's values, with all of their rows, is sorted by key; neighbours are the pairs.

    >>> rows = pl.DataFrame({"k": [1, 1, 2, 2] * 20, "shade": ["red", "red", "blue", "blue"] * 20, "n": range(80)})
    >>> {name: found.determined for name, found in agreements(rows, "k", ["shade", "n"]).items()}
    {'shade': True, 'n': False}
    """
    keys = frame.get_column(key)
    codes = keys.hash(seed=0).to_numpy()
    taken = np.flatnonzero((codes % (frame.height // ENOUGH + 1) == 0) & keys.is_not_null().to_numpy())
    rows = taken[np.argsort(codes[taken], kind="stable")][: 3 * ENOUGH]
    pair = codes[rows][1:] == codes[rows][:-1]
    if pair.sum() < max(_LEAST_PAIRS, _REPEATED * len(rows)):
        return {}
    some = frame.select(columns)[rows]
    return {c: found for c in columns if (found := _agreement(some.get_column(c), pair)) is not None}


def _agreement(column: pl.Series, pair: np.ndarray) -> Agreement | None:
    if isinstance(column.dtype, (pl.List, pl.Array)):
        kind = pl.List(pl.String)
        column = column.cast(kind, strict=False).list.join("\x1f") if not column.dtype.inner.is_nested() else column
    if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Binary):
        return None
    present, cells = column.is_not_null().to_numpy(), column.hash(seed=0).to_numpy()
    both = pair & present[1:] & present[:-1]
    if both.sum() < _LEAST_PAIRS:
        return None
    counts = np.unique(cells[present], return_counts=True)[1].astype(np.float64)
    chance = float((counts**2).sum() / counts.sum() ** 2)
    return Agreement(same=float((cells[1:] == cells[:-1])[both].mean()), chance=chance)


def is_binning(frame: pl.DataFrame, key: str, column: str) -> bool:
    """Whether a column that a number determines only groups or rescales it, as decades do with years.

    >>> years = pl.DataFrame({"year": range(1950, 2000)})
    >>> years = years.with_columns(decade=pl.col("year") // 10, k=pl.col("year") % 7)
    >>> is_binning(years, "year", "decade"), is_binning(years, "year", "k")
    (True, False)
    """
    if not frame.schema[key].is_numeric():
        return False
    firsts = frame.select(k=pl.col(key), c=pl.col(column)).drop_nulls().unique("k").sort("k").head(ENOUGH)
    cells = firsts.get_column("c")
    if cells.dtype.is_numeric():
        steps = np.sign(np.diff(cells.to_numpy().astype(np.float64)))
        steps = steps[steps != 0]
        return bool(len(steps)) and abs(float(steps.mean())) > 0.9
    codes = cells.hash(seed=0).to_numpy() if not cells.dtype.is_nested() else np.arange(len(cells))
    groups = len(np.unique(codes))  # text that is one to one with the numbers names them
    return groups < 0.8 * len(codes) and int((codes[1:] != codes[:-1]).sum()) <= 1.5 * (groups - 1) + 1


def collision_ratio(numbers: np.ndarray) -> float:
    """How much oftener rows share a whole number than a density that is smooth among neighbouring numbers would give.

    About 1 for counts, ages and amounts. Ids have gaps, or some are used much more than their neighbours: above 1.5.

    >>> rng = np.random.default_rng(0)
    >>> ages, ids = rng.normal(40, 12, 4000).astype(int), rng.permutation(10_000)[:300][rng.integers(0, 300, 4000)]
    >>> collision_ratio(ages) < 1.3, collision_ratio(ids) > 5
    (True, True)
    """
    values, counts = np.unique(numbers.astype(np.int64), return_counts=True)
    if len(values) < 2 * _NEIGHBOURS:
        return 1.0
    values = (values - values[0]) // max(1, int(np.gcd.reduce(np.diff(values))))
    windows = len(values) // _NEIGHBOURS
    inner = slice(0, windows * _NEIGHBOURS)
    grid, many = values[inner].reshape(windows, -1), counts[inner].reshape(windows, -1).astype(np.float64)
    after = np.append(values[_NEIGHBOURS::_NEIGHBOURS], values[-1] + 1)[:windows]
    width = (after - grid[:, 0]).astype(np.float64).clip(min=_NEIGHBOURS)
    total = many.sum(axis=1)
    expected = float((total * (total - 1) / width).sum())
    observed = float((many * (many - 1)).sum())
    return observed / max(expected, _LEAST_PAIRS) if max(observed, expected) > _LEAST_PAIRS else 1.0


def is_round(numbers: np.ndarray) -> bool:
    """Whether people or prices rounded the numbers: many end alike, on 0, 5 or 9.

    >>> is_round(np.array([1990, 2490, 990, 12990] * 10)), is_round(np.arange(1000))
    (True, False)
    """
    values = np.unique(np.abs(numbers.astype(np.int64)))
    if len(values) < 4:
        return False
    last = np.bincount(values % 10, minlength=10) / len(values)
    return bool(last.max() > 0.4 or last[0] + last[5] > 0.6)


def tail(counts: np.ndarray) -> float:
    """How unequally values are used: the mean of squared counts by the square of their mean; 1 if all are alike."""
    mean = float(counts.mean())
    return max(0.0, float((counts.astype(np.float64) ** 2).mean()) - mean) / mean**2


def bins_lead(numbers: np.ndarray, target: np.ndarray) -> float:
    """How much better quantile bins predict a target on held-out rows than categories do, in standard errors.

    Both predict by the shrunken mean of half of the rows, and are compared by squared error on the other half.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.integers(0, 400, 8000)
    >>> smooth, jagged = (rng.random(8000) < share for share in (x / 400, x * 37 % 101 / 101))
    >>> bins_lead(x, smooth) > 2, bins_lead(x, jagged) < -2
    (True, True)
    """
    rows = np.random.default_rng(0).permutation(len(numbers))[: 2 * ENOUGH]
    numbers, target = numbers[rows], target[rows].astype(np.float64)
    codes = np.unique(numbers, return_inverse=True)[1]
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, _BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, numbers)
    half = len(rows) // 2
    errors = [(target[half:] - _held_out(group, target, half)) ** 2 for group in (codes, bins)]
    lead = errors[0] - errors[1]
    spread = float(lead.std())
    return float(lead.mean()) / spread * len(lead) ** 0.5 if spread > 0 else 0.0


def _held_out(codes: np.ndarray, target: np.ndarray, half: int) -> np.ndarray:
    groups = int(codes.max()) + 1
    count = np.bincount(codes[:half], minlength=groups)
    total = np.bincount(codes[:half], weights=target[:half], minlength=groups)
    mean = (total + _SHRINKAGE * float(target[:half].mean())) / (count + _SHRINKAGE)
    return np.asarray(mean[codes[half:]])
