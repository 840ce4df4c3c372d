"""The server that is attacked, and the processes that attack and watch it, each on its own core where there are two."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from serving.commands import Running, serving
from serving.conftest import TOWER, catalogue, make

from benchmarks.chaos import ROOT
from fieldwise import AFM
from fieldwise.serving import build_index

ITEMS = 300
USERS = 200
CASCADE = ("ranker", "--tower", "tower", "--index", "ix", "--users", "users.parquet")
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
SERVER_CORE = {CORES[0]}
OTHER_CORES = set(CORES[1:]) or {CORES[0]}
ENDS = 60  # seconds in which a process that was told to end does


def prepare(folder: Path) -> None:
    """Write a tower, a ranker, an index of 300 items and a table of 200 users; all weights are random."""
    tower = make(TOWER)
    tower.save(folder / "tower")
    make(AFM(embedding_dim=4, attention_dim=3), seed=5).save(folder / "ranker")
    build_index(tower, catalogue(ITEMS), folder / "ix")
    users = [{"user": f"u{k}", "history": f"i{k % 29}|i{k % 7}"} for k in range(USERS)]
    pl.DataFrame(users).write_parquet(folder / "users.parquet")


@contextmanager
def served(folder: Path, *arguments: str, **environment: str) -> Iterator[Running]:
    """`fieldwise serve` on the first core, with the arguments of a cascade if none are given."""
    first = (
        f"import os; os.sched_setaffinity(0, {SERVER_CORE})"
        if hasattr(os, "sched_setaffinity")
        else ""
    )
    with serving(folder, *(arguments or CASCADE), before=first, **environment) as running:
        yield running


def start(module: str, *arguments: object) -> "subprocess.Popen[str]":
    """A module of this package as a process on the other cores; its standard output is JSON."""
    command = [sys.executable, "-m", f"benchmarks.chaos.{module}", *map(str, arguments)]
    pinned = (
        (lambda: os.sched_setaffinity(0, OTHER_CORES)) if hasattr(os, "sched_setaffinity") else None
    )
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=pinned)


def result(process: "subprocess.Popen[str]", seconds: float) -> dict[str, Any]:
    """What a process printed, once it ends."""
    try:
        result: dict[str, Any] = json.loads(process.communicate(timeout=seconds)[0])
    finally:
        process.kill()
    return result
