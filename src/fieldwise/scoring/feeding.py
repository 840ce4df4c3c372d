"""Batches on the device of a network: the next one is gathered and copied while the present one is computed."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["fed", "moved"]

T = TypeVar("T", bound=tuple[Any, ...])
ALIGNED = 16  # bytes: where each tensor begins in a buffer, for any type


def moved(item: T, device: torch.device) -> T:
    """A batch, or a tuple of batches, tensors and None, on a device; tensors already there are not copied.

    >>> from fieldwise.layout import Batch
    >>> moved((Batch.of_ids(torch.tensor([[0, 3]])), None), torch.device("meta"))
    (Batch(rows=1, ids=[1, 2] int64, values=[1, 0] float32, bag values=0, device=meta), None)
    """
    return _filled(item, iter([tensor.to(device) for tensor in _tensors(item)]))


def fed(items: Generator[T], device: torch.device) -> Generator[T]:
    """Batches, moved to a device.

    On the CPU these are `items` themselves. Else a thread is one item ahead; for a GPU it gathers a batch's tensors in
    one page-locked buffer, which is copied on a stream of its own.

    Args:
        items: batches, or tuples of batches, tensors and None, on the CPU; closed at the end.
        device: where they are wanted.
    """
    return items if device.type == "cpu" else _ahead(items, device)


def _ahead(items: Generator[T], device: torch.device) -> Generator[T]:
    stage: Callable[[T], Callable[[], T]] = _Pinned(device) if device.type == "cuda" else _Copied(device)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="fieldwise-feed") as thread:

            def read() -> Callable[[], T] | None:
                item = next(items, None)
                return None if item is None else stage(item)

            ahead = thread.submit(read)
            while (ready := ahead.result()) is not None:
                ahead = thread.submit(read)
                yield ready()
    finally:
        items.close()


class _Copied:
    """Copies batches to a device tensor by tensor."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, item: T) -> Callable[[], T]:
        there = moved(item, self.device)
        return lambda: there


class _Pinned:
    """Copies batches to a GPU from page-locked buffers, each used again once its copy is done.

    The call begins the copy; calling its result makes the GPU's present stream wait for it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.buffers = [torch.empty(0, dtype=torch.uint8)] * 2
        self.copied = [torch.cuda.Event() for _ in self.buffers]  # type: ignore[no-untyped-call]
        self.turn = 0

    def __call__(self, item: T) -> Callable[[], T]:
        tensors = _tensors(item)
        k = self.turn = (self.turn + 1) % len(self.buffers)
        self.copied[k].synchronize()
        size = packed_size(tensors)
        with torch.cuda.stream(self.stream):  # and on its device, which this thread did not choose
            if len(self.buffers[k]) < size:
                self.buffers[k] = _pinned(size)
            pack(tensors, self.buffers[k])
            there = self.buffers[k][:size].to(self.device, non_blocking=True)
            self.copied[k].record(self.stream)

        def ready() -> T:
            present = torch.cuda.current_stream(self.device)
            present.wait_event(self.copied[k])
            there.record_stream(present)
            return _filled(item, iter(unpacked(tensors, there)))

        return ready


def _pinned(size: int) -> Tensor:
    """A page-locked buffer of `size` bytes."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def packed_size(tensors: list[Tensor]) -> int:
    """Bytes of a buffer for these tensors."""
    return sum(_room(tensor) for tensor in tensors)


def pack(tensors: list[Tensor], buffer: Tensor) -> None:
    """Copy tensors into a buffer of bytes, one after another."""
    for tensor, place in zip(tensors, unpacked(tensors, buffer), strict=True):
        place.copy_(tensor)


def unpacked(like: list[Tensor], buffer: Tensor) -> list[Tensor]:
    """The tensors in a buffer of bytes, as views, with the types and shapes of `like`.

    >>> tensors = [torch.tensor([[1, 2]], dtype=torch.int32), torch.tensor([0.5])]
    >>> buffer = torch.empty(packed_size(tensors), dtype=torch.uint8)
    >>> pack(tensors, buffer)
    >>> unpacked(tensors, buffer)
    [tensor([[1, 2]], dtype=torch.int32), tensor([0.5000])]
    """
    at, found = 0, []
    for tensor in like:
        found.append(buffer[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        at += _room(tensor)
    return found


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNED) * ALIGNED


def _tensors(item: tuple[Any, ...]) -> list[Tensor]:
    """The tensors of nested tuples, in order."""
    found: list[Tensor] = []
    for part in item:
        if isinstance(part, Tensor):
            found.append(part)
        elif part is not None:
            found.extend(_tensors(part))
    return found


def _filled(item: T, tensors: Iterator[Tensor]) -> T:
    """A copy of nested tuples with other tensors."""
    parts = [
        None if part is None else next(tensors) if isinstance(part, Tensor) else _filled(part, tensors) for part in item
    ]
    return type(item)._make(parts) if hasattr(item, "_make") else type(item)(parts)
