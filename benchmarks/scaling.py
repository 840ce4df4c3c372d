"""Timing a part of an epoch and scaling it to the whole."""

__all__ = ["steps_to_time"]


def steps_to_time(rows: int, batch: int, steps: int | None) -> tuple[int, float]:
    """Rows in `steps` batches (all rows for None), and the factor that scales their seconds to an epoch.

    >>> steps_to_time(100, 10, 2)
    (20, 5.0)
    """
    timed = rows if steps is None else min(rows, steps * batch)
    return timed, rows / timed
