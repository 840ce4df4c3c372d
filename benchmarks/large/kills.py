"""`kills`: kill -9 of `fieldwise train` at random moments, until it has ended: weights and metrics stay the same.

A chain is one run: killed once to three times in a row, then left to end. Its weights, encoder and metrics are compared
with those of a run that nobody killed.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.large.log import about
from benchmarks.large.run import Watched, environment_with, fieldwise, is_prepared, marks, store, watched, write_recipe

__all__ = ["run"]

TRAINING = {"epochs": 3, "patience": 99, "evaluations_per_epoch": 2, "checkpoint_minutes": 0.003}
IN_A_ROW = (1, 1, 2, 3)
RESUMED = ("resumes the unfinished run", "was interrupted: it goes on")


class Campaign:
    """Chains of killed runs.

    Args:
        work: folder for all of them.
        recipe: what is trained.
        threads: of each process.
        what: `preparation` or `training`, where the kills fall.
    """

    def __init__(self, work: Path, recipe: Path, threads: int, what: str) -> None:
        self.work, self.recipe, self.threads, self.what = work, recipe, threads, what
        done = self._train("whole").checked()
        self.prepared, self.over = marks(done)[0], done.seconds
        self.begin = self.prepared - json.loads(done.out)["seconds_preparing"]
        self.expected = result(work / "whole" / "bundle")

    def chain(self, name: str, draws: random.Random, most: int) -> tuple[int, list[str], list[str]]:
        """How often it was killed in the phase, what differs in the end, and what it said."""
        hits, said = 0, list[str]()
        for _ in range(min(most, draws.choice(IN_A_ROW))):
            done = self._train(name, draws.random())
            said += [line for _, line in done.lines]
            if done.code >= 0:
                break
            hits += self.what == "training" or not any(is_prepared(line) for _, line in done.lines)
        if not (self.work / name / "bundle").exists():
            said += [line for _, line in self._train(name).checked().lines]
        found = result(self.work / name / "bundle")
        shutil.rmtree(self.work / name)
        return hits, [part for part in self.expected if found[part] != self.expected[part]], said

    def _train(self, name: str, moment: float | None = None) -> Watched:
        """Train; killed at a moment, from 0 to 1, of the phase if one is given."""
        words = ["train", self.recipe, "--out", self.work / name / "bundle", "--threads", self.threads, "--json"]
        env = environment_with(self.work / name, self.threads)
        if self.what == "training":  # these kills share what the first run prepared, kills in preparation begin anew
            env |= {"XDG_CACHE_HOME": str(self.work / "whole" / "cache")}

        def over(seconds: float, lines: Sequence[tuple[float, str]]) -> bool:
            if moment is None:
                return False
            if self.what == "preparation":
                return seconds > self.begin + moment * (self.prepared - self.begin)
            at = next((at for at, line in list(lines) if is_prepared(line)), None)
            return at is not None and seconds > at + moment * (self.over - self.prepared)

        return watched(fieldwise(*words), env=env, stop=over)


def result(bundle: Path) -> dict[str, Any]:
    """Digests of a bundle's weights and encoder, and its metrics of every evaluation."""
    about_bundle = json.loads((bundle / "bundle.json").read_text("utf-8"))["about"]
    looks = [{name: value for name, value in look.items() if name != "seconds"} for look in about_bundle["history"]]
    found: dict[str, Any] = {"metrics": [looks, about_bundle["run"]["valid"], about_bundle["run"]["test"]]}
    for part in ("weights", "encoder"):
        (path,) = bundle.glob(f"{part}.*")
        found[part] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def run(options: argparse.Namespace) -> int:
    """The command."""
    log, work = about(options.data), (options.work / "kills").absolute()
    shutil.rmtree(work, ignore_errors=True)
    recipe = write_recipe(work / "recipe.toml", log, options.model, TRAINING, options.memory)
    campaign = Campaign(work, recipe, options.threads, options.what)
    draws, hits, resumed, differ, chains = random.Random(options.seed), 0, 0, list[str](), 0
    while hits < options.times:
        more, differs, said = campaign.chain(f"chain-{chains}", draws, options.times - hits)
        differ += [f"chain {chains}: {part}" for part in differs]
        hits, chains = hits + more, chains + 1
        resumed += sum(any(words in line for words in RESUMED) for line in said)
        if chains > 20 * options.times:
            sys.exit(f"{options.what} is over before it can be killed: give a larger log")
        print(f"{hits} kills in {options.what}, {chains} runs, {len(differ)} differences", file=sys.stderr, flush=True)
    told = {"what": options.what, "model": options.model, "kills": hits, "runs": chains, "said to resume": resumed}
    store(options.json, "kills", options.words, told | {"differences": differ, "log": log})
    print(
        f"{hits} kills in {options.what} of {options.model}, {chains} runs, {resumed} times resumed: "
        f"{'weights, encoder and metrics of all equal' if not differ else 'DIFFERENT: ' + '; '.join(differ)}"
    )
    shutil.rmtree(work)
    return 1 if differ else 0
