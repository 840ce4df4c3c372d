"""A value with its 95 % interval."""

import math
from dataclasses import dataclass

NORMAL_975 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with both ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, sign: str = "") -> str:
        """The value with its interval.

        >>> Interval(value=0.5, low=0.4, high=0.6).text("+")
        '+0.5000 [+0.4000, +0.6000]'
        """
        figures = (self.value, self.low, self.high)
        value, low, high = (f"{figure:{sign}.4f}" for figure in figures)
        return f"{value} [{low}, {high}]"


def normal_interval(
    value: float, error: float, *, least: float = -math.inf, most: float = math.inf
) -> Interval:
    """The interval of a value with a normal distribution and this standard error, within bounds."""
    reach = NORMAL_975 * error
    return Interval(value=value, low=max(least, value - reach), high=min(most, value + reach))
