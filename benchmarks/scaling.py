"""Timing a part of an epoch in place of all of it."""

__all__ = ["steps_to_time"]


def steps_to_time(rows: int, batch: int, steps: int | None) -> tuple[int, float]:
    """Rows in `steps` batches (all rows for None), and what their seconds are multiplied by to give an epoch's.

    >>> steps_to_time(100, 10, 2)
    (20, 5.0)
    """
    timed = rows if steps is None else min(rows, steps * batch)
    return timed, rows / timed
