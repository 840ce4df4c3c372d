"""The measurements behind `constants.json`, and runs to compare predictions with. Timings are of random rows."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.processes import CASES, FIELDS, MORE, Case, layout_of, measured, random_table, started, timed
from benchmarks.scaling.model import SAVED, Constants, Job, costs, exchanges, shape_of
from fieldwise.data.table import EncodedTable
from fieldwise.data.windows import ShuffledRows, Span, read_spans
from fieldwise.distributed.meeting import joined
from fieldwise.distributed.place import Place
from fieldwise.distributed.world import World
from fieldwise.models.build import build_network
from fieldwise.runs.environment import environment
from fieldwise.training.checkpoint import Checkpoints
from fieldwise.training.objective import Objective
from fieldwise.training.reached import Reached, captured, copied_weights
from fieldwise.training.result import Evaluation
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.step import Step
from fieldwise.training.unfinished import Unfinished

__all__ = [
    "BATCHES",
    "CALIBRATED",
    "calibrated",
    "checkpoint_seconds",
    "job_of",
    "median",
    "read_rate",
    "repeated",
]

EVERY = CASES | MORE
BATCHES = {"fm": (1_024, 4_096), "afm": (256, 1_024), "autoint+": (256, 1_024), "inttower": (256, 1_024)}
STEPS = {"fm": 60, "afm": 40, "autoint+": 15, "inttower": 15}  # 1.5 to 3.5 seconds
ROUNDS = 3  # of which medians are taken
LARGE = 80_000  # rows of 16 numbers that a process gives to a large all-to-all
CALIBRATED = (2, 4)  # processes for the seconds of messages
MESSAGES = 33  # on their way at a time
Run = tuple[str, int, int | None]
"""A case of `benchmarks.processes`, processes, and rows of a batch if they are not the case's."""


def job_of(name: str, processes: int, batch: int | None = None) -> Job:
    """The model's view of a case of `benchmarks.processes`."""
    case = EVERY[name]
    ids, sharded = case.values * FIELDS, case.settings.get("tables") == "sharded"
    batch = batch or case.batch
    return Job(shape=shape_of(case.model, FIELDS), ids=ids, batch=batch, processes=processes, sharded=sharded)


def calibrated(parts: tuple[str, ...], prepared: float | None) -> dict[str, object]:
    """The constants, of which only some parts are measured anew."""
    found: dict[str, object] = json.loads(SAVED.read_text()) if SAVED.exists() else {}
    if "step" in parts:
        found["step"] = _lines()
    if "exchange" in parts:
        found |= _exchange()
    if "ids" in parts:
        found |= _ids(found["step"]["fm"])  # type: ignore[index]
    if "waits" in parts:
        found["waits"] = _waits(Constants.of({**found, "waits": 0.0}))
    if "disk" in parts:
        octets, seconds = checkpoint_seconds(EVERY["fm-replicated"])
        found |= {"written": octets / seconds, "read": read_rate(1_000_000)}
    if prepared is not None:
        found["prepared"] = prepared
    about = environment()
    return found | {"about": {name: about[name] for name in ("date", "machine", "torch", "commit")}}


