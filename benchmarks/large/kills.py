"""`kills`: kill -9 of `fieldwise train` at random moments, until it has ended: weights and metrics stay the same.

A chain is one run: killed once to three times in a row, then left to end. Its weights, encoder and metrics are compared
with those of a run that nobody killed.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.large.log import about
from benchmarks.large.process import ROOT, end, environment_with, fieldwise, watched
from benchmarks.large.recipe import write_recipe
from benchmarks.large.results import store

__all__ = ["run"]

TRAINING = {"epochs": 3, "patience": 99, "evaluations_per_epoch": 2, "checkpoint_minutes": 0.003}
IN_A_ROW = (1, 1, 2, 3)
RESUMED = ("resumes the unfinished run", "was interrupted: it goes on")
PREPARED = " test rows"  # how the line ends that is printed once the data is prepared


@dataclass
class Attempt:
    """One process that trains, and what it says on standard error.

    Args:
        words: the command.
        env: its environment.
        out: file for its standard output.
    """

    words: list[str]
    env: Mapping[str, str]
    out: Path = Path(os.devnull)
    lines: list[str] = field(default_factory=list)
    prepared: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        with self.out.open("wb") as out:
            self.child = subprocess.Popen(
                self.words, env=self.env, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def killed_after(self, seconds: float) -> bool:
        """Whether kill -9 ended it, not its own end.

        Args:
            seconds: processor seconds from its start, which do not depend on what else the machine does.
        """
        while self.child.poll() is None and (self.spent() < seconds):
            time.sleep(0.003)
        self.child.kill()  # nothing if it has ended
        killed = self.child.wait() < 0
        end(self.child)
        self._reader.join()
        return killed

    def spent(self) -> float:
        """Processor seconds so far; infinite once it has ended."""
        try:
            fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return float("inf")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read(self) -> None:
        assert self.child.stderr is not None
        with self.child.stderr as errors:
            for line in errors:
                self.lines.append(line.rstrip("\n"))
                if line.rstrip("\n").endswith(PREPARED):
                    self.prepared.set()
        self.prepared.set()  # it has ended


@dataclass(kw_only=True)
class Campaign:
    """Chains of killed runs.

    Args:
        work: folder for all of them.
        recipe: what is trained.
        threads: of each process.
        what: `preparation` or `training`, where the kills fall.
    """

    work: Path
    recipe: Path
    threads: int
    what: str
    begin: float = 0.0  # of preparation, its end, and the run's end, in processor seconds
    prepared: float = 0.0
    over: float = 0.0

    def whole(self) -> dict[str, Any]:
        """The result of a run that nobody kills; its phases are timed."""
        out, looks, began = self.work / "whole.json", list[tuple[float, float]](), time.perf_counter()
        attempt, at = Attempt(self._words("whole"), self._env("whole"), out), None
        while attempt.child.poll() is None:
            looks.append((time.perf_counter() - began, attempt.spent()))
            if at is None and attempt.prepared.is_set():
                at = len(looks) - 1
            time.sleep(0.02)
        attempt.killed_after(0)
        if attempt.child.returncode != 0:
            sys.exit("the run failed:\n" + "\n".join(attempt.lines[-20:]))
        assert at is not None
        start = looks[at][0] - json.loads(out.read_text("utf-8"))["seconds_preparing"]
        self.begin = next(spent for moment, spent in looks if moment >= start)
        self.prepared, self.over = looks[at][1], max(spent for _, spent in looks if spent < float("inf"))
        return result(self.work / "whole" / "bundle")

    def chain(self, name: str, draws: random.Random, most: int) -> tuple[int, int, dict[str, Any], list[str]]:
        """How often it was killed in the phase and elsewhere, its result in the end, and what it said when resumed."""
        hits, others, said = 0, 0, list[str]()
        for _ in range(min(most, draws.choice(IN_A_ROW))):
            attempt = Attempt(self._words(name), self._env(name))
            if self.what == "training":
                attempt.prepared.wait()
                killed = attempt.killed_after(attempt.spent() + draws.random() * (self.over - self.prepared))
                hit = True
            else:
                killed = attempt.killed_after(draws.uniform(self.begin, self.prepared))
                hit = not any(line.endswith(PREPARED) for line in attempt.lines)
            said += attempt.lines
            if not killed:
                break
            hits, others = hits + hit, others + (not hit)
        if not (self.work / name / "bundle").exists():
            done = watched(self._words(name), env=self._env(name)).checked()
            said += [line for _, line in done.lines]
        found = result(self.work / name / "bundle")
        shutil.rmtree(self.work / name)
        return hits, others, found, said

    def _words(self, name: str) -> list[str]:
        out = self.work / name / "bundle"
        return fieldwise("train", self.recipe, "--out", out, "--threads", self.threads, "--json")

    def _env(self, name: str) -> dict[str, str]:
        env = environment_with(self.work / name, self.threads)
        # Kills in training share what the first run prepared, kills in preparation begin with nothing.
        return env | ({"XDG_CACHE_HOME": str(self.work / "whole" / "cache")} if self.what == "training" else {})


def result(bundle: Path) -> dict[str, Any]:
    """Digests of a bundle's weights and encoder, and its metrics."""
    manifest = json.loads((bundle / "bundle.json").read_text("utf-8"))
    found = {}
    for part in ("weights", "encoder"):
        (path,) = bundle.glob(f"{part}.*")
        found[part] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found | {"metrics": metrics(manifest["about"])}


def metrics(about_bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of validation and test rows, and of every evaluation, from a bundle's facts."""
    looks = [{name: value for name, value in look.items() if name != "seconds"} for look in about_bundle["history"]]
    return {"valid": about_bundle["run"]["valid"], "test": about_bundle["run"]["test"], "evaluations": looks}


def run(options: argparse.Namespace) -> int:
    """The command."""
    log, work = about(options.data), (options.work / "kills").absolute()
    shutil.rmtree(work, ignore_errors=True)
    recipe = write_recipe(work / "recipe.toml", log, options.model, memory=options.memory, training=TRAINING)
    campaign = Campaign(work=work, recipe=recipe, threads=options.threads, what=options.what)
    began, expected = time.perf_counter(), campaign.whole()
    draws, hits, others, resumed, differ, chains = random.Random(options.seed), 0, 0, 0, list[str](), 0
    while hits < options.times:
        more, elsewhere, found, said = campaign.chain(f"chain-{chains}", draws, options.times - hits)
        hits, others, chains = hits + more, others + elsewhere, chains + 1
        resumed += sum(any(words in line for words in RESUMED) for line in said)
        differ += [f"chain {chains - 1}: {name}" for name in expected if found[name] != expected[name]]
        if chains > 20 * options.times:
            sys.exit(f"{options.what} is over before it can be killed: give a larger log")
        print(
            f"{hits} kills in {options.what}, {chains} chains, {len(differ)} differences", file=sys.stderr, flush=True
        )
    told = {
        "what": options.what,
        "model": options.model,
        "kills": hits,
        "kills elsewhere": others,
        "chains": chains,
        "said to resume": resumed,
        "differences": differ,
        "seconds": round(time.perf_counter() - began, 1),
        "processor seconds": {"begin": campaign.begin, "prepared": campaign.prepared, "end": campaign.over},
        "log": log,
    }
    store(options.json, "kills", options.words, told)
    print(
        f"{hits} kills in {options.what} of {options.model} ({others} elsewhere), {chains} runs, {resumed} times "
        f"resumed: {'weights, encoder and metrics of all equal' if not differ else 'DIFFERENT: ' + '; '.join(differ)}"
    )
    shutil.rmtree(work)
    return 1 if differ else 0
