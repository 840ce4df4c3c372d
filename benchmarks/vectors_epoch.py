"""What vectors of items cost in training: an epoch with 50,000 vectors of 768 numbers by id, against one without.

    python -m benchmarks.vectors_epoch [--rows 1000000] [--models fm deepfm] [--turns 3]

Each training is a process of its own on one thread, with and without vectors in turns. An epoch's
time is in processor seconds, with its evaluations, without an LR before it. Memory is the largest
resident set beyond what the log and the packages take before training; `in files` is what of it is
mapped, the matrix among it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl

from fieldwise import Callback, Categorical, Label, Recommender, Schema, TrainingSettings, Vector
from fieldwise.models import MODELS
from fieldwise.training.callbacks import TrainingStep

USERS = 20_000
ITEMS = 50_000
NUMBERS = 768
POPULARITY = 0.8
"""The k-th item's share is proportional to k^-0.8."""
EPOCHS = 2
NEVER = 1_000


def write_vectors(path: Path) -> None:
    """Vectors of all items in half precision, and their ids."""
    rng = np.random.default_rng(0)
    np.save(path, rng.standard_normal((ITEMS, NUMBERS), np.float32).astype(np.float16))
    np.save(path.with_suffix(".ids.npy"), np.arange(ITEMS))


def simulated(rows: int, vectors: Path) -> pl.DataFrame:
    """A log whose clicks depend on the user and on the first numbers of the item's vector."""
    rng = np.random.default_rng(1)
    shares = np.arange(1, ITEMS + 1) ** -POPULARITY
    item = rng.choice(ITEMS, size=rows, p=shares / shares.sum())
    user = rng.integers(0, USERS, rows)
    traits = np.load(vectors, mmap_mode="r")[:, :4].astype(np.float32)
    tastes = rng.normal(size=(USERS, 4))
    logit = (tastes[user] * traits[item]).sum(1)
    click = rng.random(rows) < 1 / (1 + np.exp(-logit))
    return pl.DataFrame({"user": user, "item": item, "click": click.astype(int)})


class Clock(Callback):
    """Processor seconds from the first step of an epoch to its last."""

    def __init__(self) -> None:
        self.starts: dict[int, float] = {}
        self.ends: dict[int, float] = {}

    def on_step(self, step: TrainingStep) -> None:
        """Note the time."""
        if not step.of_lr:
            now = time.process_time()
            self.starts.setdefault(step.epoch, now)
            self.ends[step.epoch] = now

    def seconds(self) -> float:
        """Of the fastest epoch."""
        return min(self.ends[epoch] - start for epoch, start in self.starts.items())


def memory(name: str) -> int:
    """A line of this process's memory, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) // 1024


def train(model: str, rows: int, vectors: Path, *, with_vectors: bool) -> dict[str, float]:
    """The time of an epoch and the memory of a training."""
    log = simulated(rows, vectors)
    fields = [Categorical("user", role="user"), Categorical("item", role="item")]
    if with_vectors:
        fields.append(Vector("text", role="item", column="item", vectors=str(vectors)))
    schema = Schema(fields=tuple(fields), label=Label("click"), user="user", item="item")
    # patience counts evaluations, of which an epoch has several: no epoch is cut short
    training = TrainingSettings(epochs=EPOCHS, patience=NEVER)
    clock = Clock()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    Recommender(schema, MODELS[model](), training=training, seed=0).fit(log, callbacks=[clock])
    return {
        "seconds": clock.seconds(),
        "memory": memory("VmHWM") - before,
        "in files": memory("RssFile"),
    }


def in_a_process(model: str, rows: int, vectors: Path, kind: str) -> dict[str, float]:
    """`train` in a new process on one thread."""
    command = [sys.executable, "-m", "benchmarks.vectors_epoch", "--rows", str(rows)]
    command += ["--models", model, "--one", kind, "--vectors", str(vectors)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Print the median time and memory of each model, with and without vectors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--models", nargs="+", default=["fm", "deepfm"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--one", choices=("with", "without"), help=argparse.SUPPRESS)
    parser.add_argument("--vectors", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        [model] = given.models
        is_with = given.one == "with"
        print(json.dumps(train(model, given.rows, given.vectors, with_vectors=is_with)))
        return
    with tempfile.TemporaryDirectory() as folder:
        vectors = Path(folder, "items.npy")
        write_vectors(vectors)
        for model in given.models:
            results: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
            for _ in range(given.turns):
                for kind, measured in results.items():
                    measured.append(in_a_process(model, given.rows, vectors, kind))
            medians = {
                kind: {name: median(one[name] for one in measured) for name in measured[0]}
                for kind, measured in results.items()
            }
            ratio = medians["with"]["seconds"] / medians["without"]["seconds"]
            print(f"{model}: {medians}, an epoch with vectors takes {ratio:.2f} times as long")


if __name__ == "__main__":
    main()
