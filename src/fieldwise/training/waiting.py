"""Let PyTorch's idle threads sleep: spinning threads take processor time from other processes.

GCC's OpenMP runtime, which PyTorch uses under Linux, reads OMP_WAIT_POLICY only when it is loaded. But if it manages
more threads than there are processors, its idle threads spin for microseconds instead of milliseconds. So an extra
team of a few sleeping threads is kept.
"""

import ctypes
import os
import threading
from functools import cache
from pathlib import Path

import torch

from fieldwise.ops.native import loaded_openmp
from fieldwise.storage.cores import available_cores

__all__ = ["rest_while_waiting"]

SET_BY_HAND = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def rest_while_waiting() -> bool:
    """Make PyTorch's idle threads sleep from now on in this process; results do not change.

    Returns:
        False if nothing was done: OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, there is only one thread, or PyTorch uses
        another OpenMP runtime than GCC's.
    """
    threads = torch.get_num_threads()
    if threads < 2 or any(name in os.environ for name in SET_BY_HAND):
        return False
    return _keep_team(max(2, available_cores() - threads + 2))


@cache
def _keep_team(size: int) -> bool:
    """Start a team of `size` threads, including the calling one, that ends with the process."""
    runtime = next((path for path in loaded_openmp() if Path(path).name.startswith("libgomp")), None)
    if runtime is None:
        return False
    library, started = ctypes.CDLL(runtime), threading.Event()
    nothing = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)  # run once by each thread of the team

    def keep() -> None:
        library.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))
        started.set()
        threading.Event().wait()

    threading.Thread(target=keep, name="fieldwise-idle-team", daemon=True).start()
    started.wait()
    return True
