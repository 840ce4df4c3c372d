"""Whether whole numbers are codes, which name something, or quantities, which count or measure something."""

from typing import NamedTuple

import numpy as np

from fieldwise.data.infer.entities import collision_ratio, is_round
from fieldwise.data.infer.profile import ColumnProfile
from fieldwise.schema.ids import MOMENTARY, id_rank, kind_of_name, words_of

_LONGEST_CYCLE = 366
_FEW_VALUES = 10
_STANDS_OUT = 1.6
"""The `collision_ratio` from which some values are used more than their neighbours."""
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


def votes_of_numbers(values: np.ndarray, counts: np.ndarray) -> list[Vote]:
    """What the different numbers, ascending, and their counts say.

    Values that stand out among their neighbours, gaps, rounding, signs.
    """
    votes = []
    ratio = collision_ratio(values, counts)
    if values[0] < 0:
        votes.append(Vote(-2.5, "some are below 0"))
    if ratio > 3:
        why = "some values are used much more than their neighbours, with gaps between them"
        votes.append(Vote(2.5, why))
    elif ratio > _STANDS_OUT:
        votes.append(Vote(1.0, "some values are used more than their neighbours"))
    elif 0 < ratio < 1.35 and ratio != 1 and len(values) >= 6:
        votes.append(Vote(-1.5, "neighbouring numbers are about as frequent"))
    if is_round(values):
        votes.append(Vote(-1.5, "many are round"))
    if _have_gaps(values):
        votes.append(Vote(1.5, "few values with gaps"))
    elif _begin_near_0(values, counts):
        votes.append(Vote(-1.0, "they begin near 0 without gaps"))
    are_nearly_unique = counts.sum() < 1.6 * len(values)
    if are_nearly_unique and ratio <= _STANDS_OUT and is_bent(values):
        votes.append(Vote(-1.0, "they crowd around a middle or one end"))
    return votes


def _have_gaps(values: np.ndarray) -> bool:
    return len(values) <= _FEW_VALUES and _steps(values) > 3 * len(values)


def _begin_near_0(values: np.ndarray, counts: np.ndarray) -> bool:
    """Whether numbers without many gaps begin at 0 or 1, and the most frequent one is among the lower half."""
    has_few_gaps = _steps(values) <= 1.25 * len(values)
    return has_few_gaps and values[0] in (0, 1) and int(np.argmax(counts)) <= len(values) // 2


def _steps(values: np.ndarray) -> int:
    """How many numbers there would be from the least to the greatest with no gap between them."""
    step = int(np.gcd.reduce(np.diff(values))) if len(values) > 1 else 1
    return int(values[-1] - values[0]) // max(1, step) + 1


def is_bent(values: np.ndarray) -> bool:
    """Whether different numbers are far from evenly spread over their range, as amounts are and ids are not."""
    share_of_range = (values - values[0]) / max(1, int(values[-1] - values[0]))
    evenly_spread = np.linspace(0, 1, len(values))
    return float(np.abs(share_of_range - evenly_spread).max()) > _BENT
