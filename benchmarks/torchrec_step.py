"""The bare step of sharded tables beside TorchRec's and fbgemm's: lookup, gradients, row-wise Adagrad.

python -m pip install --no-deps --target build/torchrec torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 tensordict tqdm \
    pyre-extensions torchmetrics pyvers typing-inspect
PYTHONPATH=build/torchrec python -m benchmarks.torchrec_step

One table of 4 million rows of 16 numbers, 39 fields, batches of 1,024 rows a process, random ids; the same rows and the
same gradient for all. No network reads the rows. With one process fbgemm's own operator stands for TorchRec. Contenders
take turns; seconds are medians of process 0. TorchRec has one collection for bags, here of one id each, and another
for single ids.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.processes import FIELDS, started
from fieldwise.distributed.meeting import joined
from fieldwise.distributed.place import Place
from fieldwise.distributed.world import World
from fieldwise.layers.shards import Shards
from fieldwise.ops.rows import gather_rows
from fieldwise.runs.environment import environment
from fieldwise.training.optimizer_kinds import OPTIMIZERS
from fieldwise.training.optimizers import LazyTables

ROWS, DIM, PART, WARM = 4_000_000, 16, 1_024, 3
RATE = 0.05
Steps = Callable[[Tensor], object]  # a step on ids [PART, FIELDS]


def fieldwise_step(world: World | None) -> Steps:
    """Ours: `Shards` among several processes, the plain lookup in one."""
    shards = None if world is None else Shards(world)
    own = ROWS if world is None else len(range(world.rank, ROWS, world.size))
    table = nn.Parameter(torch.zeros(own, DIM).normal_(std=0.01))
    optimizer = LazyTables([(table, 0.0)], OPTIMIZERS["rowwise_adagrad"].rows, lr=RATE)  # type: ignore[arg-type]
    grad = torch.full((PART, FIELDS, DIM), 1e-3)

    def step(ids: Tensor) -> None:
        table.grad = None
        rows = gather_rows(table, ids, sparse=True) if shards is None else shards.rows(table, ids, ROWS)
        rows.backward(grad)
        optimizer.step()

    return step


def torchrec_step(*, pooled: bool) -> Steps:
    """TorchRec's collection of tables, sharded by rows; the update is fused into the gradient."""
    from torchrec import (
        EmbeddingBagCollection,
        EmbeddingBagConfig,
        EmbeddingCollection,
        EmbeddingConfig,
        KeyedJaggedTensor,
    )
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    cpu, names, size = torch.device("cpu"), [f"f{k}" for k in range(FIELDS)], dist.get_world_size()
    given = {"name": "table", "embedding_dim": DIM, "num_embeddings": ROWS, "feature_names": names}
    if pooled:
        whole = EmbeddingBagCollection(tables=[EmbeddingBagConfig(**given)], device=cpu)
        sharder = EmbeddingBagCollectionSharder()
    else:
        whole = EmbeddingCollection(tables=[EmbeddingConfig(**given)], device=cpu)
        sharder = EmbeddingCollectionSharder()
    apply_optimizer_in_backward(RowWiseAdagrad, whole.parameters(), {"lr": RATE})
    plan = construct_module_sharding_plan(
        whole, {"table": row_wise()}, sharder=sharder, local_size=size, world_size=size, device_type="cpu"
    )
    sharded = sharder.shard(whole, plan, ShardingEnv.from_process_group(dist.group.WORLD), cpu)
    lengths, grad = torch.ones(FIELDS * PART, dtype=torch.int32), torch.full((FIELDS * PART, DIM), 1e-3)

    def step(ids: Tensor) -> None:
        features = KeyedJaggedTensor(names, ids.t().reshape(-1).long(), lengths=lengths)
        found = sharded(features).wait()
        rows = found.values() if pooled else torch.cat([found[name].values() for name in names])
        rows.backward(grad.view(rows.shape))

    return step


def fbgemm_step() -> Steps:
    """The operator below TorchRec, in one process."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        feature_table_map=[0] * FIELDS,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=RATE,
    )
    table.init_embedding_weights_uniform(-0.01, 0.01)
    offsets, grad = torch.arange(FIELDS * PART + 1), torch.full((PART, FIELDS * DIM), 1e-3)

    def step(ids: Tensor) -> None:
        table(ids.t().reshape(-1).long(), offsets).backward(grad)

    return step


def worker(rounds: int, steps: int) -> None:
    """Print the median seconds of each contender's steps in this process, in turns."""
    torch.set_num_threads(1)
    with joined(Place.of()) as world:
        contenders = {"fieldwise": fieldwise_step(world)}
        contenders |= (
            {"fbgemm": fbgemm_step()}
            if world is None
            else {
                "TorchRec, bags": torchrec_step(pooled=True),
                "TorchRec, single ids": torchrec_step(pooled=False),
            }
        )
        draws = torch.Generator().manual_seed(0 if world is None else world.rank)
        ids = [torch.randint(0, ROWS, (PART, FIELDS), generator=draws, dtype=torch.int32) for _ in range(steps)]
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(rounds + 1):
            for name, step in contenders.items():
                found = [_seconds(step, one) for one in ids]
                seconds[name] += found[WARM:] if turn else []
        if world is None or world.first:
            print(json.dumps({name: statistics.median(found) for name, found in seconds.items()}))


def _seconds(step: Steps, ids: Tensor) -> float:
    began = time.perf_counter()
    step(ids)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if absent := [name for name in ("torchrec", "fbgemm_gpu") if importlib.util.find_spec(name) is None]:
        sys.exit(f"this comparison needs {' and '.join(absent)}, not installed here: see --help")
    if asked.worker:
        worker(asked.rounds, asked.steps)
        return
    about = environment()
    print(f"{about['date']}, {about['machine']}, torch {about['torch']}, {about['commit']}")
    print("| processes | fieldwise, ms | other | ms | fieldwise / other |\n|---:|---:|---|---:|---:|")
    rest = ["--worker", "--rounds", str(asked.rounds), "--steps", str(asked.steps)]
    for processes in asked.processes:
        found = started("benchmarks.torchrec_step", processes, *rest)
        own = found.pop("fieldwise")
        for name, other in found.items():
            print(f"| {processes} | {1e3 * own:.1f} | {name} | {1e3 * other:.1f} | {own / other:.2f} |", flush=True)


if __name__ == "__main__":
    main()
