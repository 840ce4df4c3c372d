"""The processes of one training and their collectives, by `torch.distributed`: Gloo on CPUs, NCCL on GPUs.

`torchrun`, `fieldwise train --processes` and Ray Train start the processes. Only tensors and JSON go between them.

Letters: B rows of this process, A rows of all processes.
"""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed import _functional_collectives as functional
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional as F

from fieldwise.distributed.environment import BatchShard, DistributedEnvironment
from fieldwise.errors import ConfigError, LostProcessError, first_line

__all__ = ["ProcessGroup", "all_gather_rows", "all_reduce", "current_group", "process_group", "span_of_rows"]

TIMEOUT = timedelta(minutes=10)
POLL_INTERVAL = timedelta(seconds=2)
CURRENT: ContextVar["ProcessGroup | None"] = ContextVar("process_group", default=None)


def current_group() -> "ProcessGroup | None":
    """The processes that compute the present batch together; None if it is one alone."""
    return CURRENT.get()


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessGroup:
    """The processes of one training, seen from one of them: all call the same methods in the same order.

    Args:
        rank: the number of this process, from 0; process 0 alone writes files.
        size: how many there are.
        local_rank: its number on its machine.
        machine: the name of its machine.
        pending_signals: received signals that the others do not know of.
    """

    rank: int
    size: int
    local_rank: int
    machine: str = field(default_factory=lambda: f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '')}")
    pending_signals: list[int] = field(default_factory=list)

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0."""
        return self.rank == 0

    @property
    def shard(self) -> BatchShard:
        """The rows of every batch that this process takes."""
        return BatchShard(rank=self.rank, size=self.size)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of all processes' tensors, in place; equal to the bit in all of them."""
        dist.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """All processes' tensors, which have one shape: [...] -> [size, ...]."""
        gathered = tensor.new_empty(self.size * tensor.numel())
        dist.all_gather_single(gathered, tensor.contiguous().view(-1))
        return gathered.view(self.size, *tensor.shape)

    def all_gather_lengths(self, length: int) -> list[int]:
        """How many rows each process has."""
        lengths: list[int] = self.all_gather(torch.tensor([length])).flatten().tolist()
        return lengths

    def all_gather_v(self, tensor: Tensor, lengths: Sequence[int]) -> Tensor:
        """All processes' rows one after another: [lengths[rank], ...] -> [sum of lengths, ...]."""
        padding = tensor.new_zeros(max(lengths) - tensor.shape[0], *tensor.shape[1:])
        gathered = self.all_gather(torch.cat([tensor, padding]) if len(padding) else tensor)
        return torch.cat([rows[:length] for rows, length in zip(gathered, lengths, strict=True)])

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Process 0's tensor, in place."""
        dist.broadcast(tensor, 0)
        return tensor

    def broadcast_object(self, value: Any) -> Any:
        """Process 0's value, which JSON can hold."""
        return self.all_gather_object(value if self.is_main_process else None)[0]

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all processes, which JSON can hold; `torch.distributed` would unpickle them."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self.all_gather_lengths(len(text))
        return [json.loads(bytes(part.tolist())) for part in torch.split(self.all_gather_v(text, lengths), lengths)]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """A context in which layers compute over the whole batch (`current_group`)."""
        token = CURRENT.set(self)
        try:
            yield
        finally:
            CURRENT.reset(token)

    @contextlib.contextmanager
    def first(self, what: str, *, goes: bool) -> Iterator[None]:
        """A context that one process goes through before others, which wait for as long as it takes.

        A barrier of PyTorch's would give up after its timeout, and ignore signals.

        Args:
            what: a name for it, each used once.
            goes: whether this process is the one.
        """
        store, key = dist.distributed_c10d._get_default_store(), f"fieldwise/{what}"
        while not (goes or store.check([key])):
            with contextlib.suppress(dist.DistStoreError):  # it takes its time
                store.wait([key], POLL_INTERVAL)
        yield
        if goes:
            store.set(key, "done")

    def local_main_first(self, what: str) -> contextlib.AbstractContextManager[None]:
        """A context that one process of each machine goes through before the others there; see `first`."""
        return self.first(f"{what}/{self.machine}", goes=self.local_rank == 0)

    def wait_for_main_process(self) -> None:
        """Wait until process 0 has come here too; it does not wait."""
        with self.first("end", goes=self.is_main_process):
            pass


