"""Whether whole numbers are codes, which name something, or quantities, which count or measure something."""

from typing import NamedTuple

import numpy as np
import polars as pl

from fieldwise.data.infer.agreements import LEAST_PAIRS
from fieldwise.data.infer.profile import ColumnProfile
from fieldwise.schema.ids import MOMENTARY, id_rank, kind_of_name, words_of

_LONGEST_CYCLE = 366
_FEW_VALUES = 10
_STANDS_OUT = 1.6
"""The `collision_ratio` from which some values are used more than their neighbours."""
_NEIGHBOURS = 3
"""Different numbers in a row, within which values are compared with a smooth density."""
ROWS_PER_VALUE = 4
"""With fewer rows a value, how often values repeat tells little."""
_PRIOR_ROWS = 10.0
"""Rows with the mean of the target that are added to those of every group."""
_SMOOTH = 2.33
"""The `smoothness` from which counts do not change as in a random order: codes reach it once in 100 times."""
_BINS = 32
_BENT = 0.12
"""The greatest distance of numbers, in shares of their range, from evenly spread ones."""


class Vote(NamedTuple):
    """What one fact says: above 0 for codes, below 0 for quantities."""

    weight: float
    reason: str


def leaning(votes: list[Vote]) -> tuple[float, str]:
    """The sum of the votes, and the two strongest reasons on its side."""
    score = sum(vote.weight for vote in votes)
    strongest_first = sorted(votes, key=lambda vote: -abs(vote.weight))
    reasons = [vote.reason for vote in strongest_first if vote.weight * score > 0]
    return score, "; ".join(reasons[:2])


def votes_of_name(column: ColumnProfile) -> list[Vote]:
    """What a column's name says."""
    votes = []
    told = kind_of_name(column.name)
    if told == "code":
        votes.append(Vote(3.0 if id_rank(column.name) else 2.0, "its name tells a code"))
    if told == "quantity":
        votes.append(Vote(-1.5, "its name tells a quantity"))
    is_momentary = not MOMENTARY.isdisjoint(words_of(column.name)[-1:])
    if is_momentary and column.distinct <= _LONGEST_CYCLE:
        votes.append(Vote(3.0, "its name tells a part of a cycle"))
    return votes


def votes_of_numbers(values: np.ndarray, counts: np.ndarray, rows_per_value: float) -> list[Vote]:
    """What the different numbers, ascending, and their counts say.

    Values that stand out among their neighbours, gaps, rounding, signs. `rows_per_value` is of the
    table, where `counts` may be of the users or items whose column it is.
    """
    votes = []
    ratio = collision_ratio(values, counts)
    are_nearly_unique = counts.sum() < 1.6 * len(values) and ratio <= _STANDS_OUT
    are_rare = rows_per_value < ROWS_PER_VALUE
    if values[0] < 0:
        votes.append(Vote(-2.5, "some are below 0"))
    # amounts may recur, such as those of one household; ids are spread evenly
    if (are_nearly_unique or are_rare) and is_bent(values):
        votes.append(Vote(-1.0, "they crowd around a middle or one end"))
    elif ratio > 3:
        why = "some values are used much more than their neighbours, with gaps between them"
        votes.append(Vote(2.5, why))
    elif ratio > _STANDS_OUT:
        votes.append(Vote(1.0, "some values are used more than their neighbours"))
    if 0 < ratio < 1.35 and ratio != 1 and len(values) >= 6 and smoothness(counts) > _SMOOTH:
        votes.append(Vote(-1.5, "neighbouring numbers are about as frequent"))
    if is_round(values):
        votes.append(Vote(-1.5, "many are round"))
    possible = _possible_numbers(values)
    if len(values) <= _FEW_VALUES and possible > 3 * len(values):
        votes.append(Vote(1.5, "few values with gaps"))
    else:
        is_most_frequent_low = int(np.argmax(counts)) <= len(values) // 2
        if values[0] in (0, 1) and possible <= 1.25 * len(values) and is_most_frequent_low:
            votes.append(Vote(-1.0, "they begin near 0 without gaps"))
    return votes


def _possible_numbers(values: np.ndarray) -> int:
    """How many numbers there would be from the least to the greatest with no gap between them."""
    step = int(np.gcd.reduce(np.diff(values))) if len(values) > 1 else 1
    return int(values[-1] - values[0]) // max(1, step) + 1


def is_bent(values: np.ndarray) -> bool:
    """Whether different numbers are far from evenly spread over their range, as amounts are and ids are not."""
    share_of_range = (values - values[0]) / max(1, int(values[-1] - values[0]))
    evenly_spread = np.linspace(0, 1, len(values))
    return float(np.abs(share_of_range - evenly_spread).max()) > _BENT


