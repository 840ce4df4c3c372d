"""The processes of one training: what each is told by the environment, and what they tell each other.

Only numbers and JSON go from process to process. `torchrun` and `fieldwise train --processes` set the environment.
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from fieldwise.distributed.part import Part
from fieldwise.errors import FieldwiseError, LostProcessError

__all__ = ["ANSWER_MINUTES", "World", "current", "machine_name"]

ANSWER_MINUTES = 10.0
WAIT = timedelta(seconds=2)
FAILURE = "fieldwise/failure"
CURRENT: ContextVar["World | None"] = ContextVar("world", default=None)


def current() -> "World | None":
    """The processes that compute the present batch together; None if it is one alone."""
    return CURRENT.get()


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """The processes of one training, seen from one of them.

    All of them call the same methods in the same order; each call waits for the others.

    Args:
        rank: the number of this process, from 0; process 0 alone writes files.
        size: how many there are.
        local_rank: its number on its machine.
        store: what they share besides the group: small values by name.
        machine: the name of its machine.
        noted: signals that this process has received and the others have not been told of.

    Errors:
        LostProcessError: another process has failed, ended or does not answer.
    """

    rank: int
    size: int
    local_rank: int
    store: Store
    machine: str = field(default_factory=lambda: machine_name())
    noted: list[int] = field(default_factory=list)

    @property
    def first(self) -> bool:
        """Whether this is process 0."""
        return self.rank == 0

    @property
    def part(self) -> Part:
        """The rows of every batch that this process takes."""
        return Part(rank=self.rank, size=self.size)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum of all processes' tensors, in place; equal to the bit in all of them."""
        with self._loss_told():
            dist.all_reduce(tensor)
        return tensor

    def stacked(self, tensor: Tensor) -> Tensor:
        """All processes' tensors, which have one shape: [...] -> [size, ...]."""
        with self._loss_told():
            flat = tensor.contiguous().view(-1)
            found = flat.new_empty(self.size * flat.numel())
            dist.all_gather_single(found, flat)
        return found.view(self.size, *tensor.shape)

    def joined(self, tensor: Tensor, lengths: Sequence[int]) -> Tensor:
        """All processes' rows one after another; `lengths` says how many each has.

        Shape:
            tensor: [lengths[rank], ...]; returns [sum of lengths, ...].
        """
        most = max(lengths)
        if tensor.shape[0] < most:
            tensor = torch.cat([tensor, tensor.new_zeros(most - tensor.shape[0], *tensor.shape[1:])])
        found = self.stacked(tensor)
        if min(lengths) == most:
            return found.view(-1, *tensor.shape[1:])
        return torch.cat([rows[:length] for rows, length in zip(found, lengths, strict=True)])

    def collected(self, tensor: Tensor, lengths: Sequence[int]) -> Tensor | None:
        """As `joined`, for process 0 alone; None in the others."""
        padded = tensor.new_zeros(max(lengths), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        every = [torch.empty_like(padded) for _ in lengths] if self.first else None
        with self._loss_told():
            dist.gather(padded, every)
        if every is None:
            return None
        return torch.cat([rows[:length] for rows, length in zip(every, lengths, strict=True)])

    def lengths(self, length: int) -> list[int]:
        """How many rows each process has."""
        found: list[int] = self.stacked(torch.tensor([length])).flatten().tolist()
        return found

    def send_(self, tensor: Tensor) -> Tensor:
        """Process 0's tensor, in place."""
        with self._loss_told():
            dist.broadcast(tensor, 0)
        return tensor

    def sent(self, value: Any) -> Any:
        """Process 0's value, which JSON can hold."""
        text = torch.frombuffer(bytearray(_bytes(value if self.first else None)), dtype=torch.uint8)
        length = int(self.send_(torch.tensor([len(text)])))
        return _value(self.send_(text if self.first else text.new_empty(length)))

    def every(self, value: Any) -> list[Any]:
        """The values of all processes, which JSON can hold."""
        text = torch.frombuffer(bytearray(_bytes(value)), dtype=torch.uint8)
        lengths = self.lengths(len(text))
        return [_value(part) for part in torch.split(self.joined(text, lengths), lengths)]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """A context in which layers compute over the whole batch (`current`)."""
        token = CURRENT.set(self)
        try:
            yield
        finally:
            CURRENT.reset(token)

    @contextlib.contextmanager
    def first_here(self, what: str) -> Iterator[None]:
        """A context that one process of each machine goes through before the others there.

        Args:
            what: a name for it, each used once.
        """
        what = f"{what}/{self.machine}"
        if self.local_rank > 0:
            self._wait(what, here=False)
        yield
        if self.local_rank == 0:
            self._wait(what, here=True)

    def wait_for_first(self) -> None:
        """Wait until process 0 has come here too, for as long as it takes; it does not wait."""
        self._wait("end", here=self.first)

    def _wait(self, what: str, *, here: bool) -> None:
        """Wait until a process that is `here` has come."""
        name = f"fieldwise/{what}"
        with self._loss_told():
            if here:
                self.store.set(name, "done")
            while not here:
                with contextlib.suppress(dist.DistStoreError):  # it takes its time
                    self.store.wait([name], WAIT)
                    return
                if self.store.check([FAILURE]):
                    raise self._lost()

    @contextlib.contextmanager
    def failures_told(self) -> Iterator[None]:
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
    def _loss_told(self) -> Iterator[None]:
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
                f"another of the {self.size} processes has not answered for {ANSWER_MINUTES:.0f} minutes: see what it "
                "does; the same command resumes from the last checkpoint"
            )
        return LostProcessError(
            f"another of the {self.size} processes has ended: its own output says why; the same command resumes from "
            f"the last checkpoint ({why})"
        )


def machine_name() -> str:
    """This machine's name; those of one machine that `torchrun` was started on twice differ."""
    return f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '')}"


def _bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def _value(text: Tensor) -> Any:
    return json.loads(bytes(text.tolist()))
