"""Timing of short functions: many calls within one turn."""

import time
from collections.abc import Callable

__all__ = ["FILL", "seconds_of"]

FILL = 0.3
"""Seconds that a turn of short work lasts."""


def seconds_of(*works: Callable[[], object], at_least: float | None = None, most: int = 200) -> list[float]:
    """The minimum seconds of each function, called in turn until `at_least` (FILL) seconds have passed.

    The minimum is used because other load on the machine only adds time; several turns then give the spread.
    """
    least = [float("inf")] * len(works)
    began, at_least = time.perf_counter(), FILL if at_least is None else at_least
    for _ in range(most):
        for k, work in enumerate(works):
            start = time.perf_counter()
            work()
            least[k] = min(least[k], time.perf_counter() - start)
        if time.perf_counter() - began >= at_least:
            break
    return least
