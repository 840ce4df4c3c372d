"""What the processes of a training on a Ray cluster and the command that started them tell each other."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from fieldwise.distributed.engine import done_here
from fieldwise.distributed.launch import process_environment, shared_store
from fieldwise.distributed.ray_engine import library

__all__ = ["Desk", "work_for"]

GLANCE = 0.2  # seconds between two looks at the desk
NOT_PASSED = "POLARS_MAX_THREADS"  # is for tasks of one core each
STREAMS = ("stdout", "stderr")


class Desk:
    """Where processes on other machines leave what they have to tell, and find what they are to do.

    It is an actor of Ray on the command's machine; all values are plain. A process tells a mapping with some of:
    `ready` (its machine), `stdout` and `stderr` (bytes), `code` (it has ended). It is told the same way: `go` (the
    shared store's address and port), `signal` (a number), `leave` (there is nothing to do).

    >>> desk = Desk()
    >>> desk.tell(1, {"code": 0})
    []
    >>> desk.look([(0, {"signal": 15})])
    [(1, {'code': 0})]
    >>> desk.tell(0, {})
    [{'signal': 15}]
    """

    def __init__(self) -> None:
        self._told: list[tuple[int, dict[str, Any]]] = []
        self._orders: dict[int, list[dict[str, Any]]] = {}

    def tell(self, rank: int, what: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Called by a process: what it has to tell, against what it is to do."""
        if what:
            self._told.append((rank, dict(what)))
        return self._orders.pop(rank, [])

    def look(self, orders: Sequence[tuple[int, Mapping[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
        """Called by the command: what processes are to do, against what they have told since the last look."""
        for rank, order in orders:
            self._orders.setdefault(rank, []).append(dict(order))
        told, self._told = self._told, []
        return told


def work_for(desk: Any, about: Mapping[str, Any]) -> None:
    """Run one process of a training; called in each worker of Ray Train.

    Args:
        desk: the actor of `Desk`.
        about: `task` (what the machine must see, as `Task.to_json` writes it), `command` (after the interpreter),
            `folder` (to run in), `environment` (to add), `hidden` (whether GPUs are out of its sight).
    """
    ray = library("ray")
    context, address = library("ray.train").get_context(), ray.util.get_node_ip_address()
    rank, size = context.get_world_rank(), context.get_world_size()

    def tell(what: Mapping[str, Any]) -> list[dict[str, Any]]:
        orders: list[dict[str, Any]] = ray.get(desk.tell.remote(rank, what))
        return orders

    seen = done_here(_nothing, about["task"])
    store = shared_store(address) if rank == 0 else None
    ready = {"machine": socket.gethostname(), "seen": seen, "address": address, "port": store and store.port}
    orders = tell({"ready": ready})
    while not orders:
        time.sleep(GLANCE)
        orders = tell({})
    if "go" not in orders[0]:
        return
    place = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "GROUP_RANK": context.get_node_rank(),
    }
    environment = {**os.environ, **about["environment"], **process_environment(place, *orders[0]["go"])}
    environment.pop(NOT_PASSED, None)
    if about["hidden"]:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if name := _interface(address):
        environment.setdefault("GLOO_SOCKET_IFNAME", name)
    process = _popened([sys.executable, *about["command"]], about["folder"], environment)
    try:
        _attend(process, tell, orders[1:])
    finally:
        process.stdin.close()  # type: ignore[union-attr]  # if the command is gone, the process ends by it


def _attend(
    process: "subprocess.Popen[bytes]", tell: Callable[[Mapping[str, Any]], list[Any]], orders: list[Any]
) -> None:
    """Stay with a process until it ends, and pass on what it says and what it is told."""
    spoken = _Spoken.of(process)
    while (code := process.poll()) is None:
        for number in (order["signal"] for order in orders if "signal" in order):
            process.send_signal(number)
        orders = tell(spoken.taken())
        time.sleep(GLANCE)
    tell({**spoken.last(), "code": code})


def _nothing(_: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _popened(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A process that heeds SIGINT, which Ray's own processes block; its standard input ends with this process."""
    with _unblocked():
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )


@contextlib.contextmanager
def _unblocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(kw_only=True, eq=False)
class _Spoken:
    """What a process has written and nobody has taken yet."""

    threads: list[threading.Thread] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: dict[str, bytearray] = field(default_factory=lambda: {name: bytearray() for name in STREAMS})

    @classmethod
    def of(cls, process: "subprocess.Popen[bytes]") -> "_Spoken":
        spoken = cls()
        for name in STREAMS:
            stream = getattr(process, name)
            spoken.threads.append(threading.Thread(target=spoken._listen, args=(name, stream), daemon=True))
            spoken.threads[-1].start()
        return spoken

    def _listen(self, name: str, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 65_536):
            with self.lock:
                self.waiting[name] += piece

    def taken(self) -> dict[str, bytes]:
        """What was written since the last call, by stream."""
        with self.lock:
            found = {name: bytes(text) for name, text in self.waiting.items() if text}
            for text in self.waiting.values():
                text.clear()
        return found

    def last(self) -> dict[str, bytes]:
        """As `taken`, when the process has ended."""
        for thread in self.threads:
            thread.join(GLANCE * 10)  # a process of its own may hold the stream open
        return self.taken()


def _interface(address: str) -> str | None:
    """The network interface with an address, for Gloo, which else asks the host's name; None where none is found."""
    if not sys.platform.startswith("linux") or ":" in address:
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                found = fcntl.ioctl(asked.fileno(), 0x8915, name.encode()[:15].ljust(40, b"\0"))  # SIOCGIFADDR
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None
