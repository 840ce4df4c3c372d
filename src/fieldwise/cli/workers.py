"""Several server processes on one port: started, watched, started again, and stopped together.

The first process holds the listening socket and starts the workers: on Linux it forks them, so that they share the
memory of its modules. Each of them accepts from that socket, and has two pipes: it tells through one that it is ready,
and learns from the other's end that the first process is gone.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fieldwise.cli.forked import Forked, forked
from fieldwise.storage.folders import scratch_folder

__all__ = ["Supervisor", "Worker"]

WORKER = "FIELDWISE_WORKER"  # what a worker is told, as JSON
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
METRICS_FOLDER, SHARED = "metrics", "shared"
PACE = 0.1  # seconds between two checks of the workers
SHORT = 5.0  # seconds: a worker that ends sooner is started again after a pause
MOST_PAUSE = 30.0


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What a worker process has from the first one.

    Args:
        number: 1, 2, ...
        of: how many workers there are.
        listening: descriptor of the listening socket.
        ready: descriptor to write to when requests can be answered.
        alive: descriptor that ends when the first process does.
        folder: for memory and metrics that workers share.
    """

    number: int
    of: int
    listening: int
    ready: int
    alive: int
    folder: str

    @classmethod
    def current(cls) -> "Worker | None":
        """This process's part; None if it is not a worker."""
        told = os.environ.get(WORKER)
        return None if told is None else cls(**json.loads(told))

    @property
    def shared(self) -> Path:
        """The folder of shared memory."""
        return Path(self.folder) / SHARED

    @property
    def counts(self) -> Path:
        """The file of all workers' numbers of connections."""
        return Path(self.folder) / "connections"

    def socket(self) -> socket.socket:
        """The listening socket."""
        return socket.socket(fileno=self.listening)

    def begin(self) -> None:
        """Tell that requests are answered, and stop this process gracefully once the first one is gone.

        The first one was then killed: its folder, whose files stay mapped, is removed here.
        """
        with contextlib.suppress(BrokenPipeError):  # only the first worker is waited for
            os.write(self.ready, b"1")
        os.close(self.ready)

        def wait() -> None:
            with contextlib.suppress(OSError):
                os.read(self.alive, 1)
            shutil.rmtree(self.folder, ignore_errors=True)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="fieldwise-alive", daemon=True).start()


@dataclass
class _Process:
    """A worker as the first process sees it."""

    number: int
    process: "subprocess.Popen[bytes] | Forked | None" = None
    began: float = 0.0
    pause: float = 0.0  # seconds before the next start
    due: float = 0.0

    def wait(self, now: float, *, early: bool) -> None:
        """Set when it is started next: at once, or, after it ended early, after a pause that grows."""
        self.pause = min(MOST_PAUSE, max(1.0, 2 * self.pause)) if early else 0.0
        self.due = now + self.pause


