"""`fuxictr`: FuxiCTR 2.3.10 and fieldwise from the same Parquet rows to the end of the first epoch, in alternation."""

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.large.log import CATEGORIES, LABEL, NUMBERS, about
from benchmarks.large.process import environment_with, fieldwise, watched
from benchmarks.large.recipe import BATCH, DIM, MIN_COUNT, write_recipe
from benchmarks.large.results import store
from benchmarks.large.train import marks
from benchmarks.turns import NO_PEERS, peers_python

__all__ = ["run"]

MOST_ROWS = 2_000_000
# The same optimizer in both: dense Adam, or Adagrad, which is the same lazily. The rest of ours are the defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "fm": {"theirs": {}, "optimizer": "Adagrad", "learning_rate": 0.05, "model": {}, "training": {}},
    "autoint": {
        "theirs": {"attention_dim": 16, "layers": 2, "heads": 2},
        "optimizer": "Adam",
        "learning_rate": 0.001,
        "model": {"attention_dropout": 0.0},
        "training": {"embedding_update": "auto", "average": 0.0},
    },
}


def run(options: argparse.Namespace) -> int:
    """The command."""
    python, log = peers_python(), about(options.data)
    if python is None:
        sys.exit(NO_PEERS)
    if log["rows"] > MOST_ROWS:
        sys.exit(f"FuxiCTR reads the table whole: give a log of at most {MOST_ROWS:,} rows, found {log['rows']:,}")
    work = (options.work / "fuxictr").absolute()
    shutil.rmtree(work, ignore_errors=True)
    parts(log, work / "rows")
    rounds: dict[str, list[dict[str, Any]]] = {"fieldwise": [], "FuxiCTR 2.3.10": []}
    for number in range(options.rounds):
        for name in list(rounds) if number % 2 == 0 else list(rounds)[::-1]:
            one = ours(options, log, work) if name == "fieldwise" else theirs(options, python, work)
            rounds[name].append(one)
            print(f"{name}: {sentence(one)}", file=sys.stderr, flush=True)
    store(options.json, "fuxictr", options.words, {"model": options.model, "rounds": rounds, "log": log})
    print(f"{log['rows']:,} rows, {options.model}, embedding size {DIM}, batch {BATCH}, medians of {options.rounds}")
    for name, found in rounds.items():
        print(f"  {name:16} {sentence(medians(found))}")
    shutil.rmtree(work)
    return 0


def ours(options: argparse.Namespace, log: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """fieldwise, with an empty cache."""
    folder = work / "ours"
    shutil.rmtree(folder, ignore_errors=True)
    settings = SETTINGS[options.model]
    recipe = write_recipe(
        folder / "recipe.toml", log, options.model, memory=options.memory, training=settings["training"],
        model_settings=settings["model"], transform="standard",
    )  # fmt: skip
    words = fieldwise("train", recipe, "--out", folder / "bundle", "--threads", options.threads, "--json")
    done = watched(words, env=environment_with(folder)).checked()
    record = json.loads(done.out)
    prepared, ends = marks(done)
    return measures(done.memory, prepared, ends[0]) | {
        "parameters": record["parameters"],
        "auc": record["valid"]["auc"],
        "steps": record["seconds_per_epoch"],
    }


def theirs(options: argparse.Namespace, python: Path, work: Path) -> dict[str, Any]:
    """FuxiCTR, with an empty folder."""
    folder = work / "theirs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    settings = SETTINGS[options.model]
    given = {
        "folder": str(folder),
        "data": str(work / "rows"),
        "label": LABEL,
        "numbers": [one.name for one in NUMBERS],
        "texts": [one.name for one in CATEGORIES if one.text],
        "integers": [one.name for one in CATEGORIES if not one.text],
        "min_count": MIN_COUNT,
        "block_rows": options.block_rows,
        "batch": BATCH,
        "threads": options.threads,
        "model": options.model,
        "settings": {"embedding_dim": DIM, **settings["theirs"]},
        "optimizer": settings["optimizer"],
        "learning_rate": settings["learning_rate"],
    }
    # Ray gives its workers niceness 15, which would starve them beside other processes.
    env = {k: v for k, v in environment_with(folder).items() if k != "PYTHONPATH"} | {
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
    }
    env |= {"TMPDIR": os.environ.get("TMPDIR", "/tmp")}  # Ray's sockets need a short path
    done = watched([str(python), "-m", "benchmarks.large.fuxictr_worker", json.dumps(given)], env=env).checked()
    at = {line: seconds for seconds, line in done.lines}
    found = json.loads(done.out.strip().splitlines()[-1])
    return measures(done.memory, at["prepared"], at["epoch done"]) | {
        "parameters": found["parameters"],
        "auc": found["valid"]["AUC"],
        "steps": at["steps of the epoch done"] - at["prepared"],
    }


def measures(memory: Any, prepared: float, end: float) -> dict[str, Any]:
    """Seconds, and bytes of all processes together, to the first epoch's end."""
    until = [one for one in memory.samples if one.at < end]
    return {
        "seconds": round(end, 2),
        "preparation": round(prepared, 2),
        "peak anonymous": max(one.anonymous for one in until),
        "peak anonymous and shared": max(one.anonymous + one.shared for one in until),
    }


def medians(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each measure."""
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def sentence(one: Mapping[str, Any]) -> str:
    """A contestant's measures."""
    return (
        f"{one['seconds']:.1f} s to the first epoch's end, {one['preparation']:.1f} s of it to prepared rows, "
        f"{one['steps']:.1f} s of steps; peak anonymous memory {one['peak anonymous'] / 1e6:,.0f} MB "
        f"({one['peak anonymous and shared'] / 1e6:,.0f} with shared memory), {one['parameters']:,.0f} parameters, "
        f"validation AUC {one['auc']:.4f}"
    )


def parts(log: Mapping[str, Any], folder: Path) -> None:
    """The log's rows as train.parquet (the first eight tenths), valid.parquet and test.parquet."""
    folder.mkdir(parents=True)
    path = Path(log["path"])
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    rows = log["rows"]
    ends = {"train": rows * 8 // 10, "valid": rows * 9 // 10, "test": rows}
    pieces = (piece for file in files for piece in pq.ParquetFile(file).iter_batches(100_000))
    piece, at = next(pieces), 0
    for name, end in ends.items():
        with pq.ParquetWriter(folder / f"{name}.parquet", piece.schema) as writer:
            while at < end:
                if piece.num_rows == 0:
                    piece = next(pieces)
                take = min(end - at, piece.num_rows)
                writer.write_batch(piece.slice(0, take))
                piece, at = piece.slice(take), at + take
