"""`disk-full`: no space in the midst of preparation, of a checkpoint, of a bundle, of predictions.

Each case is first run with enough space, to see how much it takes, then with parts of that. A command may end with a
sentence and a status, or tell that something was left out and go on. In both cases there must be no traceback, and
what was there before must be as it was, or be replaced by a whole result. A preparation that failed is run once more
with enough space: it must end with the files of one that was not disturbed.
"""

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.large.log import about
from benchmarks.large.process import environment_with, fieldwise, watched
from benchmarks.large.recipe import write_recipe
from benchmarks.large.results import store
from benchmarks.large.small_disk import ALONE, ENOUGH, Taken, on_small_disk

__all__ = ["NAMES", "run"]

NAMES = ("preparation", "checkpoint", "bundle", "prediction")
PARTS = (0.05, 0.3, 0.6, 0.9)
ROOM = 5  # times what is needed
MORE_PARTS = (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
PHASES = (  # of a preparation, at whose end another program takes the space that the next one needs
    "preparation",
    "reading rows",
    "labels, split and rows of each part",
    "vocabularies and scales",
    "encoding train rows",
    "encoding valid rows",
    "encoding test rows",
)
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


def cases(work: Path, log: Mapping[str, Any], options: argparse.Namespace) -> Iterator[Case]:
    """The wanted ones, each with what was there before."""
    wanted, disk, env = options.only or NAMES, work / "disk", environment_with(work, options.threads)
    often = write_recipe(work / "often.toml", log, options.model, memory=options.memory, training=FEW | OFTEN)
    never = write_recipe(work / "never.toml", log, options.model, memory=options.memory, training=FEW | NEVER)
    common = ["--threads", options.threads, "--overwrite"]
    if "preparation" in wanted:
        # Its cache and its temporary files are on the small disk, which holds a cache of another split.
        cached = work / "with-cache"
        other = env | {"XDG_CACHE_HOME": str(cached / "cache")}
        watched(fieldwise("prepare", never, "--set", "split.test=0.2"), env=other).checked()
        (cached / "tmp").mkdir()
        inside = [f"XDG_CACHE_HOME={disk / 'cache'}", f"TMPDIR={disk / 'tmp'}"]
        yield _case("preparation", ["prepare", never, "--progress", "json"], inside, cached, "cache")
    if not set(wanted) - {"preparation"}:
        return
    old = work / "with-bundle"
    watched(fieldwise("train", never, "--out", old / "bundle", *common, "--seed", 1), env=env).checked()
    watched(fieldwise("train", never, "--out", work / "bundle", *common), env=env).checked()  # fills the cache
    scored = work / "with-scores"
    scored.mkdir()
    (scored / "scores.parquet").write_bytes(b"what was there before")
    beside = [f"XDG_CACHE_HOME={work / 'cache'}", f"TMPDIR={work / 'tmp'}"]
    rows = ["--data", log["path"], "--out", disk / "scores.parquet", "--threads", options.threads]
    train = ["--out", disk / "bundle", *common]
    others = [
        _case("checkpoint", ["train", often, *train], beside, old, "bundle"),
        _case("bundle", ["train", never, *train], beside, old, "bundle"),
        _case("prediction", ["predict", work / "bundle", *rows], beside, scored, "scores.parquet"),
    ]
    yield from (case for case in others if case.name in wanted)


def _case(name: str, words: Sequence[object], env: Sequence[str], contents: Path, kept: str) -> Case:
    return Case(name=name, words=fieldwise(*words), env=env, contents=contents, kept=kept)


def attempt(
    case: Case, disk: Path, size: int, way: str, taken: Taken = ALONE, whole: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The command with so much space, and what is wrong with how it ended; see `on_small_disk`.

    Args:
        case: the command.
        disk: the folder.
        size: bytes.
        way: as for `on_small_disk`.
        taken: as for `on_small_disk`.
        whole: `after` of an attempt that was not disturbed, for the second attempt.
    """
    shutil.rmtree(disk, ignore_errors=True)
    found = on_small_disk(disk, size, case.contents, ["env", *case.env, *case.words], way=way, taken=taken)
    ended = wrong(case, found)
    if "again" in found:
        ended += [f"again: {sentence}" for sentence in wrong_again(found["again"], whole or {})]
    again = found.get("again", {}).get("code")
    keys = ("code", "used", "after")
    return {"told": told(found), "wrong": ended, "again": again, **{key: found[key] for key in keys}}


def wrong_again(found: Mapping[str, Any], whole: Mapping[str, str]) -> list[str]:
    """Sentences on what a second attempt, with enough space, has not done as one that was not disturbed."""
    if found["code"] != 0:
        return [f"status {found['code']}: {' | '.join(told(found))}"]
    # Manifests of an entry hold when it was made.
    missing = [name for name in whole if found["after"].get(name) != whole[name] and not name.endswith("entry.json")]
    left = [name for name in found["after"] if name not in whole]
    return [f"{name} is not as in a run that was not disturbed" for name in [*missing[:1], *left[:1]]]


def told(found: Mapping[str, Any]) -> list[str]:
    """The sentences about space, at most three, and for a failure the last line."""
    lines = [line for line in found["lines"] if not line.startswith("{")]  # of --progress json
    about_space = [line for line in lines if any(word in line for word in ABOUT_SPACE)]
    return list(dict.fromkeys([*about_space[:3], *(lines[-1:] if found["code"] else [])]))


def wrong(case: Case, found: Mapping[str, Any]) -> list[str]:
    """Sentences on broken promises."""
    lines = found["lines"]
    before, after = ({k: v for k, v in found[when].items() if _is(k, case.kept)} for when in ("before", "after"))
    broken = ["a traceback was shown"] if any(line.startswith("Traceback") for line in lines) else []
    if found["code"] < 0 or found["code"] > 128:
        broken.append(f"it ended with a signal: status {found['code']}")
    if found["code"] != 0 and not told(found):
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


def _spaces(case: Case, used: int, way: str) -> Iterator[tuple[str, int, Taken]]:
    """In words, the bytes that a case has room for, and what another program takes."""
    needed = used if way == "mount" else min(used, 2**20)
    prepares = case.name == "preparation"
    for part in PARTS:
        size = int(part * needed)
        yield f"{size / 1e6:.1f} MB", size, Taken(again=prepares)
    if not prepares or way != "mount":
        return
    # A large preparation looks for space before it begins: then the space is taken while it runs.
    for part in MORE_PARTS:
        size = int(part * needed)
        yield f"{size / 1e6:.1f} MB written, then full", size, Taken(room=ROOM * needed, again=True)
    for phase in PHASES:
        yield f"full after {phase!r}", needed, Taken(room=ROOM * needed, after=phase, again=True)


def run(options: argparse.Namespace) -> int:
    """The command."""
    log, work = about(options.data), (options.work / "disk-full").absolute()
    shutil.rmtree(work, ignore_errors=True)
    rows, broken = [], 0
    for case in cases(work, log, options):
        whole = attempt(case, work / "disk", ENOUGH, options.way)
        print(f"{case.name}: takes {whole['used'] / 1e6:.1f} MB, status {whole['code']}", flush=True)
        if whole["code"] != 0:
            print(f"  {whole['told']}")
            broken += 1
        for words, size, taken in _spaces(case, whole["used"], options.way):
            found = attempt(case, work / "disk", size, options.way, taken, whole["after"])
            del found["after"]
            broken += len(found["wrong"])
            rows.append({"case": case.name, "bytes": size, "space": words, "needed": whole["used"], **found})
            again = "" if found["again"] is None else f"; again: status {found['again']}"
            print(f"  {words}: status {found['code']}: {' | '.join(found['told'])}{again}", flush=True)
            for sentence in found["wrong"]:
                print(f"  WRONG: {sentence}", flush=True)
    store(options.json, "disk-full", options.words, {"way": options.way, "log": log, "attempts": rows})
    print("no promise was broken" if not broken else f"{broken} promises broken")
    shutil.rmtree(work)
    return 1 if broken else 0
