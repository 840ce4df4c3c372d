"""What processes tell each other through the memory that they share: run by `ranks.in_processes`."""

import contextlib
import dataclasses
import os
import signal
import time
import warnings
from typing import Any

import torch

from fieldwise.distributed.near import BOX, SWITCH, Near
from fieldwise.distributed.world import World, current
from fieldwise.errors import LostProcessError

LENGTHS = (0, 1, 5, BOX // 8, BOX // 8 + 1, 2 * BOX // 8 + 3)  # numbers of 8 bytes: none, few, a box and more


def _worlds() -> tuple[World, World]:
    """The processes as they are, and as if on several machines."""
    world = current()
    assert world is not None
    assert world.near is not None
    return world, dataclasses.replace(world, near=None)


def _numbers(rank: int, *shape: int) -> torch.Tensor:
    return torch.randint(-1000, 1000, shape, generator=torch.Generator().manual_seed(rank)).double() / 8


def same(rank: int) -> list[str]:
    """What differs from the answers of Gloo."""
    wrong = []
    near, far = _worlds()
    for length in LENGTHS:
        own = _numbers(rank, length)
        if not torch.equal(near.sum_(own.clone()), far.sum_(own.clone())):
            wrong.append(f"sum of {length}")
        if not torch.equal(near.stacked(own), far.stacked(own)):
            wrong.append(f"stacked {length}")
        lengths = [length * other for other in range(near.size)]
        own = _numbers(rank, lengths[rank])
        if not torch.equal(near.joined(own, lengths), far.joined(own, lengths)):
            wrong.append(f"joined {length}")
        # process p has length * (p + q) rows of three numbers for process q
        sent = [length * (rank + other) // 4 for other in range(near.size)]
        pairs = [
            [world.swapped(tensor, sent, sent) for world in (near, far)]
            for tensor in (_numbers(rank, sum(sent), 3), _numbers(rank, sum(sent)).int())
        ]
        wrong += [f"swapped {length} {pair[0].dtype}" for pair in pairs if not torch.equal(*pair)]
    odd = torch.arange(24).view(4, 6).t() + rank  # not contiguous
    if not torch.equal(near.sum_(odd.clone()), far.sum_(odd.clone())) or not torch.equal(
        near.stacked(odd), far.stacked(odd)
    ):
        wrong.append("not contiguous")
    return [*wrong, *([] if near.lengths(rank + 3) == [other + 3 for other in range(near.size)] else ["lengths"])]


def order(rank: int) -> list[int]:
    """A late process finds what the others wrote, though they have gone on meanwhile."""
    world, found = _worlds()[0], []
    for k in range(40):
        if (k + rank) % 7 == 0:
            time.sleep(0.004)
        found += world.lengths(100 * k + rank)
    return found


def common(rank: int) -> list[Any]:
    """Memory of zeros that all see."""
    near = _worlds()[0].near
    assert near is not None
    memory = near.memory(10_000)
    assert memory is not None
    before = int(memory.sum())
    near.meet()
    memory[rank] = rank + 1
    near.meet()
    return [before, memory[:5].tolist(), len(memory)]


def unable(rank: int) -> list[bool]:
    """Whether there is none: if one process may not, for lack of memory, on two machines; and no file is left open."""
    far = _worlds()[1]
    os.environ[SWITCH] = "0" if rank == 1 else "1"
    found = [Near.of(rank, far.machine, far.every, 1.0) is None]
    os.environ[SWITCH] = "1"
    near = Near.of(rank, far.machine, far.every, 1.0)
    assert near is not None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found.append(Near.of(rank, f"node{rank}", far.every, 1.0) is None)
        assert not told, "several machines, which is no fault"
        found.append(near.memory(1 << 62) is None)
        near.leave()
        if rank == 1:
            os.pidfd_open = _refuse
        files = len(os.listdir("/proc/self/fd"))
        found.append(Near.of(rank, far.machine, far.every, 1.0) is None and len(os.listdir("/proc/self/fd")) == files)
    said = ["cannot share memory" in str(one.message) for one in told]
    return [*found, said == ([True, True] if rank == 0 else [])]


def _refuse(_: int) -> int:
    raise PermissionError("a container may forbid it")


def mismatched(rank: int) -> str:
    """Process 0 does something else than the others."""
    world = _worlds()[0]
    try:
        world.sum_(torch.ones(3)) if rank == 0 else world.stacked(torch.ones(3))
        world.sum_(torch.ones(1))
    except LostProcessError as e:
        return str(e)
    return ""


def late(rank: int) -> str:
    """Process 1 stays away for longer than allowed."""
    world = _worlds()[0]
    assert world.near is not None
    world.near.minutes = 2 / 60
    try:
        if rank != 1:
            world.meet()
        else:
            time.sleep(4)
            world.meet()
    except LostProcessError as e:
        return str(e)
    return ""


def broken(rank: int) -> str:
    """Ctrl-C comes to process 1 while it waits; it goes on with something else, which nobody takes for an answer."""
    world = _worlds()[0]
    if rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            world.meet()
    else:
        time.sleep(2)
    try:
        world.sum_(torch.ones(2))
    except LostProcessError as e:
        return str(e)
    return ""
