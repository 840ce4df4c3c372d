"""How the processes of a training find each other."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from fieldwise.distributed.place import Place
from fieldwise.distributed.world import ANSWER_MINUTES, World, machine_name
from fieldwise.errors import ConfigError

__all__ = ["joined"]


@contextlib.contextmanager
def joined(place: Place | None) -> Iterator[World | None]:
    """A context in which a process is one of several; with None it is alone.

    Errors:
        ConfigError: they cannot meet.
    """
    if place is None:
        yield None
        return
    if "FIELDWISE_SHARED_MEMORY" in os.environ:
        raise ConfigError(
            "FIELDWISE_SHARED_MEMORY was removed: processes exchange by Gloo on CPUs and by NCCL on GPUs; unset it"
        )
    store = _met(place)
    machine = machine_name()
    local_rank = _number_here(place, store, machine) if place.local_rank is None else place.local_rank
    if torch.cuda.is_available():  # a launcher may show each process its own GPU alone; `check_own_gpu` comes later
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    world = World(rank=place.rank, size=place.size, local_rank=local_rank, store=store, machine=machine)
    try:
        with world.failures_told():
            yield world
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _number_here(place: Place, store: Store, machine: str) -> int:
    """The number of a process on its machine, for launchers that do not tell it, such as `srun`."""
    names = [f"fieldwise/machine/{rank}" for rank in range(place.size)]
    try:
        store.set(names[place.rank], machine)
        before = [store.get(name).decode() for name in names[: place.rank]]
    except RuntimeError as e:
        why = (str(e).splitlines() or [""])[0]
        raise ConfigError(f"the {place.size} processes did not all say on which machine they are ({why})") from None
    return before.count(machine)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A context in which Ctrl-C and SIGTERM end this process at once: PyTorch would go on waiting for the others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in ending if callable(signal.getsignal(number))]  # ignored ones stay ignored
    before = {number: signal.signal(number, signal.SIG_DFL) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _met(place: Place) -> Store:
    """The process group is set up; returns its store."""
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    wait = timedelta(minutes=ANSWER_MINUTES)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        with _ended_by_signals():
            store, rank, size = next(rendezvous("env://", place.rank, place.size, timeout=wait))
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as e:
        why = (str(e).splitlines() or [type(e).__name__])[0]
        if "in use" in why:
            raise ConfigError(
                f"the processes need a port of their own to meet, but {where} is in use: choose another one with "
                "torchrun's --master-port"
            ) from None
        raise ConfigError(
            f"the {place.size} processes could not meet at {where} ({why}): check that all of them were started and "
            "that the address can be reached"
        ) from None
    met: Store = store
    return met