def repeated(cases: Iterable[Run], rounds: int = ROUNDS) -> dict[Run, list[dict[str, float]]]:
    """What each run measured in every round; a round has each of them once."""
    found: dict[Run, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for name, processes, batch in found:
            steps = STEPS[name.rsplit("-", 1)[0]]
            found[name, processes, batch].append(measured(name, processes, steps, batch, sockets=True))
    return found


def median(runs: Iterable[Mapping[str, float]], wanted: str) -> float:
    """The median over runs of one of the numbers that they measured."""
    return float(np.median([run[wanted] for run in runs]))


def _lines() -> dict[str, tuple[float, float]]:
    """By model, the seconds of one process's step without rows, and a row, from two sizes of batches."""
    found = repeated((f"{model}-sharded", 1, batch) for model, batches in BATCHES.items() for batch in batches)
    lines = {}
    for model, (small, large) in BATCHES.items():
        few, many = (median(found[f"{model}-sharded", 1, batch], "seconds") for batch in (small, large))
        row = (many - few) / (large - small)
        lines[model] = max(0.0, few - row * small), row
    return lines


def _exchange() -> dict[str, float]:
    runs = [
        [started("benchmarks.scaling.measure", size, "--exchange", sockets=True) for size in CALIBRATED]
        for _ in range(ROUNDS)
    ]
    two, four = ({name: median(same, name) for name in same[0]} for same in zip(*runs, strict=True))
    sent = LARGE * 16 * 4 / 2
    byte = (two["large"] - two["small"]) / sent
    return {"message": two["small"], "crowded": four["small"], "posted": two["posted"], "byte": byte}


def _ids(line: tuple[float, float]) -> dict[str, float]:
    """What two processes' main threads do besides the step of their part, an id."""
    fixed, row = line
    batch = EVERY["fm-sharded"].batch
    alone, ids = fixed + row * batch / 2, FIELDS * batch / 2
    found = repeated([("fm-sharded", 2, None), ("fm-replicated", 2, None)])
    sharded, replicated = (median(found[f"fm-{tables}", 2, None], "main") for tables in ("sharded", "replicated"))
    return {"fetched": max(0.0, sharded - alone) / ids, "merged": max(0.0, replicated - alone) / ids}


def _waits(known: Constants) -> float:
    """What a collective of IntTower's step takes besides all else: both its processes wait for the later one."""
    job = job_of("inttower-sharded", 2)
    (runs,) = repeated([("inttower-sharded", 2, None)]).values()
    seconds = median(runs, "seconds")
    return max(0.0, seconds - costs(job, "inttower", known).step) / len(exchanges(job))


def checkpoint_seconds(case: Case) -> tuple[int, float]:
    """Bytes of a checkpoint of a case, and the seconds in which it is copied, written and on the disk."""
    layout = layout_of(case.values)
    table = random_table(layout, 2 * case.batch)
    network = build_network(case.model, layout, 0).train()
    step = Step(network, table, TrainingSettings(batch_size=case.batch, **case.settings), Objective(), 0)  # type: ignore[arg-type]
    timed(step, ShuffledRows(table=table, size=case.batch, window=len(table), seed=0))
    best = Evaluation(epoch=1.0, train_loss=None, learning_rate=0.1, seconds=0.0, metrics={})
    at = Reached(epoch=1, history=[best], best=(best, copied_weights(network)))
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoints(place=Unfinished(folder=Path(folder) / "run"), name="first", minutes=1.0, about=dict)
        seconds = _seconds(lambda: kept.write(lambda: captured(at, step.parts, copied=True), wait=True))
        (path,) = Path(folder).rglob("tensors.*.safetensors")
        return path.stat().st_size, seconds


def read_rate(rows: int) -> float:
    """Bytes a second of windows that are read from a mapped table, whose pages the system still has."""
    table = random_table(layout_of(1_000), rows)
    with tempfile.TemporaryDirectory() as folder:
        table.save(Path(folder) / "table")
        mapped = EncodedTable.open(Path(folder) / "table")
        blocks = [Span(first, min(first + 4_096, rows)) for first in range(0, rows, 4_096)]
        spans = [blocks[k] for k in np.random.default_rng(0).permutation(len(blocks))]
        return mapped.nbytes / min(_seconds(lambda: read_spans(mapped, spans)) for _ in range(5))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def exchange_worker() -> None:
    """Seconds of a small and a large all-to-all of this process with others, and processor seconds of a message."""
    torch.set_num_threads(1)
    with joined(Place.of()) as world:
        assert world is not None, "torchrun starts several"
        ones, small = [1] * world.size, torch.zeros(world.size)
        rows, large = [LARGE // world.size] * world.size, torch.zeros(LARGE, 16)
        found = {"small": _median(lambda: world.swapped(small, ones, ones), 200)}
        found["large"] = _median(lambda: world.swapped(large, rows, rows), 40)
        found["posted"] = (_posted(world, MESSAGES) - _posted(world, 1)) / (MESSAGES - 1)
        dist.barrier()
        if world.first:
            print(json.dumps(found))


def _posted(world: World, messages: int, times: int = 200) -> float:
    """Processor seconds of so many small messages to the next process, and from the one before, all on their way."""
    one, other = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    given, taken = torch.zeros(messages, 2), torch.zeros(messages, 2)
    before = time.process_time()
    for _ in range(times):
        posted = [dist.isend(given[k], one, tag=k) for k in range(messages)]
        posted += [dist.irecv(taken[k], other, tag=k) for k in range(messages)]
        for work in posted:
            assert work is not None, "every process takes part"
            work.wait()
    return (time.process_time() - before) / times


def _median(work: Callable[[], object], times: int) -> float:
    def all_times() -> Iterator[float]:
        for _ in range(times):
            yield _seconds(work)

    return float(np.median(list(all_times())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exchange", action="store_true", required=True, help="as one of several processes")
    parser.parse_args()
    exchange_worker()
