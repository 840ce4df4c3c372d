"""IntTower by fieldwise: the steps of an epoch on encoded rows."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.case import Timed
from benchmarks.contenders.fieldwise_log import known_settings
from benchmarks.device import device_of, watched
from benchmarks.timing import steps_to_time
from fieldwise.data.table import EncodedTable
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network, model_from_dict
from fieldwise.ops import use_ops
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective

__all__ = ["epoch", "first_rows"]


def first_rows(table: EncodedTable, rows: int) -> EncodedTable:
    """The table's first rows alone."""
    assert table.y is not None
    bags = len(table.layout.positions(kind="bag"))
    offsets = table.bag_offsets[: rows * bags + 1]
    return EncodedTable(
        table.layout, table.ids[:rows], table.values[:rows], table.bag_ids[: offsets[-1]], offsets, table.y[:rows]
    )


def epoch(options: dict[str, Any]) -> Timed:
    """The steps of `fit`, batch assembly and shuffling included."""
    table = EncodedTable.open(Path(options["table"]))
    rows, share = steps_to_time(len(table), options["batch"], options["steps"])
    train, few = first_rows(table, rows), first_rows(table, min(256, rows))
    wanted = {"batch_size": options["batch"], "epochs": 1, "monitor": "logloss", **options.get("training", {})}
    settings = known_settings(wanted)
    network = build_network(model_from_dict(options["model"]), table.layout, 0)
    torch.manual_seed(0)
    device = device_of(options)

    def turn() -> dict[str, float]:
        with use_ops(options.get("ops", "auto")):
            result = fit(network, train, few, settings=settings, objective=Objective(), seed=0)
        assert result.seconds_per_epoch is not None
        return {"seconds": result.seconds_per_epoch * share}

    return watched(turn, device), {"parameters": parameter_count(network), "timed rows": rows}
