"""Writers of every kind of artifact, killed at random moments: what is there afterwards is the old one or the new one.

`python -m benchmarks.chaos.kills FOLDER KILLS SEED` prints how many were killed of each kind, and damage, as JSON.
"""

import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.chaos.outcome import Outcome
from benchmarks.chaos.target import result, start

PRELOADED = ["fieldwise.bundle.bundle", "fieldwise.bundle.export", "fieldwise.serving.index", "fieldwise.runs.records"]
LONGEST = 0.06  # seconds that a writer lives after its first artifact
NAMES = ("bundle", "index", "run", "export", "entry", "thing", "table")


def kills(folder: Path, count: int, seed: int) -> Outcome:
    """Kill so many in all."""
    found = result(start("kills", folder, count, seed), 600)
    one = Outcome(name="kills of writers", tried=sum(found["kills"].values()), broken=found["damage"])
    one.figures |= {"kills": found["kills"], "left_old_or_new": found["left"]}
    return one


def write(name: str, folder: str, begun: Connection) -> None:
    """Write an artifact again and again, the first and the second in turn."""
    from storage.kinds import CASES, export, fake_exporter

    export._MAKERS["onnx"] = fake_exporter
    number = 1
    while True:
        CASES[name].save(Path(folder) / ("a" if CASES[name].replaces else f"a{time.monotonic_ns()}"), number)
        if number == 1:
            begun.send(1)
        number = 3 - number


def campaign(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Kill, and load what is left."""
    from storage.kinds import CASES, found

    assert set(NAMES) == set(CASES)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    rng, killed, left, damage = random.Random(seed), Counter[str](), Counter[str](), []
    places = {name: Path(tempfile.mkdtemp(dir=folder)) for name in NAMES}
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        place = places[name]
        ours, theirs = context.Pipe()
        child = context.Process(target=write, args=(name, str(place), theirs))
        child.start()
        if not ours.poll(60):
            damage.append(f"a writer of {name} wrote nothing within 60 s")
        time.sleep(rng.uniform(0, LONGEST))
        child.kill()
        child.join()
        killed[name] += 1
        artifacts = [place / "a"] if CASES[name].replaces else [one for one in place.iterdir() if one.name[0] == "a"]
        for artifact in artifacts:
            try:
                left[str(found(CASES[name], artifact))] += 1
            except Exception as e:
                damage.append(f"{name}: {type(e).__name__}: {e}"[:300])
    return {"kills": dict(killed), "left": dict(left), "damage": damage[:10]}


if __name__ == "__main__":
    print(json.dumps(campaign(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
