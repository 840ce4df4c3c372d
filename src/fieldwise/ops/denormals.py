"""Flushing denormal numbers to zero during training and scoring on the CPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fieldwise.ops.native import NATIVE

__all__ = ["flushed_denormals"]

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
