"""Starting the processes of a training on a Ray cluster, by Ray Train.

Ray Train finds the places for all processes at once, numbers them by machine, hands out GPUs and notices lost machines.
Each of its workers runs the ordinary command with `torchrun`'s variables, so that training itself knows nothing of Ray.
"""

import codecs
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fieldwise.distributed.engine import Task, answered
from fieldwise.distributed.launch import LAUNCHED
from fieldwise.distributed.ray_desk import Desk, work_for
from fieldwise.distributed.ray_engine import library
from fieldwise.distributed.watched import LOST, Started, exit_code, passing_signals, tell_failure, watch

__all__ = ["Launch", "start_on_ray"]

GLANCE = 0.1
PATIENCE = 60.0  # seconds to wait for cores before it is said; a cluster that is too small says so at once
ENDING = 20.0  # seconds in which Ray Train notices that all have ended
PASSED = ("FIELDWISE_", "NCCL_", "GLOO_", "TORCH_", "XDG_CACHE_HOME")
QUIET = {"RAY_TRAIN_METRICS_ENABLED": "0"}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started.

    Args:
        command: the command line of a process, after the interpreter.
        size: how many processes.
        cores: of each process.
        gpus: whether each takes a GPU.
        reads: files and folders that all machines must see.
        writes: the folder of the results, likewise.
    """

    command: Sequence[str]
    size: int
    cores: int = 1
    gpus: bool = False
    reads: tuple[Path, ...] = ()
    writes: Path | None = None

    @property
    def resources(self) -> dict[str, int]:
        """What each process takes, in Ray's words."""
        return {"CPU": self.cores} | ({"GPU": 1} if self.gpus else {})

    def missing(self, there: Mapping[str, float]) -> str:
        """What a cluster with these resources lacks for all processes, as words; empty if it has enough."""
        wanted = {kind: count * self.size for kind, count in self.resources.items()}
        if all(there.get(kind, 0) >= count for kind, count in wanted.items()):
            return ""
        needed = " and ".join(f"{count} {kind}s" for kind, count in wanted.items())
        found = " and ".join(f"{there.get(kind, 0):.0f}" for kind in wanted)
        return f"the {self.size} processes need {needed}, and the Ray cluster has {found}"

    def about(self) -> dict[str, Any]:
        """What each worker is told (`work_for`)."""
        folder = Path.cwd()
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED) and name != LAUNCHED}
        return {
            "task": Task(given={}, reads=(folder, *self.reads), writes=self.writes).to_json(),
            "command": list(self.command),
            "folder": str(folder),
            "environment": {**passed, "OMP_NUM_THREADS": str(self.cores)},
            "hidden": not self.gpus,
        }


def start_on_ray(launch: Launch, say: Callable[[str], None]) -> int:
    """Run a command in processes on the Ray cluster that this process is connected to; returns an exit code.

    As `fieldwise.distributed.launch.start`: process 0 writes to this process's streams, of the others only an error is
    shown, signals are passed on, and the first failure ends all.

    Args:
        launch: what is started.
        say: told when the cluster has no room yet.

    Errors:
        ConfigError: a machine has another version of fieldwise or does not see the files.
    """
    group = _Group(size=launch.size)
    with passing_signals(group.started) as received, tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=group.fit, args=(_trainer(launch, group.desk, folder),), daemon=True)
        thread.start()
        try:
            group.gather(received, _Room(launch=launch, say=say))
            failed = None if received and not group.begun else watch(group.started, received)
        finally:
            group.leave()
            thread.join(ENDING if len(group.ready) == launch.size else GLANCE)
    if failed is not None:
        tell_failure(failed, launch.size)
    if received:
        if thread.is_alive():  # Ray ends a process with exit code 1 if it closes the connection while a thread asks it
            signal.signal(received[0], signal.SIG_DFL)
        os.kill(os.getpid(), received[0])
    return exit_code(failed)


def _trainer(launch: Launch, desk: Any, folder: str) -> Any:
    os.environ.update(QUIET)
    train = library("ray.train")
    return library("ray.train.v2.api.data_parallel_trainer").DataParallelTrainer(
        partial(work_for, desk, launch.about()),
        scaling_config=train.ScalingConfig(
            num_workers=launch.size,
            use_gpu=launch.gpus,
            resources_per_worker=launch.resources,
            placement_strategy="PACK",
        ),
        run_config=train.RunConfig(name="fieldwise", storage_path=folder),
    )


