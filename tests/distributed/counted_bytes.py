"""What steps give to collectives, counted by a process: run by `ranks.in_processes`."""

from dataclasses import replace
from typing import Any

import torch
from benchmarks.processes import FIELDS, SHARED_OUT, Case, counted, layout_of, random_table

from fieldwise.data.windows import ShuffledRows
from fieldwise.distributed.world import current
from fieldwise.layers.shards import Shards, building_shards
from fieldwise.models import AFM, FM, AutoIntPlus, IntTower
from fieldwise.models.build import build_network
from fieldwise.training.objective import Objective
from fieldwise.training.reached import Reached
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.step import Step

VALUES, BATCH = 4, 256  # each process's part has every value of every field, so that all ids are known
MODELS = {
    "fm": FM(embedding_dim=4),
    "afm": AFM(embedding_dim=4, attention_dim=3),
    "autoint+": AutoIntPlus(embedding_dim=4, layers=1, attention_dim=4, hidden=(6,)),
    "inttower": IntTower(embedding_dim=4, hidden=(6, 5), user_heads=2, item_heads=2, head_dim=3),
}
CASES = {name: Case(model=model, values=VALUES, batch=BATCH, settings=SHARED_OUT) for name, model in MODELS.items()}
EVERY = CASES | {
    f"{name} replicated": replace(case, settings={**SHARED_OUT, "tables": "replicated"}) for name, case in CASES.items()
}


def steps(_: int) -> dict[str, Any]:
    """Each case's collectives in one step, as between machines."""
    world = current()
    assert world is not None
    with replace(world, near=None).active():
        return {name: _one(case) for name, case in EVERY.items()}


def _one(case: Case) -> list[tuple[str, int]]:
    world, layout = current(), layout_of(VALUES)
    assert world is not None
    table = random_table(layout, BATCH)
    assert len({*table.ids[:, 0]}) == VALUES
    settings = TrainingSettings(batch_size=BATCH, **case.settings)
    with building_shards(Shards(world) if settings.tables == "sharded" else None):
        network = build_network(case.model, layout, 0).train()
    step = Step(network, table, settings, Objective(), 0)
    rows = ShuffledRows(table=table, size=BATCH, window=BATCH, seed=0, part=world.part)
    (batch, y, weight), *others = rows.epoch(1, 0, torch.Generator().manual_seed(0))
    assert not others
    assert batch.ids.shape == (BATCH // world.size, FIELDS)
    step.begin(Reached(epoch=1), batch.size, BATCH)
    with counted() as found:
        step(batch, y, weight)
    return found
