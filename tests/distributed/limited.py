"""A training that needs more memory than a process may have: run by `ranks.in_processes`."""

import resource
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.world import current
from fieldwise.layers.shards import Shards, building_shards
from fieldwise.layout import Layout
from fieldwise.models import FM
from fieldwise.models.build import build_network
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

VALUES, DIM, ROWS = 1 << 20, 32, 64
TABLE = 2 * VALUES * DIM * 4  # bytes: 256 MiB
GIVEN = 1.25  # times these: one process needs them twice, for its weights and the best so far, each of two half of that


def memory() -> int:
    """Bytes of private memory that this process has reserved, as RLIMIT_DATA counts them."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmData"].split()[0]) * 1024


def trained(_: int) -> dict[str, Any] | str:
    """Rows of the table that are here and the training's loss; or what failed."""
    layout, draws = Layout.of_sizes([VALUES, VALUES]), np.random.default_rng(0)
    ids = draws.integers(0, VALUES, (ROWS, 2)).astype(np.int32) + np.array([0, VALUES], np.int32)
    y = (ids[:, 0] % 2).astype(np.float32)
    table = EncodedTable(
        layout, ids, np.zeros((ROWS, 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64), y=y
    )
    settings = TrainingSettings(
        batch_size=ROWS // 2, epochs=1, optimizer="rowwise_adagrad", learning_rate=0.5, tables="sharded"
    )
    limit, world = memory() + int(GIVEN * TABLE), current()
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        with building_shards(None if world is None else Shards(world)):
            network = build_network(FM(embedding_dim=DIM), layout, 0)
        of = {"network": network, "train": table, "valid": table, "settings": settings, "objective": Objective()}
        best = Training(**of, seed=0).run().best
    except (MemoryError, RuntimeError) as e:
        return str(e)
    return {"rows": len(network.embedding.weight), "loss": best.train_loss, "reserved": memory() <= limit}
