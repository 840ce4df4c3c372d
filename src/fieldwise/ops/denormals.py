"""Numbers too small for a normal float, counted as zero while a network trains or scores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fieldwise.ops.native import NATIVE

__all__ = ["flushed_denormals"]


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Take float32 numbers below 1.2e-38 for zero, on all of PyTorch's CPU threads; afterwards as it was.

    Such denormal numbers come from a softmax that has made up its mind, and a processor takes about a hundred times as
    long for them: epochs of AFM on Frappe (D 256, squared loss) grew from ten seconds to over two minutes. Without the
    native library only the calling thread flushes them.

    >>> with flushed_denormals():
    ...     print(float(torch.tensor(1e-39) * 1.0))
    0.0
    """
    before = bool((torch.full((1,), 1e-39) * 1.0 == 0).item())
    threads = torch.get_num_threads()
    _flush(True, threads)
    try:
        yield
    finally:
        _flush(before, threads)


def _flush(flush: bool, threads: int) -> None:
    torch.set_flush_denormal(flush)
    if NATIVE.library is not None:
        NATIVE.library.fw_flush_denormals(threads, int(flush))
