"""PyTorch's threads: flushing denormal numbers in them, and letting idle ones sleep.

GCC's OpenMP runtime, which PyTorch uses under Linux, reads OMP_WAIT_POLICY only when it is loaded. But if it manages
more threads than there are processors, its idle threads spin for microseconds instead of milliseconds. So an extra
team of a few sleeping threads is kept.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from fieldwise.ops.native import NATIVE, loaded_openmp
from fieldwise.storage.machine import available_cores

__all__ = ["flushed_denormals", "use_passive_openmp_wait"]

_PROCESS = os.getpid()


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """A context that flushes denormals (float32: below 1.2e-38) to zero, on the calling thread and PyTorch's.

    Denormal numbers come from a saturated softmax, and are about a hundred times slower to compute with: epochs of AFM
    on Frappe (D 256, squared loss) grew from ten seconds to over two minutes.

    At the end the threads keep denormals again; if the calling thread flushed them already, nothing changes. A thread
    started inside the context inherits the setting. Without the native library, or in a forked child (where the other
    threads do not exist), only the calling thread flushes them.

    >>> with flushed_denormals():
    ...     print(float(torch.tensor(1e-39) * 1.0))
    0.0
    """
    if _flushes():
        yield
        return
    threads = torch.get_num_threads()
    _flush(True, threads)
    try:
        yield
    finally:
        _flush(False, threads)


def _flushes() -> bool:
    tiny = torch.full((1,), 1e-39, dtype=torch.float32, device="cpu")
    return bool((tiny * 1.0 == 0).item())


def _flush(flush: bool, threads: int) -> None:
    torch.set_flush_denormal(flush)
    if NATIVE.library is not None and os.getpid() == _PROCESS:
        NATIVE.library.fw_flush_denormals(threads, int(flush))


SET_BY_HAND = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def use_passive_openmp_wait() -> bool:
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
