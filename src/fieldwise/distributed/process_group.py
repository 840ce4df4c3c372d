"""The processes of one training and their collectives, by `torch.distributed`: Gloo on CPUs, NCCL on GPUs.

`torchrun`, `fieldwise train --processes` and Ray Train start the processes. Only tensors and JSON
go between them.

Letters: B rows of this process, A rows of all processes.
"""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional as F

from fieldwise.distributed.environment import DistributedEnvironment
from fieldwise.errors import ConfigError, LostProcessError, first_line

TIMEOUT = timedelta(minutes=10)
CURRENT: ContextVar["ProcessGroup | None"] = ContextVar("process_group", default=None)
"""Ambient, as PyTorch's default group is: a layer's `forward(batch)` has no argument for it."""
current_group = CURRENT.get
"""The processes that compute the present batch together; None if it is one alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessGroup:
    """The processes of one training, seen from one of them: all call the same methods in the same order.

    Numbers count from 0, and process 0 alone writes files; `pending_signals` are those that the
    others do not know of.
    """

    rank: int
    size: int
    local_rank: int
    machine: str = field(
        default_factory=lambda: f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '')}"
    )
    pending_signals: list[int] = field(default_factory=list)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """All processes' tensors, which have one shape: [...] -> [size, ...]."""
        gathered = tensor.new_empty(self.size * tensor.numel())
        dist.all_gather_single(gathered, tensor.contiguous().view(-1))
        return gathered.view(self.size, *tensor.shape)

    def all_gather_v(self, tensor: Tensor, lengths: Sequence[int]) -> Tensor:
        """All processes' rows one after another: [lengths[rank], ...] -> [sum of lengths, ...]."""
        padding = tensor.new_zeros(max(lengths) - tensor.shape[0], *tensor.shape[1:])
        gathered = self.all_gather(torch.cat([tensor, padding]) if len(padding) else tensor)
        return torch.cat([rows[:length] for rows, length in zip(gathered, lengths, strict=True)])

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all processes, which JSON can hold; `torch.distributed` would unpickle them."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self.all_gather(torch.tensor(len(text))).tolist()
        return [
            json.loads(bytes(part.tolist()))
            for part in torch.split(self.all_gather_v(text, lengths), lengths)
        ]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """A context in which layers compute over the whole batch (`current_group`)."""
        token = CURRENT.set(self)
        try:
            yield
        finally:
            CURRENT.reset(token)

    @contextlib.contextmanager
    def first(self, what: str, *, on_machine: bool = False) -> Iterator[None]:
        """A context that process 0 goes through before the others, or `on_machine` the first process of each machine.

        The others wait for as long as it takes: a barrier of PyTorch's would give up, and ignore
        signals. Each name, `what`, is used once.
        """
        goes = (self.local_rank if on_machine else self.rank) == 0
        store = dist.distributed_c10d._get_default_store()
        key = f"{what}/{self.machine if on_machine else ''}"
        while not (goes or store.check([key])):
            time.sleep(0.1)
        yield
        if goes:
            store.set(key, "done")


@contextlib.contextmanager
def explaining_lost_process(size: int) -> Iterator[None]:
    """A context in which an error of PyTorch's collectives becomes a LostProcessError: it says why itself."""
    try:
        yield
    except RuntimeError as e:
        # which has no class of its own
        if not isinstance(e, dist.DistError) and "gloo" not in str(e):
            raise
        why = first_line(e)
        did = f"not answered for {TIMEOUT.seconds // 60} minutes" if "imed out" in why else "ended"
        raise LostProcessError(
            f"another of the {size} processes has {did}: its own output says why; the same command resumes from the "
            f"last checkpoint ({why})"
        ) from None


@contextlib.contextmanager
def process_group() -> Iterator[ProcessGroup | None]:
    """A context in which this process is one of several, of which only process 0 prints; None if it is alone."""
    environment = DistributedEnvironment.read()
    if environment is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(explaining_lost_process(environment.world_size))
        if environment.rank > 0:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        if not dist.is_initialized():  # Ray Train has set it up
            _init_process_group(environment.world_size)
            stack.push(_leave_group)
        # a launcher may show each process its own GPU alone; one for two is found later
        if torch.cuda.is_available():
            torch.cuda.set_device(environment.local_rank % torch.cuda.device_count())
        yield ProcessGroup(
            rank=environment.rank, size=environment.world_size, local_rank=environment.local_rank
        )


def _leave_group(
    _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
) -> None:
    """Leave PyTorch's process group; an error of that does not replace the one that ends the training."""
    with contextlib.suppress(*() if error is None else (RuntimeError,)):
        dist.destroy_process_group()


def _init_process_group(size: int) -> None:
    """Set up PyTorch's process group. Ctrl-C and SIGTERM end this process at once: PyTorch would go on waiting."""
    # what is exchanged of the hosts' tensors takes Gloo; PyTorch's default has only that of an
    # accelerator
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    handled = [
        number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))
    ]
    # an ignored one stays ignored
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in handled}
    try:
        store, rank, _ = next(rendezvous("env://", timeout=TIMEOUT))
        # torchrun keeps one store over its restarts
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt_{attempt}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as e:
        raise ConfigError(
            f"the {size} processes could not meet at {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} "
            f"({first_line(e)}): check that all of them were started and that the address can be reached, or choose "
            "another port with torchrun's --master-port"
        ) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def all_reduce(x: Tensor) -> Tensor:
    """The sum of all processes' tensors, with its gradient; in a process alone `x` itself.

    >>> all_reduce(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if current_group() is None:
        return x
    begun = functional.all_reduce(x, "sum", dist.distributed_c10d._get_default_group())
    return functional.wait_tensor(begun)  # type: ignore[no-any-return, no-untyped-call]


def all_gather_rows(x: Tensor) -> Tensor:
    """The rows of all processes in the order of the batch, with their gradients: [B, ...] -> [A, ...]."""
    first, rows = span_of_rows(len(x))
    return all_reduce(F.pad(x, (0, 0) * (x.dim() - 1) + (first, rows - first - len(x))))


def span_of_rows(rows: int) -> tuple[int, int]:
    """How many rows of a batch come before those of this process, which has `rows`, and how many all processes have."""
    group = current_group()
    if group is None:
        return 0, rows
    lengths = group.all_gather(torch.tensor(rows)).tolist()
    return sum(lengths[: group.rank]), sum(lengths)
