"""Timing of short functions, many calls within one turn, and of a part of an epoch."""

import time
from collections.abc import Callable

__all__ = ["FILL", "seconds_of", "steps_to_time"]

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


def steps_to_time(rows: int, batch: int, steps: int | None) -> tuple[int, float]:
    """Rows in `steps` batches (all rows for None), and the factor that scales their seconds to an epoch.

    >>> steps_to_time(100, 10, 2)
    (20, 5.0)
    """
    timed = rows if steps is None else min(rows, steps * batch)
    return timed, rows / timed
