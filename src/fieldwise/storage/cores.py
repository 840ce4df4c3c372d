"""The cores that this process may use."""

import os

__all__ = ["available_cores"]


def available_cores() -> int:
    """How many cores this process may use: those of the machine, unless `taskset`, Slurm or a container allows fewer.

    >>> available_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
