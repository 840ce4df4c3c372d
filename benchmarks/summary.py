"""Medians with their spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Summary", "ratio", "summarize"]


@dataclass(frozen=True)
class Summary:
    """The median of some samples, and the quartiles around it."""

    median: float
    low: float
    high: float


def summarize(samples: Sequence[float]) -> Summary:
    """Median and quartiles (linear interpolation, as in NumPy).

    >>> summarize([4.0, 1.0, 2.0, 3.0, 5.0])
    Summary(median=3.0, low=2.0, high=4.0)
    """
    if not samples:
        raise ValueError("samples must not be empty")
    if len(samples) == 1:
        return Summary(samples[0], samples[0], samples[0])
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(middle, low, high)


def ratio(top: Sequence[float], bottom: Sequence[float]) -> Summary:
    """The ratio of the medians, with the quartiles of the ratios per round, whose two runs are close in time.

    >>> ratio([10.0, 20.0, 60.0], [1.0, 2.0, 3.0])
    Summary(median=10.0, low=10.0, high=15.0)
    """
    rounds = summarize([a / b for a, b in zip(top, bottom, strict=True)])
    return Summary(summarize(top).median / summarize(bottom).median, rounds.low, rounds.high)
