"""What two processes gain: steps of a training by one process and by several, with one thread each.

python -m benchmarks.processes                       # AutoInt, FM
python -m benchmarks.processes --cases fm --processes 1 2 4

Rows are random: 39 fields, D 16. The batch is the same for any number of processes. Seconds are the median of the steps
of process 0, batch assembly included, and CPU seconds are the mean of all of its steps, those of Gloo's threads
included; bytes are what it gives to collectives of sockets in a step.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from fieldwise.data.reports import memory_mib
from fieldwise.data.table import EncodedTable
from fieldwise.data.windows import ShuffledRows
from fieldwise.distributed.environment import WHOLE_BATCH, DistributedEnvironment
from fieldwise.distributed.process_group import process_group
from fieldwise.layout import Layout
from fieldwise.models import AFM, FM, AutoInt, AutoIntPlus, IntTower, ModelSettings
from fieldwise.models.build import build_network
from fieldwise.runs.environment import environment
from fieldwise.storage.memory import keep_freed_arrays
from fieldwise.training.objective import Objective
from fieldwise.training.reached import Reached
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.step import Step

FIELDS, WARM = 39, 3
ROWWISE = {"optimizer": "rowwise_adagrad", "learning_rate": 0.05}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training: its model, values of a field, rows of a batch, and further settings."""

    model: ModelSettings
    values: int
    batch: int
    settings: dict[str, object]


CASES = {
    "autoint": Case(model=AutoInt(embedding_dim=16), values=1_000, batch=2_048, settings={}),
    "fm": Case(model=FM(embedding_dim=16), values=102_400, batch=4_096, settings=ROWWISE),
}
MORE = {
    "afm": Case(model=AFM(embedding_dim=16), values=102_400, batch=1_024, settings=ROWWISE),
    "autoint+": Case(model=AutoIntPlus(embedding_dim=16), values=102_400, batch=1_024, settings=ROWWISE),
    "inttower": Case(model=IntTower(embedding_dim=16), values=102_400, batch=1_024, settings=ROWWISE),
}


def worker(case: Case, steps: int) -> None:
    """Time steps in this process, which may be one of several; process 0 prints them."""
    torch.set_num_threads(1)
    keep_freed_arrays()  # as `fit` does
    layout = layout_of(case.values)
    table = random_table(layout, case.batch * (steps + WARM))
    settings = TrainingSettings(batch_size=case.batch, **case.settings)  # type: ignore[arg-type]
    with (
        process_group(DistributedEnvironment.read()) as group,
        contextlib.nullcontext() if group is None else group.active(),
    ):
        network = build_network(case.model, layout, 0).train()
        step = Step(network, table, settings, Objective(), 0)
        shard = WHOLE_BATCH if group is None else group.shard
        rows = ShuffledRows(table=table, size=case.batch, window=len(table), seed=0, shard=shard)
        with counted() as sent:
            before = time.process_time(), time.thread_time()
            seconds = timed(step, rows)
            cpu, main = time.process_time() - before[0], time.thread_time() - before[1]
        if group is None or group.is_main_process:
            found = {"seconds": float(np.median(seconds[WARM:])), "memory_mib": memory_mib()}
            means = {"cpu": cpu, "main": main, "bytes": sum(given for _, given in sent)}
            print(json.dumps(found | {name: value / len(seconds) for name, value in means.items()}))


def timed(step: Step, rows: ShuffledRows) -> list[float]:
    """The seconds of every step of an epoch."""
    seconds, at = [], Reached(epoch=1)
    began = time.perf_counter()
    for batch, y, weight in rows.epoch(1, 0, torch.Generator().manual_seed(0)):
        step.begin(at, batch.size, rows.size)
        float(step(batch, y, weight))
        at.step += 1
        now = time.perf_counter()
        seconds.append(now - began)
        began = now
    return seconds


@contextlib.contextmanager
def counted() -> Iterator[list[tuple[str, int]]]:
    """A context that lists the kind of each collective, and the bytes which this process gives to it."""
    found: list[tuple[str, int]] = []
    places = {"all_reduce": 0, "all_gather_single": 1}
    before = {name: getattr(dist, name) for name in places}

    def counting(name: str, place: int) -> None:
        def call(*arguments: object, **named: object) -> object:
            tensor = arguments[place]
            assert isinstance(tensor, torch.Tensor)
            found.append((name, tensor.numel() * tensor.element_size()))
            return before[name](*arguments, **named)

        setattr(dist, name, call)

    for name, place in places.items():
        counting(name, place)
    try:
        yield found
    finally:
        for name, call in before.items():
            setattr(dist, name, call)


def layout_of(values: int) -> Layout:
    """Categorical fields of as many values, half of them the user's."""
    roles = ["user" if f < FIELDS // 2 else "item" for f in range(FIELDS)]
    return Layout.of_sizes([values] * FIELDS, roles)  # type: ignore[arg-type]


def random_table(layout: Layout, rows: int) -> EncodedTable:
    """Rows of random values and labels."""
    draws = np.random.default_rng(0)
    offsets = np.array([f.offset for f in layout.fields])
    ids = (draws.integers(0, layout.fields[0].rows, (rows, FIELDS)) + offsets).astype(np.int32)
    none = np.zeros(0, np.int32)
    y = draws.integers(0, 2, rows).astype(np.float32)
    return EncodedTable(layout, ids, np.zeros((rows, 0), np.float32), none, np.zeros(1, np.int64), y=y)


def measured(name: str, processes: int, steps: int, batch: int | None = None) -> dict[str, float]:
    """A case with so many processes, each with an interpreter of its own; with its batch, if none is given."""
    batches = [] if batch is None else ["--batch", str(batch)]
    given = "--worker", name, "--steps", str(steps), *batches
    return started("benchmarks.processes", processes, *given)


def started(module: str, processes: int, *arguments: str) -> dict[str, float]:
    """The JSON that a module prints when several processes run it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "-m", module]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{module} failed: {done.stderr[-2_000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = CASES | MORE
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=every)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, help="rows of a batch; by default the case's")
    parser.add_argument("--worker", choices=every, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        case = every[asked.worker]
        worker(dataclasses.replace(case, batch=asked.batch or case.batch), asked.steps)
        return
    about = environment()
    print(f"{about['date']}, {about['machine']}, torch {about['torch']}, {about['commit']}")
    print("| case | processes | ms a step | times one process | CPU ms a step | MB a step | memory, MiB |")
    print("|---|---|---|---|---|---|---|")
    for name in asked.cases:
        alone = None
        for processes in asked.processes:
            found = measured(name, processes, asked.steps, asked.batch)
            alone = alone or found["seconds"]
            cells = [f"{1e3 * found['seconds']:.1f}", f"{alone / found['seconds']:.2f}", f"{1e3 * found['cpu']:.1f}"]
            cells += [f"{found['bytes'] / 1e6:.2f}", f"{found['memory_mib']:.0f}"]
            print(f"| {name} | {processes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
