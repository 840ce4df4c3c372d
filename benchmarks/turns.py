"""Runs a case: one process per contender, which take turns.

While one process works, the others are blocked in a read. Idle threads wait as each library does by default: OpenMP's
spin for about a millisecond and then sleep, so they do not disturb the next turn.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.case import Contender

__all__ = ["Outcome", "peers_python", "take_turns"]

ROOT = Path(__file__).parents[1]
PEERS = "FIELDWISE_PEERS"
WAITS = (
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
)  # removed, so that each library waits as it does by default
NO_PEERS = f"no environment of peers: run `sh benchmarks/peers/setup` (or name its folder in {PEERS})"


@dataclass
class Outcome:
    """The result of one contender: samples by measure, one per round, or the reason for having none."""

    contender: Contender
    facts: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    absent: str | None = None
    error: str | None = None


class WorkerError(Exception):
    """A worker failed; the message says how."""


class Worker:
    """A process that answers requests; see `benchmarks.worker`."""

    def __init__(self, python: Path, threads: int) -> None:
        count = str(threads)
        names = (
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "RAYON_NUM_THREADS",
            "POLARS_MAX_THREADS",
        )
        own = {**dict.fromkeys(names, count), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        others = {name: value for name, value in os.environ.items() if name not in WAITS}
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed in close)
        self.process = subprocess.Popen(
            [str(python), "-m", "benchmarks.worker"],
            cwd=ROOT,
            env={**others, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            encoding="utf-8",
        )

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.process.wait()
            self.log.seek(0)
            said = self.log.read().strip().splitlines()[-5:]
            raise WorkerError(f"its process ended with code {self.process.returncode}: {' / '.join(said)}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()


def peers_python() -> Path | None:
    """The Python of the other libraries' environment; None if the environment does not exist."""
    folder = Path(os.environ.get(PEERS) or ROOT / "build" / "peers")
    python = folder / "bin" / "python"
    return python.absolute() if python.exists() else None


def take_turns(
    contenders: Sequence[Contender],
    *,
    threads: int,
    repeats: int,
    say: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Start every contender, let each warm up with one turn, then measure `repeats` rounds of one turn each.

    Each round begins with a different contender, so that none always runs after the same one.
    """
    outcomes = [Outcome(contender) for contender in contenders]
    workers: dict[int, Worker] = {}
    try:
        for k, outcome in enumerate(outcomes):
            worker = _started(outcome, threads)
            if worker is None:
                continue
            workers[k] = worker
            say(f"  {outcome.contender.name}: loading and warming up")
            if not (_make(worker, outcome, threads) and _turn(worker, outcome, keep=False)):
                workers.pop(k).close()
        for repeat in range(repeats):
            say(f"  round {repeat + 1} of {repeats}")
            order = sorted(workers)
            first = repeat % max(1, len(order))
            for k in order[first:] + order[:first]:
                if not _turn(workers[k], outcomes[k], keep=True):
                    workers.pop(k).close()
    finally:
        for worker in workers.values():
            worker.close()
    for outcome in outcomes:
        if outcome.error or outcome.absent:
            outcome.samples = {}
            say(f"  {outcome.contender.name}: {outcome.error or outcome.absent}")
    return outcomes


def _started(outcome: Outcome, threads: int) -> Worker | None:
    python = peers_python() if outcome.contender.peers else Path(sys.executable)
    if python is None:
        outcome.absent = NO_PEERS
        return None
    return Worker(python, outcome.contender.threads or threads)


def _make(worker: Worker, outcome: Outcome, threads: int) -> bool:
    contender = outcome.contender
    options = {"threads": contender.threads or threads, **contender.options}
    reply = _ask(worker, outcome, {"do": "make", "make": contender.make, "options": options})
    outcome.facts = reply.get("facts", {})
    return "facts" in reply


def _turn(worker: Worker, outcome: Outcome, *, keep: bool) -> bool:
    reply = _ask(worker, outcome, {"do": "turn"})
    for name, value in reply.get("measures", {}).items() if keep else ():
        outcome.samples.setdefault(name, []).append(value)
    return "measures" in reply


def _ask(worker: Worker, outcome: Outcome, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        reply = worker.ask(request)
    except WorkerError as e:
        reply = {"error": str(e)}
    outcome.error, outcome.absent = reply.get("error"), reply.get("absent")
    if "traceback" in reply:
        print(reply["traceback"], file=sys.stderr)
    return reply
