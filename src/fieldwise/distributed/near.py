"""What the processes of a training on one machine tell each other through memory, where sockets would take longer.

Every process writes into a box of its own, all meet, and each reads the boxes of the others. There are two boxes each,
taken in turns: when all meet the next time they have read the one before, so that it may be written again.

Letters: P processes.
"""

import contextlib
import mmap
import os
import platform
import secrets
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["BOX", "SWITCH", "Near"]

SWITCH = "FIELDWISE_SHARED_MEMORY"
BOX = 1 << 22  # bytes; what is longer goes in pieces
LINE = 64  # bytes of a line of the processor's cache: flags of two processes are not in one
SPIN, REST, GLANCE = 2e-3, 1e-4, 1.0  # seconds: of looking without rest, of each rest, between looks for the lost
MET, LEFT = 0, 1  # of a process's flags: how often it has come to meet, and whether it has left
SUM, STACK, SWAP = range(3)
Every = Callable[[Any], list[Any]]
"""The values of all processes, which JSON can hold."""


class Near:
    """The processes of a training, all on one machine: they call the same methods in the same order.

    Args:
        rank: the number of this process.
        every: the values of all processes.
        memory: [`_needed(P)`] uint8, zeros that all of them share.
        ends: files of the other processes that can be read when one has ended.
        minutes: how long one may keep the others waiting.

    Errors:
        RuntimeError: a process has ended or left, or does not come, or does something else.
    """

    def __init__(self, rank: int, every: Every, memory: Tensor, ends: Sequence[int], minutes: float) -> None:
        self.rank, self.size, self.every, self.minutes = rank, len(ends) + 1, every, minutes
        flags, heads = _flags_heads(self.size)
        self._flags = memory[:flags].numpy().data.cast("q")
        self._heads = memory[flags : flags + heads].view(torch.int64).view(2, self.size, -1)
        self._boxes = memory[flags + heads :].view(2, self.size, BOX)
        self._places = [other * LINE // 8 for other in range(self.size)]
        self._ends, self._lost = ends, select.poll()
        for end in ends:
            self._lost.register(end, select.POLLIN)
        self._meetings = self._turn = 0

    @classmethod
    def of(cls, rank: int, machine: str, every: Every, minutes: float) -> "Near | None":
        """The same answer in all processes: None if they are on several machines, or on one that cannot do this.

        That needs Linux, and x86-64, which lets no process see a flag before what was written earlier.
        """
        able = sys.platform == "linux" and platform.machine() == "x86_64" and os.environ.get(SWITCH) != "0"
        told = every([machine, able, os.getpid()])
        if len({one[0] for one in told}) > 1 or not all(one[1] for one in told):
            return None
        memory = _shared(_needed(len(told)), rank, every)
        ends: list[int] = []
        with contextlib.suppress(OSError, AttributeError):
            ends += [os.pidfd_open(pid) for other, (_, _, pid) in enumerate(told) if other != rank]
        if not all(every(memory is not None and len(ends) == len(told) - 1)) or memory is None:
            for end in ends:
                os.close(end)
            _warn_of_sockets(rank)
            return None
        return cls(rank, every, memory, ends, minutes)

    def memory(self, size: int) -> Tensor | None:
        """Zeros [size] uint8 that all processes share, until the last of them ends; None if there is not enough."""
        found = _shared(size, self.rank, self.every)
        if found is None:
            _warn_of_sockets(self.rank)
        return found

    def leave(self) -> None:
        """This process will not meet the others any more."""
        self._flags[self._places[self.rank] + LEFT] = 1
        for end in self._ends:
            os.close(end)
        self._ends = []

    def meet(self) -> None:
        """Wait until all processes have come here. What they wrote before can then be read."""
        with self._leaving_if_broken():
            self._meet()

    def sum_(self, tensor: Tensor) -> None:
        """The sum of all processes' tensors, in place, equal to the bit in all: each adds up a part of the numbers."""
        with self._leaving_if_broken():
            flat = tensor.contiguous().view(-1)
            for piece in torch.split(flat, BOX // flat.element_size()):
                boxes = self._taken(SUM, piece.numel()).view(piece.dtype)[:, : len(piece)]
                parts = [slice(*edges) for edges in pairwise(len(piece) * p // self.size for p in range(self.size + 1))]
                boxes[self.rank] = piece
                self._meet()
                self._checked(SUM, piece.numel())
                boxes[self.rank, parts[self.rank]] = boxes[:, parts[self.rank]].sum(0)
                self._meet()
                for part, box in zip(parts, boxes, strict=True):
                    piece[part] = box[part]
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat.view(tensor.shape))

    def stacked(self, tensor: Tensor) -> Tensor:
        """All processes' tensors, which have one shape: [...] -> [P, ...]."""
        with self._leaving_if_broken():
            own = _octets(tensor)
            found = own.new_empty(self.size, len(own))
            for first in range(0, max(1, len(own)), BOX):
                piece = slice(first, first + BOX)
                boxes = self._taken(STACK, len(own))[:, : len(own[piece])]
                boxes[self.rank] = own[piece]
                self._meet()
                self._checked(STACK, len(own))
                found[:, piece] = boxes
            return found.view(-1).view(tensor.dtype).view(self.size, *tensor.shape)

    def swapped(self, tensor: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """See `World.swapped`."""
        with self._leaving_if_broken():
            found = tensor.new_empty(sum(received), *tensor.shape[1:])
            own, row, rank = _octets(tensor), tensor.element_size() * tensor.shape[1:].numel(), self.rank
            at = [0, *accumulate(rows * row for rows in sent)]  # where what is for each process begins
            targets = torch.split(_octets(found), [rows * row for rows in received])
            targets[rank].copy_(own[at[rank] : at[rank + 1]])
            first, end = 0, 1
            while first < end:
                boxes = self._taken(SWAP, row, at)
                for low, high in (0, at[rank]), (at[rank + 1], at[-1]):
                    low, high = max(low, first), min(high, first + BOX)
                    if low < high:
                        boxes[rank, low - first : high - first] = own[low:high]
                self._meet()
                every = self._checked(SWAP, row)
                end = max(theirs[-1] for theirs in every)
                for other, theirs in enumerate(every):
                    low, high = max(theirs[rank], first), min(theirs[rank + 1], first + BOX)
                    if other != rank and low < high:
                        at_target = low - theirs[rank]
                        targets[other][at_target : at_target + high - low] = boxes[other, low - first : high - first]
                first += BOX
            return found

    def _taken(self, kind: int, size: int, at: Sequence[int] = ()) -> Tensor:
        """The boxes whose turn it is [P, BOX], after this process's head is written: what it is about to do."""
        self._turn = 1 - self._turn
        self._heads[self._turn, self.rank, : 2 + len(at)] = torch.tensor([kind, size, *at])
        return self._boxes[self._turn]

    def _checked(self, kind: int, size: int) -> list[list[int]]:
        """What the others' heads tell besides, if all do the same."""
        heads: list[list[int]] = self._heads[self._turn].tolist()
        if any(head[:2] != [kind, size] for head in heads):
            raise RuntimeError("the processes do not do the same")
        return [head[2 : 3 + self.size] for head in heads]

    def _meet(self) -> None:
        if not self._ends:
            raise RuntimeError("this process has left the others")
        self._meetings += 1
        self._flags[self._places[self.rank] + MET] = self._meetings
        for place in self._places:
            if self._flags[place + MET] < self._meetings:
                self._wait(place)

    def _wait(self, place: int) -> None:
        flags, wanted, began, looked = self._flags, self._meetings, time.monotonic(), 0.0
        while flags[place + MET] < wanted:
            took = time.monotonic() - began
            if took < SPIN:
                os.sched_yield()
                continue
            if flags[place + LEFT] or (took > looked + GLANCE and self._lost.poll(0)):
                time.sleep(GLANCE)  # time for it to say why
                if flags[place + MET] >= wanted:  # it came, and left after that
                    return
                raise RuntimeError("it has left the memory that they share")
            if took > looked + GLANCE:
                looked = took
            if took > 60 * self.minutes:
                raise RuntimeError("timed out in the memory that they share")
            time.sleep(REST)

    @contextlib.contextmanager
    def _leaving_if_broken(self) -> Iterator[None]:
        """A context after whose error the others do not wait for this process, nor take what it writes later."""
        try:
            yield
        except BaseException:
            self.leave()
            raise


def _warn_of_sockets(rank: int) -> None:
    """Warn once for all processes that they do without shared memory where they could have it."""
    if rank == 0:
        warnings.warn(
            "the processes of this machine cannot share memory (there is too little, or a container forbids it) and "
            f"exchange through sockets, which takes more time: raise the limit, or set {SWITCH}=0 to accept it",
            stacklevel=3,
        )


def _octets(tensor: Tensor) -> Tensor:
    """A tensor's bytes, without a copy if it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _flags_heads(size: int) -> tuple[int, int]:
    """Sizes in bytes of the flags and of the heads of P processes."""
    return size * LINE, 2 * size * -(-(size + 3) * 8 // LINE) * LINE


def _needed(size: int) -> int:
    """Size in bytes of the shared memory of P processes: flags, heads and boxes."""
    return sum(_flags_heads(size)) + 2 * size * BOX


def _shared(size: int, rank: int, every: Every) -> Tensor | None:
    """Zeros that all processes share, or None in all of them."""
    name, file = f"fieldwise-{secrets.token_hex(16)}", -1
    mapped: mmap.mmap | None = None
    try:
        with contextlib.suppress(OSError, AttributeError):
            if rank == 0:
                file = os.memfd_create(name)
                os.truncate(file, size)
        pid, number, name = every([os.getpid(), file, name])[0]
        with contextlib.suppress(OSError, ValueError):
            path = f"/proc/{pid}/fd/{number}"
            if rank > 0 and os.readlink(path).split()[0] == f"/memfd:{name}":  # in containers numbers may be others'
                file = os.open(path, os.O_RDWR)
            if file >= 0:
                mapped = mmap.mmap(file, size)
        everywhere = all(every(mapped is not None))
    finally:
        if file >= 0:
            os.close(file)
    return torch.frombuffer(mapped, dtype=torch.uint8) if everywhere and mapped is not None else None