def collision_ratio(values: np.ndarray, counts: np.ndarray) -> float:
    """How much oftener rows share a whole number than a density that is smooth among neighbouring numbers would give.

    About 1 for counts, ages and amounts. Ids have gaps, or some are used much more than their
    neighbours: above 1.5. `values` are the different numbers, ascending, and `counts` how many rows
    hold each.

    >>> rng = np.random.default_rng(0)
    >>> ages, ids = rng.normal(40, 12, 4000).astype(int), rng.permutation(10_000)[:300][rng.integers(0, 300, 4000)]
    >>> of_ages, of_ids = (collision_ratio(*np.unique(numbers, return_counts=True)) for numbers in (ages, ids))
    >>> of_ages < 1.3, of_ids > 5
    (True, True)
    """
    if len(values) < 2 * _NEIGHBOURS:
        return 1.0
    values = (values - values[0]) // max(1, int(np.gcd.reduce(np.diff(values))))
    windows = len(values) // _NEIGHBOURS
    inner = slice(0, windows * _NEIGHBOURS)
    grid = values[inner].reshape(windows, -1)
    many = counts[inner].reshape(windows, -1).astype(np.float64)
    after = np.append(values[_NEIGHBOURS::_NEIGHBOURS], values[-1] + 1)[:windows]
    width = (after - grid[:, 0]).astype(np.float64).clip(min=_NEIGHBOURS)
    total = many.sum(axis=1)
    expected = float((total * (total - 1) / width).sum())
    observed = float((many * (many - 1)).sum())
    return observed / max(expected, LEAST_PAIRS) if max(observed, expected) > LEAST_PAIRS else 1.0


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


def quantile_bins(numbers: np.ndarray) -> np.ndarray:
    """The bin of each number [N], from 0, of 32 or fewer that hold about as many each."""
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, _BINS + 1)[1:-1]))
    return np.searchsorted(edges, numbers)


def shrunken_means(groups: np.ndarray, target: np.ndarray, fitted: int) -> np.ndarray:
    """The mean target of each group in the first rows, `fitted` of them, drawn towards 0 as by ten rows of 0.

    `groups` [N] are numbered from 0; one without a row there has 0.
    """
    number = int(groups.max()) + 1
    count = np.bincount(groups[:fitted], minlength=number)
    total = np.bincount(groups[:fitted], weights=target[:fitted], minlength=number)
    return total / (count + _PRIOR_ROWS)


def bins_lead(numbers: np.ndarray, target: np.ndarray, fitted: int) -> float:
    """How much better quantile bins predict a target on held-out rows than categories do, in standard errors.

    Both predict by the shrunken means of the first rows, `fitted` of them, and are compared by
    squared error on the others. The rows are in random order.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.integers(0, 400, 8000)
    >>> smooth, jagged = (rng.random(8000) < share for share in (x / 400, x * 37 % 101 / 101))
    >>> bins_lead(x, smooth, 4000) > 2, bins_lead(x, jagged, 4000) < -2
    (True, True)
    """
    target = target - target[:fitted].mean()
    errors = []
    for groups in (np.unique(numbers, return_inverse=True)[1], quantile_bins(numbers)):
        means = shrunken_means(groups, target, fitted)
        errors.append((target - means[groups])[fitted:] ** 2)
    lead = errors[0] - errors[1]
    spread = float(lead.std())
    return float(lead.mean()) / spread * len(lead) ** 0.5 if spread > 0 else 0.0


def smoothness(counts: np.ndarray) -> float:
    """How smoothly the counts of ascending numbers change, in standard errors below those in random order.

    Codes are numbered without regard to their frequency, so theirs are in random order, and the
    result is about standard normal. It is the negative of the rank version of von Neumann's ratio
    (Bartels, 1982).

    >>> rng = np.random.default_rng(0)
    >>> ages, codes = rng.normal(40, 9, 4000).astype(int), rng.choice(60, 4000, p=rng.dirichlet(np.ones(60)))
    >>> of_ages, of_codes = (smoothness(np.unique(numbers, return_counts=True)[1]) for numbers in (ages, codes))
    >>> of_ages > 4, abs(of_codes) < 2
    (True, True)
    """
    n = len(counts)
    ranks = pl.Series(counts).rank().to_numpy()
    spread = float(np.square(ranks - ranks.mean()).sum())
    if n < 4 or not spread:
        return 0.0
    ratio = float(np.square(np.diff(ranks)).sum()) / spread
    variance = 4 * (n - 2) * (5 * n**2 - 2 * n - 9) / (5 * n * (n + 1) * (n - 1) ** 2)
    return float((2 - ratio) / variance**0.5)
