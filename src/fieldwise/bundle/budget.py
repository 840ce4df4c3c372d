"""A limit on the size of a network while it is built from the settings of an untrusted bundle."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fieldwise.errors import BundleError

__all__ = ["parameters_within"]

ENTRY = 50  # bytes that a tensor takes at least in the header of a weights file


@contextmanager
def parameters_within(weights: bytes) -> Iterator[None]:
    """Stop building a network, in this thread, once it has more parameters than a weights file has bytes.

    Every parameter takes at least a byte there, so such a network does not belong to the file; a million layers would
    otherwise be built first.

    Errors:
        BundleError: the network has more parameters.

    >>> with parameters_within(bytes(1000)):
    ...     len([nn.Linear(4, 4) for _ in range(5)])
    5
    >>> with parameters_within(bytes(1000)):
    ...     [nn.Linear(4, 4) for _ in range(10**6)]
    Traceback (most recent call last):
        ...
    fieldwise.errors.BundleError: the settings describe a network that does not fit in its weights file of 1,000 bytes
    """
    thread, most, count = threading.get_ident(), len(weights), 0

    def add(_: nn.Module, __: str, parameter: nn.Parameter) -> None:
        nonlocal count
        if parameter is not None and threading.get_ident() == thread:
            count += parameter.numel() + ENTRY
            if count > most:
                raise BundleError(
                    f"the settings describe a network that does not fit in its weights file of {most:,} bytes"
                )

    handle = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()
