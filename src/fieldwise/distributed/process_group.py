"""The processes of one training: how they meet, and what they exchange, by `torch.distributed`.

Only tensors and JSON go from process to process. `torchrun`, `fieldwise train --processes` and Ray Train set the
environment. Gloo serves tensors on CPUs, NCCL those on GPUs.
"""

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from fieldwise.distributed.environment import BatchShard, DistributedEnvironment
from fieldwise.errors import ConfigError, FieldwiseError, LostProcessError

__all__ = ["TIMEOUT_MINUTES", "ProcessGroup", "current_group", "differences", "process_group"]

TIMEOUT_MINUTES = 10.0
POLL_INTERVAL = timedelta(seconds=2)
FAILURE = "fieldwise/failure"
MAX_SHOWN_LETTERS = 40
CURRENT: ContextVar["ProcessGroup | None"] = ContextVar("process_group", default=None)


def current_group() -> "ProcessGroup | None":
    """The processes that compute the present batch together; None if it is one alone."""
    return CURRENT.get()


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessGroup:
    """The processes of one training, seen from one of them.

    All of them call the same methods in the same order; each call waits for the others.

    Args:
        rank: the number of this process, from 0; process 0 alone writes files.
        size: how many there are.
        local_rank: its number on its machine.
        store: what they share besides the group: small values by name.
        machine: the name of its machine.
        pending_signals: that this process has received and the others do not know of.

    Errors:
        LostProcessError: another process has failed, ended or does not answer.
    """

    rank: int
    size: int
    local_rank: int
    store: Store
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
        with self._explaining_loss():
            dist.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """All processes' tensors, which have one shape: [...] -> [size, ...]."""
        flat = tensor.contiguous().view(-1)
        found = flat.new_empty(self.size * flat.numel())
        with self._explaining_loss():
            dist.all_gather_single(found, flat)
        return found.view(self.size, *tensor.shape)

    def all_gather_lengths(self, length: int) -> list[int]:
        """How many rows each process has."""
        found: list[int] = self.all_gather(torch.tensor([length])).flatten().tolist()
        return found

    def all_gather_v(self, tensor: Tensor, lengths: Sequence[int]) -> Tensor:
        """All processes' rows one after another; `lengths` says how many each has.

        Shape:
            tensor: [lengths[rank], ...]; returns [sum of lengths, ...].
        """
        most = max(lengths)
        if tensor.shape[0] < most:
            tensor = torch.cat([tensor, tensor.new_zeros(most - tensor.shape[0], *tensor.shape[1:])])
        found = self.all_gather(tensor)
        if min(lengths) == most:
            return found.view(-1, *tensor.shape[1:])
        return torch.cat([rows[:length] for rows, length in zip(found, lengths, strict=True)])

    def gather_v(self, tensor: Tensor, lengths: Sequence[int]) -> Tensor | None:
        """As `all_gather_v`, for process 0 alone; None in the others."""
        padded = tensor.new_zeros(max(lengths), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        every = [torch.empty_like(padded) for _ in lengths] if self.is_main_process else None
        with self._explaining_loss():
            dist.gather(padded, every)
        if every is None:
            return None
        return torch.cat([rows[:length] for rows, length in zip(every, lengths, strict=True)])

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Process 0's tensor of any type, in place."""
        if tensor.numel():
            flat = tensor.contiguous()
            with self._explaining_loss():
                dist.broadcast(flat.view(-1).view(torch.uint8), 0)
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat)
        return tensor

    def broadcast_object(self, value: Any) -> Any:
        """Process 0's value, which JSON can hold."""
        text = _to_bytes(value if self.is_main_process else None)
        length = int(self.broadcast(torch.tensor([len(text)])))
        return _from_bytes(self.broadcast(text if self.is_main_process else text.new_empty(length)))

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all processes, which JSON can hold."""
        text = _to_bytes(value)
        lengths = self.all_gather_lengths(len(text))
        return [_from_bytes(part) for part in torch.split(self.all_gather_v(text, lengths), lengths)]

    def check_same_on_all_ranks(self, facts: Mapping[str, Any]) -> None:
        """Check that all processes have the facts of process 0.

        Args:
            facts: nested plain values: settings, digests of rows, versions.

        Errors:
            ConfigError: in all processes; it names the first that differs, and what does.
        """
        every = self.all_gather_object(facts)
        for rank, own in enumerate(every):
            if found := differences(every[0], own):
                name, first, other = found[0]
                more = f", and {len(found) - 1} more differ" if len(found) > 1 else ""
                raise ConfigError(
                    f"all {self.size} processes must train with the same settings, rows and versions, but process "
                    f"{rank} has {name} {other} where process 0 has {first}{more}: start all of them with the same "
                    "recipe, files and version"
                )

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """A context in which layers compute over the whole batch (`current_group`)."""
        token = CURRENT.set(self)
        try:
            yield
        finally:
            CURRENT.reset(token)

    @contextlib.contextmanager
    def local_main_first(self, what: str) -> Iterator[None]:
        """A context that one process of each machine goes through before the others there.

        Args:
            what: a name for it, each used once.
        """
        what = f"{what}/{self.machine}"
        if self.local_rank > 0:
            self._wait(what)
        yield
        if self.local_rank == 0:
            self._arrive(what)

    def wait_for_main_process(self) -> None:
        """Wait until process 0 has come here too, for as long as it takes; it does not wait."""
        if self.is_main_process:
            self._arrive("end")
        else:
            self._wait("end")

    def _arrive(self, what: str) -> None:
        with self._explaining_loss():
            self.store.set(f"fieldwise/{what}", "done")

    def _wait(self, what: str) -> None:
        """Wait for a process to arrive; a barrier of PyTorch's would give up after its timeout."""
        with self._explaining_loss():
            while True:
                with contextlib.suppress(dist.DistStoreError):  # it takes its time
                    self.store.wait([f"fieldwise/{what}"], POLL_INTERVAL)
                    return
                if self.store.check([FAILURE]):
                    raise self._lost()

    @contextlib.contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """A context whose error the other processes are told."""
        try:
            yield
        except LostProcessError:
            raise
        except BaseException as e:
            said = str(e) if isinstance(e, FieldwiseError) else f"{type(e).__name__}: {e}"
            with contextlib.suppress(RuntimeError):
                self.store.set(FAILURE, json.dumps({"rank": self.rank, "said": said}))
            raise

    @contextlib.contextmanager
    def _explaining_loss(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as e:
            raise self._lost(e) from None

    def _lost(self, error: RuntimeError | None = None) -> LostProcessError:
        """What happened to the others, as far as they could say."""
        with contextlib.suppress(RuntimeError, ValueError, LookupError):
            if self.store.check([FAILURE]):
                failure = json.loads(self.store.get(FAILURE))
                return LostProcessError(f"process {failure['rank']} of {self.size} failed: {failure['said']}")
        why = (str(error).splitlines() or [""])[0]
        if "imed out" in why:
            return LostProcessError(
                f"another of the {self.size} processes has not answered for {TIMEOUT_MINUTES:.0f} minutes: see what it "
                "does; the same command resumes from the last checkpoint"
            )
        return LostProcessError(
            f"another of the {self.size} processes has ended: its own output says why; the same command resumes from "
            f"the last checkpoint ({why})"
        )


@contextlib.contextmanager
def process_group(environment: DistributedEnvironment | None) -> Iterator[ProcessGroup | None]:
    """A context in which a process is one of several; with None it is alone.

    Errors:
        ConfigError: they cannot meet.
    """
    if environment is None:
        yield None
        return
    if "FIELDWISE_SHARED_MEMORY" in os.environ:
        raise ConfigError(
            "FIELDWISE_SHARED_MEMORY was removed: processes exchange by Gloo on CPUs and by NCCL on GPUs; unset it"
        )
    owned = not dist.is_initialized()  # Ray Train has set it up
    store = _rendezvous(environment) if owned else dist.distributed_c10d._get_default_store()
    if torch.cuda.is_available():  # a launcher may show each process its own GPU alone; `check_own_gpu` comes later
        torch.cuda.set_device(environment.local_rank % torch.cuda.device_count())
    group = ProcessGroup(
        rank=environment.rank, size=environment.world_size, local_rank=environment.local_rank, store=store
    )
    try:
        with group.reporting_failure():
            yield group
    finally:
        if owned:
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


def _rendezvous(environment: DistributedEnvironment) -> Store:
    """Set up PyTorch's process group; returns its store."""
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    wait, world_size = timedelta(minutes=TIMEOUT_MINUTES), environment.world_size
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        with _default_signals():
            store, rank, size = next(rendezvous("env://", environment.rank, world_size, timeout=wait))
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = PrefixStore(f"attempt_{attempt}", store)  # torchrun keeps one store over its restarts
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as e:
        why = (str(e).splitlines() or [type(e).__name__])[0]
        if "in use" in why:
            raise ConfigError(
                f"the processes need a port of their own to meet, but {where} is in use: choose another one with "
                "torchrun's --master-port"
            ) from None
        raise ConfigError(
            f"the {world_size} processes could not meet at {where} ({why}): check that all of them were started and "
            "that the address can be reached"
        ) from None
    met: Store = store
    return met


@contextlib.contextmanager
def _default_signals() -> Iterator[None]:
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


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Where nested plain values differ: the path, and both values as words.

    >>> differences({"training": {"epochs": 3}}, {"training": {"epochs": 4}, "seed": 1})
    [('training.epochs', '3', '4'), ('seed', 'not set', '1')]
    """
    old, new = dict(_leaves(before)), dict(_leaves(now))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [(name, _word(old, name), _word(new, name)) for name in names]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested plain values by path; lists are leaves."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def _word(values: Mapping[str, Any], name: str) -> str:
    text = str(values[name]) if name in values else "not set"
    return text if len(text) <= MAX_SHOWN_LETTERS else f"{text[: MAX_SHOWN_LETTERS - 3]}..."


def _to_bytes(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(text: Tensor) -> Any:
    return json.loads(bytes(text.tolist()))
