"""Runs a case: one process per contender, which take turns.

While one process works, the others are blocked in a read. Idle threads wait as each library does by
default: OpenMP's spin for about a millisecond and then sleep, so they do not disturb the next turn.
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
# removed: each library waits as it does by default
WAITS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)
NO_PEERS = (
    f"no environment of peers: run `sh benchmarks/peers/setup` (or name its folder in {PEERS})"
)


@dataclass
class Outcome:
    """The result of one contender: samples by measure, one per round, or the reason for having none."""

    contender: Contender
    facts: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    absent: str | None = None
    error: str | None = None


class Worker:
    """The process of a contender, which answers requests (`benchmarks.worker`); an error or absence ends it."""

    def __init__(self, outcome: Outcome, threads: int) -> None:
        self.outcome = outcome
        python = peers_python() if outcome.contender.peers else Path(sys.executable)
        if python is None:
            outcome.absent = NO_PEERS
            return
        others = {name: value for name, value in os.environ.items() if name not in WAITS}
        own = {
            **dict.fromkeys(THREADS, str(threads)),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
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
        options = {"threads": threads, **outcome.contender.options}
        outcome.facts = self._ask(
            {"do": "make", "make": outcome.contender.make, "options": options}
        ).get("facts", {})

    @property
    def works(self) -> bool:
        """Whether it can take a turn."""
        return self.outcome.error is None and self.outcome.absent is None

    def turn(self, *, keep: bool) -> None:
        """One turn, whose measures are kept or not."""
        measures = self._ask({"do": "turn"}).get("measures", {}) if self.works else {}
        for name, value in measures.items() if keep else ():
            self.outcome.samples.setdefault(name, []).append(value)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        reply: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        self.outcome.error = reply.get("error")
        self.outcome.absent = reply.get("absent")
        if "traceback" in reply:
            print(reply["traceback"], file=sys.stderr)
        if not self.works:
            self.outcome.samples = {}
            self.close()
        return reply

    def _last_words(self) -> str:
        self.process.wait()
        self.log.seek(0)
        said = self.log.read().strip().splitlines()[-5:]
        return f"its process ended with code {self.process.returncode}: {' / '.join(said)}"

    def close(self) -> None:
        """End the process, if it is there."""
        if self.outcome.absent == NO_PEERS or self.log.closed:
            return
        try:
            self.process.communicate(timeout=20)  # ends its input
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
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
    workers: list[Worker] = []
    try:
        for outcome in outcomes:
            say(f"  {outcome.contender.name}: loading and warming up")
            workers.append(Worker(outcome, threads))
            workers[-1].turn(keep=False)
        for repeat in range(repeats):
            say(f"  round {repeat + 1} of {repeats}")
            ready = [worker for worker in workers if worker.works]
            first = repeat % max(1, len(ready))
            for worker in ready[first:] + ready[:first]:
                worker.turn(keep=True)
    finally:
        for worker in workers:
            worker.close()
    for outcome in outcomes:
        if outcome.error or outcome.absent:
            say(f"  {outcome.contender.name}: {outcome.error or outcome.absent}")
    return outcomes
