"""torch-rechub 0.9: its AutoInt. Its AFM is no peer: it takes the softmax over an axis of one, so all weights are 1."""

import time
from typing import Any

import torch
from torch_rechub.basic.features import SparseFeature
from torch_rechub.models.ranking import AutoInt
from torch_rechub.trainers import CTRTrainer

from benchmarks.case import Timed
from benchmarks.log import Log
from benchmarks.scaling import steps_to_time


def epoch(options: dict[str, Any]) -> Timed:
    """Its trainer's steps on batches that lie ready in memory: its loader is left out of its time."""
    log = Log.open(options["log"])
    rows, share = steps_to_time(len(log.y), options["batch"], options.get("steps"))
    torch.manual_seed(0)
    settings = options["settings"]
    fields = [SparseFeature(f"f{f}", n, embed_dim=settings["embedding_dim"]) for f, n in enumerate(log.sizes)]
    model = AutoInt(fields, [], num_layers=settings["layers"], num_heads=settings["heads"])
    trainer = CTRTrainer(model, optimizer_params={"lr": 1e-3, "weight_decay": 0})
    x, y, size = torch.from_numpy(log.ids[:rows]).long(), torch.from_numpy(log.y[:rows]), options["batch"]
    batches = [
        ({f"f{f}": x[start : start + size, f].contiguous() for f in range(x.shape[1])}, y[start : start + size])
        for start in range(0, rows, size)
    ]

    def turn() -> dict[str, float]:
        began = time.perf_counter()
        trainer.train_one_epoch(batches)
        return {"seconds": (time.perf_counter() - began) * share}

    return turn, {"parameters": sum(p.numel() for p in model.parameters()), "timed rows": rows}