@dataclass(kw_only=True, eq=False)
class _Room:
    """Says once that the cluster has no room for all processes: at once if it is too small, else after a while."""

    launch: Launch
    say: Callable[[str], None]
    at: float = field(default_factory=time.monotonic)

    def wait(self) -> None:
        """Called while processes are missing."""
        ray = library("ray")
        small = self.launch.missing(ray.cluster_resources())
        if time.monotonic() < self.at + (0 if small else PATIENCE):
            return
        self.say(f"waiting for the Ray cluster: {small or 'other work takes its cores'}")
        self.at = float("inf")


@dataclass(kw_only=True, eq=False)
class _Far:
    """A process on another machine, as its worker tells of it."""

    group: "_Group"
    rank: int
    returncode: int | None = None
    said: bytearray = field(default_factory=bytearray)

    def poll(self) -> int | None:
        self.group.look()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sent with the next look: a handler may not call Ray."""
        self.group.orders.append((self.rank, {"signal": int(number)}))

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        self.send_signal(9)

    def errors(self) -> str:
        return self.said.decode(errors="replace")


class _Group:
    """The processes of one training, and the desk between them and this process."""

    def __init__(self, size: int) -> None:
        self._ray = ray = library("ray")
        strategies = library("ray.util.scheduling_strategies")
        here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.desk = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()
        self.far = [_Far(group=self, rank=rank) for rank in range(size)]
        self.started = [Started(rank=one.rank, process=one, errors=one.errors) for one in self.far]
        self.orders: list[tuple[int, dict[str, Any]]] = []
        self.ready: dict[int, dict[str, Any]] = {}
        self.begun = False
        self._looked = 0.0
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._fitted = False
        self._failures: dict[int, str] = {}

    def fit(self, trainer: Any) -> None:
        """Let Ray Train start the workers, and wait for their ends; called in a thread."""
        try:
            trainer.fit()
        except Exception as e:  # of any kind, on any machine
            each = getattr(e, "worker_failures", None) or {0: getattr(e, "controller_failure", e)}
            self._failures = {rank: _reason(why) for rank, why in each.items()}
        self._fitted = True

    def gather(self, received: Sequence[int], room: _Room) -> None:
        """Wait until all workers are there and see what they need; then all processes begin."""
        while len(self.ready) < len(self.far):
            self.look()
            if received or all(one.returncode is not None for one in self.far):
                return
            room.wait()
            time.sleep(GLANCE)
        for rank in range(len(self.far)):
            answered(self.ready[rank]["seen"])
        go = {"go": (self.ready[0]["address"], self.ready[0]["port"])}
        self.orders[:0] = [(one.rank, go) for one in self.far]
        self.begun = True

    def look(self) -> None:
        """Exchange with the desk, and show what process 0 has written."""
        if time.monotonic() < self._looked + GLANCE:
            return
        ended = self._fitted  # before the look: what was told by then is found by it
        orders, self.orders = self.orders, []
        for rank, what in self._ray.get(self.desk.look.remote(orders)):
            self._heard(self.far[rank], what)
        self._looked = time.monotonic()
        if ended:
            for one in (one for one in self.far if one.returncode is None):
                one.returncode = 1 if one.rank in self._failures else LOST
                one.said += self._failures.get(one.rank, "").encode()

    def _heard(self, one: _Far, what: Mapping[str, Any]) -> None:
        if "ready" in what:
            self.ready[one.rank] = what["ready"]
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            text = what.get(name, b"")
            if one.rank == 0 and text:
                with contextlib.suppress(OSError):  # the terminal is gone: what trains is saved all the same
                    stream.write(self._decoders[name].decode(text))
                    stream.flush()
            elif name == "stderr":
                one.said += text
        one.returncode = what.get("code", one.returncode)

    def leave(self) -> None:
        """Tell workers that wait to go, and processes that run to end."""
        orders = [(one.rank, order) for one in self.far for order in ({"leave": True}, {"signal": 15})]
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self.desk.look.remote(orders))


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (
        f"fieldwise: its Ray worker is lost ({type(error).__name__}: {lines[0] if lines else ''}): see `ray status` "
        "and the machine's memory; the same command resumes from the last checkpoint, if there is one"
    )
