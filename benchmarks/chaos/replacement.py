"""Bundles and the index replaced under load, and damaged ones put in their place: no honest request fails."""

import random
import shutil
import threading
import time
from pathlib import Path

from serving.conftest import TOWER, catalogue, make

from benchmarks.chaos.outcome import Outcome, judge, log_trouble
from benchmarks.chaos.target import CASCADE, ITEMS, result, served, start
from fieldwise.serving import build_index

DAMAGES = ("truncated", "overwritten", "removed")


def replacement(folder: Path, seconds: float, seed: int) -> Outcome:
    """Good, damaged and good again, in turns."""
    live = folder / "live"
    shutil.copytree(folder, live, ignore=shutil.ignore_patterns("live", "*.log"))
    done = [0]
    stop = threading.Event()
    rng = random.Random(seed)

    def replace() -> None:
        tower = make(TOWER)
        while not stop.wait(0.3):
            part = rng.choice(("ix", "tower", "ranker"))
            if done[0] % 2:
                damage(live / part, rng)
            else:
                tower.save(live / "tower", overwrite=True)
                shutil.rmtree(live / "ranker")
                shutil.copytree(folder / "ranker", live / "ranker")
                build_index(
                    tower, catalogue(ITEMS).sample(ITEMS, shuffle=True, seed=done[0]), live / "ix"
                )
            done[0] += 1

    with served(live, *CASCADE, "--watch", "0.1") as server:
        result(start("witness", server.port, 2), 60)
        watching = start("witness", server.port, seconds)
        thread = threading.Thread(target=replace)
        thread.start()
        witness = result(watching, 60 + seconds)
        stop.set()
        thread.join()
        build_index(make(TOWER), catalogue(ITEMS), live / "ix")
        shutil.rmtree(live / "ranker")
        shutil.copytree(folder / "ranker", live / "ranker")
        make(TOWER).save(live / "tower", overwrite=True)
        one = Outcome(name="replacement under load", tried=done[0])
        judge(one, witness)
        ready = wait(server)
        one.figures |= {"replaced": ready["replaced"]}
        if ready["refused"] is not None or ready["watcher"] != "ok":
            one.broken.append(
                f"after good files it says {ready['refused']}, the watcher {ready['watcher']}"
            )
        if (trouble := log_trouble(server)) is not None:
            one.broken.append(trouble)
    return one


def damage(folder: Path, rng: random.Random) -> None:
    """Remove a part, or put a truncated or overwritten one in its place: `serve` maps an index's files, so that nothing
    may write into them."""
    files = [file for file in folder.iterdir() if file.is_file()]
    file = rng.choice(files)
    how = rng.choice(DAMAGES)
    if how == "removed":
        file.unlink()
        return
    content = bytearray(file.read_bytes())
    place = rng.randrange(len(content) + 1)
    if how == "truncated":
        del content[place:]
    else:
        content[place : place + 64] = rng.randbytes(64)
    damaged = file.with_name(f".{file.name}.damaged")
    damaged.write_bytes(content)
    damaged.replace(file)


def wait(server) -> dict:  # type: ignore[no-untyped-def,type-arg]
    """What the server says once it has settled; its watcher waits for two looks."""
    until = time.monotonic() + 90
    while True:
        ready = server.get("/readyz").json()
        if (ready["refused"] is None and ready["watcher"] == "ok") or time.monotonic() > until:
            return ready
        time.sleep(0.1)
