"""The cuts of a split by time, from the sorted times of all rows."""

import numpy as np

__all__ = ["few_values", "time_cuts"]


def few_values(ordered: np.ndarray, enough: int) -> int:
    """The number of different values of a sorted array [N], or 0 if they are at least `enough`."""
    found, place = 0, 0
    while place < len(ordered):
        found, place = found + 1, _after(ordered, place)
        if found == enough:
            return 0
    return found


def time_cuts(ordered: np.ndarray, shares: tuple[float, float]) -> tuple[np.generic, np.generic]:
    """The first time of the validation rows and the first time of the test rows.

    The cuts are the pair that is closest to the shares (smallest sum of the two distances, in rows) among those that
    leave rows in every part; of two equally close ones the earlier is used.

    Args:
        ordered: the times of all rows [N], ascending, of at least three different values.
        shares: of validation and of test rows.

    >>> time_cuts(np.array([1, 2, 2, 3, 4]), (0.2, 0.2))
    (np.int64(3), np.int64(4))
    """
    after = np.array([shares[0] + shares[1], shares[1]])
    targets = np.round(len(ordered) * (1 - after), 6)  # rounded, so that equally close cuts compare as equal
    first, second = (_nearest(ordered, float(target)) for target in targets)
    if first == second:
        # Both distances grow away from the common cut, so the best pair has one of the two cuts there.
        pairs = [(_start(ordered, first - 1), first), (first, _after(ordered, first))]
        allowed = [(a, b) for a, b in pairs if a > 0 and b < len(ordered)]
        first, second = min(allowed, key=lambda pair: float(np.abs(np.array(pair) - targets).sum()))
    return ordered[first], ordered[second]


def _nearest(ordered: np.ndarray, target: float) -> int:
    """The cut (number of rows before it) nearest to a target, with rows before and after it."""
    at = min(max(int(target), 0), len(ordered) - 1)
    cuts = _start(ordered, at), _after(ordered, at)
    return min((cut for cut in cuts if 0 < cut < len(ordered)), key=lambda cut: (abs(cut - target), cut))


def _start(ordered: np.ndarray, place: int) -> int:
    """The first place of the value at a place."""
    return int(np.searchsorted(ordered, ordered[place], side="left"))


def _after(ordered: np.ndarray, place: int) -> int:
    """The first place behind the value at a place."""
    return int(np.searchsorted(ordered, ordered[place], side="right"))
