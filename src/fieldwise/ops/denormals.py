"""Numbers too small for a normal float, counted as zero while a network trains or scores on the CPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fieldwise.ops.native import NATIVE

__all__ = ["flushed_denormals"]

_PROCESS = os.getpid()


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Take numbers below the smallest normal one (float32: 1.2e-38) for zero, on the calling thread and PyTorch's.

    Such denormal numbers come from a softmax that has made up its mind, and a processor takes about a hundred times as
    long for them: epochs of AFM on Frappe (D 256, squared loss) grew from ten seconds to over two minutes.

    Afterwards these threads keep such numbers again; where the calling thread flushed them already, nothing is changed
    now or then. A thread that is started meanwhile inherits the setting. Without the native library, or in a forked
    child (whose copy of the threads is dead), only the calling thread flushes them.

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
