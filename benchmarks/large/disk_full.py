"""`disk-full`: no space in the midst of preparation, of a checkpoint, of a bundle, of predictions.

Each case is first run with enough space, to see how much it takes, then with parts of that. A command may end with a
sentence and a status, or tell that something was left out and go on. In both cases there must be no traceback, and
what was there before must be as it was, or be replaced by a whole result.
"""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.large.log import about
from benchmarks.large.process import environment_with, fieldwise, watched
from benchmarks.large.recipe import write_recipe
from benchmarks.large.results import store
from benchmarks.large.small_disk import on_small_disk

__all__ = ["NAMES", "run"]

NAMES = ("preparation", "checkpoint", "bundle", "prediction")
PARTS = (0.05, 0.3, 0.6, 0.9)
ENOUGH = 4 * 2**30
ROOM = 5  # times what is needed
FEW = {"epochs": 2, "patience": 9, "evaluations_per_epoch": 2}
ABOUT_SPACE = ("is full", "No space", "too large", "not stored", "could not be written", "cannot write")
OFTEN, NEVER = {"checkpoint_minutes": 0.003}, {"checkpoint_minutes": 0}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command on a small file system.

    Args:
        name: what is being written when the space ends.
        words: the command.
        env: environment variables as `NAME=VALUE`; places are on the small file system or beside it.
        contents: folder of what is on the small file system before.
        kept: path of what must stay whole there.
    """

    name: str
    words: Sequence[str]
    env: Sequence[str]
    contents: Path
    kept: str


def cases(work: Path, log: Mapping[str, Any], options: argparse.Namespace) -> list[Case]:
    """The four, with a bundle and an empty folder that they begin with."""
    disk, env = work / "disk", environment_with(work, options.threads)
    often = write_recipe(work / "often.toml", log, options.model, memory=options.memory, training=FEW | OFTEN)
    never = write_recipe(work / "never.toml", log, options.model, memory=options.memory, training=FEW | NEVER)
    common = ["--threads", options.threads, "--overwrite"]
    old = work / "with-bundle"
    watched(fieldwise("train", never, "--out", old / "bundle", *common, "--seed", 1), env=env).checked()
    watched(fieldwise("train", never, "--out", work / "bundle", *common), env=env).checked()  # fills the cache
    scored = work / "with-scores"
    scored.mkdir()
    (scored / "scores.parquet").write_bytes(b"what was there before")
    beside = [f"XDG_CACHE_HOME={work / 'cache'}", f"TMPDIR={work / 'tmp'}"]
    # `preparation` has its cache and its temporary files on the small disk, which holds a cache of another seed.
    cached = work / "with-cache"
    other = env | {"XDG_CACHE_HOME": str(cached / "cache")}
    watched(fieldwise("train", never, "--out", work / "other", *common, "--set", "split.test=0.2"), env=other).checked()
    (cached / "tmp").mkdir()
    inside = [f"XDG_CACHE_HOME={disk / 'cache'}", f"TMPDIR={disk / 'tmp'}"]
    rows = ["--data", log["path"], "--out", disk / "scores.parquet", "--threads", options.threads]
    train = ["--out", disk / "bundle", *common]
    return [
        _case("preparation", ["train", never, "--out", work / "prepared", *common], inside, cached, "cache"),
        _case("checkpoint", ["train", often, *train], beside, old, "bundle"),
        _case("bundle", ["train", never, *train], beside, old, "bundle"),
        _case("prediction", ["predict", work / "bundle", *rows], beside, scored, "scores.parquet"),
    ]


def _case(name: str, words: Sequence[object], env: Sequence[str], contents: Path, kept: str) -> Case:
    return Case(name=name, words=fieldwise(*words), env=env, contents=contents, kept=kept)


def attempt(case: Case, disk: Path, size: int, way: str, room: int = 0) -> dict[str, Any]:
    """The command with so much space, and what is wrong with how it ended; see `on_small_disk`."""
    found = on_small_disk(disk, size, case.contents, ["env", *case.env, *case.words], way=way, room=room)
    return {
        "code": found["code"],
        "told": told(found),
        "used": found["used"],
        "wrong": wrong(case, found),
    }


def told(found: Mapping[str, Any]) -> list[str]:
    """The sentences about space, at most three, and for a failure the last line."""
    lines = found["lines"]
    about_space = [line for line in lines if any(word in line for word in ABOUT_SPACE)]
    return list(dict.fromkeys([*about_space[:3], *(lines[-1:] if found["code"] else [])]))


def wrong(case: Case, found: Mapping[str, Any]) -> list[str]:
    """Sentences on broken promises."""
    lines = found["lines"]
    before, after = ({k: v for k, v in found[when].items() if _is(k, case.kept)} for when in ("before", "after"))
    broken = ["a traceback was shown"] if any(line.startswith("Traceback") for line in lines) else []
    if found["code"] < 0 or found["code"] > 128:
        broken.append(f"it ended with a signal: status {found['code']}")
    if found["code"] != 0 and not lines:
        broken.append("it ended without a sentence")
    lost = [name for name in before if after.get(name) != before[name]]
    if lost and (found["code"] != 0 or case.kept == "cache"):
        broken.append(f"{lost[0]} was there before and is not as it was")
    left = [name for name in after if name not in before]
    if found["code"] != 0 and left and case.kept != "cache":
        broken.append(f"{left[0]} was left beside what was there before")
    return broken


def _is(path: str, kept: str) -> bool:
    return path == kept or path.startswith(f"{kept}/")


def run(options: argparse.Namespace) -> int:
    """The command."""
    log, work = about(options.data), (options.work / "disk-full").absolute()
    shutil.rmtree(work, ignore_errors=True)
    rows, broken = [], 0
    for case in cases(work, log, options):
        if options.only and case.name not in options.only:
            continue
        whole = attempt(case, work / "disk", ENOUGH, options.way)
        print(f"{case.name}: takes {whole['used'] / 1e6:.1f} MB, status {whole['code']}", flush=True)
        if whole["code"] != 0:
            print(f"  {whole['told']}")
            broken += 1
        needed = whole["used"] if options.way == "mount" else min(whole["used"], 2**20)
        # A large preparation looks for space before it begins: then the space is taken while it runs.
        for room in (0, ROOM * needed) if case.name == "preparation" and options.way == "mount" else (0,):
            for part in PARTS:
                size = int(part * needed)
                shutil.rmtree(work / "disk", ignore_errors=True)
                found = attempt(case, work / "disk", size, options.way, room)
                broken += len(found["wrong"])
                rows.append({"case": case.name, "bytes": size, "room": room, "needed": whole["used"], **found})
                after = " written, then full" if room else ""
                print(f"  {size / 1e6:.1f} MB{after}: status {found['code']}: {' | '.join(found['told'])}", flush=True)
                for sentence in found["wrong"]:
                    print(f"  WRONG: {sentence}", flush=True)
    store(options.json, "disk-full", options.words, {"way": options.way, "log": log, "attempts": rows})
    print("no promise was broken" if not broken else f"{broken} promises broken")
    shutil.rmtree(work)
    return 1 if broken else 0
