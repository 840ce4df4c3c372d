"""Threads that wait for the next operation asleep: spinning, they take the processor from whoever else needs it.

GCC's OpenMP runtime, on which PyTorch runs under Linux, reads how threads wait from OMP_WAIT_POLICY as it is loaded;
no function changes it later. But where it manages more threads than there are processors its threads spin for some
microseconds alone, not for milliseconds. So a team of a few threads that has nothing to do is kept, asleep.
"""

import ctypes
import os
import threading
from functools import cache
from pathlib import Path

import torch

from fieldwise.ops.native import loaded_openmp

__all__ = ["rest_while_waiting"]

SET_BY_HAND = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def rest_while_waiting() -> bool:
    """Have PyTorch's idle threads sleep from now on, in this process; numbers stay the same to the bit.

    Returns:
        False where nothing is done: OMP_WAIT_POLICY or GOMP_SPINCOUNT say how to wait, there is but one thread, or
        PyTorch runs on another OpenMP runtime than GCC's.
    """
    threads = torch.get_num_threads()
    if threads < 2 or any(name in os.environ for name in SET_BY_HAND):
        return False
    return _keep_team(max(2, _processors() - threads + 2))


@cache
def _keep_team(size: int) -> bool:
    """Start a team of so many threads, its own among them, that ends with the process."""
    runtime = next((path for path in loaded_openmp() if Path(path).name.startswith("libgomp")), None)
    if runtime is None:
        return False
    library, started = ctypes.CDLL(runtime), threading.Event()
    nothing = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)  # what each thread of the team does, once

    def keep() -> None:
        library.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))
        started.set()
        threading.Event().wait()

    threading.Thread(target=keep, name="fieldwise-idle-team", daemon=True).start()
    started.wait()
    return True


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
