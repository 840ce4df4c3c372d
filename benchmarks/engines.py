"""PyTorch's own engines in the place of ours: DDP for gradients, torch.distributed.checkpoint for checkpoints.

python -m benchmarks.engines                          # both
python -m benchmarks.engines --what gradients --sockets

Gradients: steps of AutoInt+ (39 fields of 1,000 values, D 16, batch 2,048) by two processes with one thread each, ours
and one of `DistributedDataParallel` in turns; medians of process 0.

Checkpoints: a table of 4 million rows of 16 numbers and one of width 1, with the sums of row-wise Adagrad, of two
processes. Both kinds are flushed to the disk. They are read by two and by three processes; before that, the files are
dropped from the system's memory where it allows that. Seconds are medians of process 0.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as distributed_tensor
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from benchmarks.processes import layout_of, random_table, started
from fieldwise.data.windows import ShuffledRows
from fieldwise.distributed.meeting import joined
from fieldwise.distributed.place import Place
from fieldwise.distributed.world import World
from fieldwise.layout import Batch
from fieldwise.models import AutoIntPlus
from fieldwise.models.build import build_network
from fieldwise.runs.environment import environment
from fieldwise.storage.memory import keep_freed_arrays
from fieldwise.training.checkpoint import Checkpoints, State
from fieldwise.training.checkpoint_parts import SHARED_OUT
from fieldwise.training.objective import Objective
from fieldwise.training.reached import Reached
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.step import Step
from fieldwise.training.unfinished import Unfinished

BATCH, WARM, STEPS, ROUNDS = 2_048, 3, 25, 3
ROWS, DIM = 4_000_000, 16
TENSORS = {"network.embedding.weight": (ROWS, DIM), "network.first_order.weight": (ROWS, 1)} | {
    f"optimizer.lazy.{number}.row_sum": (ROWS,) for number in range(2)
}


def gradients(world: World) -> dict[str, float]:
    """Median seconds of a step of each contender."""
    layout = layout_of(1_000)
    table = random_table(layout, BATCH * (2 * STEPS + WARM))
    rows = ShuffledRows(table=table, size=BATCH, window=len(table), seed=0, part=world.part)
    settings, at = TrainingSettings(batch_size=BATCH), Reached(epoch=1)
    ours = Step(build_network(AutoIntPlus(embedding_dim=DIM), layout, 0).train(), table, settings, Objective(), 0)
    theirs = DistributedDataParallel(
        build_network(AutoIntPlus(embedding_dim=DIM), layout, 0).train(), gradient_as_bucket_view=True
    )
    optimizer = torch.optim.Adam(theirs.parameters(), lr=settings.learning_rate, fused=True)

    def fieldwise(batch: Batch, y: Tensor) -> float:
        ours.begin(at, batch.size, BATCH)
        return float(ours(batch, y, None))

    def ddp(batch: Batch, y: Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = binary_cross_entropy_with_logits(theirs(batch), y[:, 0])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss)

    contenders: dict[str, Callable[[Batch, Tensor], float]] = {"fieldwise": fieldwise, "DDP": ddp}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for batch, y, _ in rows.epoch(1, 0, torch.Generator().manual_seed(0)):
        for name, step in contenders.items():
            world.lengths(0)
            began = time.perf_counter()
            step(batch, y)
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found[WARM:]) for name, found in seconds.items()}


def checkpoints(world: World, folder: Path, *, saves: bool) -> dict[str, float]:
    """Median seconds of saving or loading by each contender, and the bytes of its files."""
    kept = Checkpoints(
        place=Unfinished(folder=folder / "fieldwise"), name="first", minutes=1.0, about=dict, world=world
    )
    mesh, found = init_device_mesh("cpu", (world.size,)), dict[str, float]()
    own = {
        name: torch.rand(len(range(world.rank, *shape[:1], world.size)), *shape[1:]) for name, shape in TENSORS.items()
    }
    parts = {
        name: distributed_tensor.zeros(*shape, device_mesh=mesh, placements=[Shard(0)])
        for name, shape in TENSORS.items()
    }
    state = State(facts={"position": 0.5, SHARED_OUT: dict.fromkeys(TENSORS, ROWS)}, tensors=own)

    def ours() -> None:
        if saves:
            kept.write(lambda: state, wait=True)
        else:
            read = kept.newest()
            assert read is not None
            for name, tensor in read.tensors.items():  # as `restore` does
                own[name].copy_(tensor)

    def theirs() -> None:
        if saves:
            dcp.save(parts, checkpoint_id=folder / "dcp")
        else:
            dcp.load(parts, checkpoint_id=folder / "dcp")

    for name, act in {"fieldwise": ours, "dcp": theirs}.items():
        seconds = []
        for _ in range(ROUNDS):
            if not saves:
                forgotten(folder)
            dist.barrier()
            began = time.perf_counter()
            act()
            dist.barrier()
            seconds.append(time.perf_counter() - began)
        found[f"{name} seconds"] = statistics.median(seconds)
        files = (folder / name).glob("first-*/0/*" if act is ours else "*")  # we keep the last two, in folders 0 and 1
        found[f"{name} bytes"] = sum(path.stat().st_size for path in files)
    return found


def forgotten(folder: Path) -> None:
    """Ask the system to drop the files from its memory, so that they are read from the disk."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def worker(what: str, folder: Path) -> None:
    """Measure in this process, which is one of several; process 0 prints."""
    torch.set_num_threads(1)
    keep_freed_arrays()
    with joined(Place.of()) as world:
        assert world is not None
        with world.active():
            found = gradients(world) if what == "gradients" else checkpoints(world, folder, saves=what == "save")
        if world.first:
            print(json.dumps(found))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", default=["gradients", "checkpoints"], choices=["gradients", "checkpoints"])
    parser.add_argument("--sockets", action="store_true", help="as between machines: without memory that they share")
    parser.add_argument("--worker", choices=["gradients", "save", "load"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=Path(), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.worker, asked.folder)
        return
    about = environment()
    print(f"{about['date']}, {about['machine']}, torch {about['torch']}, {about['commit']}")

    def measured(what: str, processes: int, folder: str) -> dict[str, float]:
        return started("benchmarks.engines", processes, "--worker", what, "--folder", folder, sockets=asked.sockets)

    with tempfile.TemporaryDirectory(prefix="fieldwise-engines-") as folder:
        if "gradients" in asked.what:
            for name, seconds in measured("gradients", 2, folder).items():
                print(f"a step of AutoInt+ by two processes, {name}: {1e3 * seconds:.1f} ms")
        if "checkpoints" in asked.what:
            for what, processes in ("save", 2), ("load", 2), ("load", 3):
                found = measured(what, processes, folder)
                for name in ("fieldwise", "dcp"):
                    size = f"{found[f'{name} bytes'] / 1e6:.0f} MB of files"
                    print(f"{what}, {processes} processes, {name}: {found[f'{name} seconds']:.2f} s, {size}")


if __name__ == "__main__":
    main()