@contextlib.contextmanager
def explained_loss(size: int) -> Iterator[None]:
    """A context in which an error of PyTorch's collectives becomes a sentence.

    Errors:
        LostProcessError: another of the `size` processes has ended or does not answer; it says why itself.
    """
    try:
        yield
    except RuntimeError as e:
        if not isinstance(e, dist.DistError) and "gloo" not in str(e):  # which has no class of its own
            raise
        why = first_line(e)
        did = f"not answered for {TIMEOUT.seconds // 60} minutes" if "imed out" in why else "ended"
        raise LostProcessError(
            f"another of the {size} processes has {did}: its own output says why; the same command resumes from the "
            f"last checkpoint ({why})"
        ) from None


@contextlib.contextmanager
def process_group(environment: DistributedEnvironment) -> Iterator[ProcessGroup]:
    """A context in which a process is one of several.

    Errors:
        ConfigError: the processes cannot meet. LostProcessError: another one has ended or does not answer.
    """
    size, owned = environment.world_size, not dist.is_initialized()  # Ray Train has set it up
    if owned:
        # what is exchanged of the hosts' tensors takes Gloo; PyTorch's default has only that of an accelerator
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        try:
            with _default_signals():
                store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
                attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                store = PrefixStore(f"attempt_{attempt}", store)  # torchrun keeps one store over its restarts
                dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        except (RuntimeError, ValueError) as e:
            raise ConfigError(
                f"the {size} processes could not meet at {os.environ.get('MASTER_ADDR')}:"
                f"{os.environ.get('MASTER_PORT')} ({first_line(e)}): check that all of them were started and that the "
                "address can be reached, or choose another port with torchrun's --master-port"
            ) from None
    if torch.cuda.is_available():  # a launcher may show each process its own GPU alone; `check_own_gpu` comes later
        torch.cuda.set_device(environment.local_rank % torch.cuda.device_count())
    try:
        with explained_loss(size):
            yield ProcessGroup(rank=environment.rank, size=size, local_rank=environment.local_rank)
    finally:
        if owned:
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


@contextlib.contextmanager
def _default_signals() -> Iterator[None]:
    """A context in which Ctrl-C and SIGTERM end this process at once: PyTorch would go on waiting for the others."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def all_reduce(x: Tensor) -> Tensor:
    """The sum of all processes' tensors, with its gradient; in a process alone `x` itself.

    >>> all_reduce(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if current_group() is None:
        return x
    begun = functional.all_reduce(x, "sum", dist.distributed_c10d._get_default_group())
    summed: Tensor = functional.wait_tensor(begun)  # type: ignore[no-untyped-call]
    return summed


def all_gather_rows(x: Tensor) -> Tensor:
    """The rows of all processes in the order of the batch, with their gradients: [B, ...] -> [A, ...].

    >>> all_gather_rows(torch.tensor([[1.0], [2.0]])).shape
    torch.Size([2, 1])
    """
    first, rows = span_of_rows(len(x))
    return all_reduce(F.pad(x, (0, 0) * (x.dim() - 1) + (first, rows - first - len(x))))


def span_of_rows(rows: int) -> tuple[int, int]:
    """How many rows of a batch come before those of this process, which has `rows`, and how many all processes have.

    >>> span_of_rows(3)
    (0, 3)
    """
    if (group := current_group()) is None:
        return 0, rows
    lengths = group.all_gather_lengths(rows)
    return sum(lengths[: group.rank]), sum(lengths)
