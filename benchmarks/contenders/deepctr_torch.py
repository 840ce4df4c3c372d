"""DeepCTR-Torch 0.3.0: its AFM, trained as its `fit` does."""

import sys
import time
from types import ModuleType
from typing import Any

import torch

from benchmarks.case import Timed, steps_to_time
from benchmarks.log import Log

# with the real one the package asks a registry for its newest version
sys.modules["requests"] = ModuleType("requests")
from deepctr_torch.inputs import SparseFeat  # noqa: E402
from deepctr_torch.models import AFM  # noqa: E402

del sys.modules["requests"]


def build(log: Log, settings: dict[str, Any]) -> AFM:
    """Its AFM without penalties, like every contender here; the library keeps ids as float32."""
    columns = [
        SparseFeat(f"f{f}", vocabulary_size=size, embedding_dim=settings["embedding_dim"])
        for f, size in enumerate(log.sizes)
    ]
    none = {"l2_reg_linear": 0, "l2_reg_embedding": 0, "l2_reg_att": 0}
    model = AFM(columns, columns, attention_factor=settings["attention_dim"], init_std=0.01, **none)
    model.compile("adam", "binary_crossentropy")
    return model


def epoch(options: dict[str, Any]) -> Timed:
    """The steps of its `fit` on batches prepared in memory."""
    log = Log.open(options["log"])
    rows, share = steps_to_time(len(log.y), options["batch"], options.get("steps"))
    model = build(log, options["settings"])
    x = torch.from_numpy(log.ids[:rows])
    y = torch.from_numpy(log.y[:rows])
    size = options["batch"]
    batches = [(x[start : start + size], y[start : start + size]) for start in range(0, rows, size)]

    def turn() -> dict[str, float]:
        began = time.perf_counter()
        model.train()
        for ids, target in batches:
            predicted = model(ids.float()).squeeze(-1)
            model.optim.zero_grad()
            loss = model.loss_func(predicted, target.float(), reduction="sum")
            total = loss + model.get_regularization_loss() + model.aux_loss
            loss.item()
            total.item()
            total.backward()
            model.optim.step()
        return {"seconds": (time.perf_counter() - began) * share}

    return turn, {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "timed rows": rows,
    }