@dataclass(kw_only=True)
class Supervisor:
    """Starts workers and keeps them running until it is told to stop.

    Args:
        command: a worker's command line.
        work: what a worker does where it is forked from this process, instead of the command; its result is the exit
            status.
        load: called before the first worker is forked: loads the modules whose memory they share.
        prepare: makes what forked workers share, before the first of them is started; its result is the exit status. It
            runs in a process of its own, whose memory ends with it.
        count: number of workers.
        listening: the socket that all of them accept from.
        grace: seconds that workers have to finish their requests when they are stopped.
        say: told what people should know.
        ready: called once, when the first worker answers requests.
    """

    command: Sequence[str]
    count: int
    listening: socket.socket
    grace: float
    say: Callable[[str], None]
    ready: Callable[[], None] = lambda: None
    work: Callable[[Worker], int] | None = None
    prepare: Callable[[Worker], int] | None = None
    load: Callable[[], None] = lambda: None
    _held: int = -1
    _stopped: bool = False

    def run(self) -> int:
        """Run until SIGTERM, SIGINT or SIGHUP; returns the exit status: the first worker's if it cannot start."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as with nohup
                signal.signal(number, self._stop_soon)
        alive, self._held = os.pipe()
        workers = [_Process(number=k + 1) for k in range(self.count)]
        with scratch_folder() as place:
            folder = str(place)
            for name in (METRICS_FOLDER, SHARED):
                (place / name).mkdir()
            os.environ[METRICS] = str(place / METRICS_FOLDER)
            self.load()
            try:
                # The others follow once the first is ready: an error is said once, and what is shared is there.
                status = self._prepared(folder, alive)
                if status is None:
                    status = 0 if self._stopped else self._first(workers[0], folder, alive)
                if status is not None:
                    return status
                self.ready()
                while not self._stopped:
                    time.sleep(PACE)
                    for worker in workers:
                        if not self._stopped:
                            self._keep(worker, folder, alive)
            finally:
                with contextlib.suppress(OSError):  # else connections that no worker accepts any more wait, and break
                    self.listening.shutdown(socket.SHUT_RDWR)
                self._stop(workers)
                os.close(self._held)
                os.close(alive)
        return 0

    def _stop_soon(self, *_: object) -> None:
        self._stopped = True

    def _prepared(self, folder: str, alive: int) -> int | None:
        """Wait until what workers share is made; the status if that fails."""
        if self.prepare is None:
            return None
        preparing = _Process(number=0)
        told = self._start(preparing, folder, alive, self.prepare)
        os.close(told)
        process = preparing.process
        assert process is not None, "just started"
        try:
            while (status := process.poll()) is None and not self._stopped:
                time.sleep(PACE)
        finally:
            self._stop([preparing])
        return self._told("the process that makes what workers share", status) if status else None

    def _first(self, worker: _Process, folder: str, alive: int) -> int | None:
        """Wait for the first worker; its status if it ends before it is ready."""
        told = self._start(worker, folder, alive)
        assert worker.process is not None, "just started"
        os.set_blocking(told, False)
        try:
            while not self._stopped:
                with contextlib.suppress(BlockingIOError):
                    if os.read(told, 1):
                        return None
                status = worker.process.poll()
                if status is not None:
                    return self._told("the first worker", status)
                time.sleep(PACE)
        finally:
            os.close(told)
        return 0

    def _told(self, who: str, status: int) -> int:
        """The exit status for one that ended before the server was ready. An error it has said itself, a signal not."""
        if status < 0 and not self._stopped:
            reason = "; memory may have run out" if -status == signal.SIGKILL else ""
            self.say(f"{who} ended with signal {-status} before the server was ready{reason}")
        return _exit_status(status)

    def _keep(self, worker: _Process, folder: str, alive: int) -> None:
        """Start a worker that is not running, after a pause if it ended early."""
        now = time.monotonic()
        if worker.process is None:
            if now >= worker.due:
                self._start_again(worker, folder, alive)
            return
        status = worker.process.poll()
        if status is None:
            return
        _forget_metrics(Path(folder), worker.process.pid)
        worker.process = None
        worker.wait(now, early=now - worker.began < SHORT)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        again = f"in {worker.pause:g} s" if worker.pause else "now"
        self.say(f"worker {worker.number} ended with {how}: it is started again {again}")

    def _start_again(self, worker: _Process, folder: str, alive: int) -> None:
        """Start a worker; if the system has no process, memory or file for it now, after a pause."""
        try:
            os.close(self._start(worker, folder, alive))
        except OSError as e:
            worker.wait(time.monotonic(), early=True)
            self.say(f"worker {worker.number} cannot be started ({e}): the next attempt is in {worker.pause:g} s")

    def _start(self, worker: _Process, folder: str, alive: int, work: Callable[[Worker], int] | None = None) -> int:
        """Start a worker, or other work; returns the end of the pipe that tells when it is ready."""
        work = work or self.work
        told, ready = os.pipe()
        part = Worker(
            number=worker.number, of=self.count, listening=self.listening.fileno(), ready=ready, alive=alive,
            folder=folder,
        )  # fmt: skip
        more = {WORKER: json.dumps(vars(part))}
        try:
            if work is None:
                worker.process = subprocess.Popen(
                    self.command, env={**os.environ, **more}, pass_fds=(part.listening, ready, alive)
                )
            else:
                worker.process = forked(partial(_work, work, part, more), closed=(told, self._held))
        except OSError:
            os.close(told)
            raise
        finally:
            os.close(ready)
        worker.began = time.monotonic()
        return told

    def _stop(self, workers: Sequence[_Process]) -> None:
        """Stop all workers, which finish their requests; those that do not in time are killed."""
        running = [one.process for one in workers if one.process is not None]
        for process in running:
            process.terminate()
        end = time.monotonic() + self.grace + SHORT
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _work(work: Callable[[Worker], int], part: Worker, more: Mapping[str, str]) -> int:
    os.environ.update(more)
    return work(part)


def _exit_status(status: int) -> int:
    """The status that a shell would show: 128 + N after signal N."""
    return status if status >= 0 else 128 - status


def _forget_metrics(folder: Path, process: int) -> None:
    """Remove a process's gauges of the present, as prometheus_client's `mark_process_dead` does; counters stay."""
    for path in (folder / METRICS_FOLDER).glob(f"gauge_live*_{process}.db"):
        path.unlink(missing_ok=True)
