"""One training step of an FM over a large vocabulary: forward, backward, update."""

import gc
import itertools
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.case import Timed
from benchmarks.contenders.fieldwise_log import known_settings, table
from benchmarks.log import Log
from fieldwise.models.build import build_network, model_from_dict
from fieldwise.training.callbacks import Callback, TrainingStep
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective

DIM = 16


def random_rows(vocabulary: int, rows: int, fields: int) -> Log:
    """Categories with frequencies proportional to 1 / rank, so that most of a large vocabulary is rare."""
    rng = np.random.default_rng(0)
    size = max(2, vocabulary // fields)
    rank = np.exp(rng.random((rows, fields)) * np.log(size)).astype(np.int64) - 1
    ids = (rank * 7_919 % size).astype(np.int32)
    y = (rng.random(rows) < 0.3).astype(np.float32)
    y[:2] = 0.0, 1.0
    return Log((size,) * fields, ids, y, ids[:0], y[:0], "")


class Clock(Callback):
    """When each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, step: TrainingStep) -> None:
        self.times.append(time.perf_counter())


def fieldwise_step(log: Log, options: dict[str, Any]) -> float:
    """Median seconds of a step of `fit`, including batch assembly, without the first step, which creates state."""
    rows = table(log)
    settings = known_settings(
        {"batch_size": options["batch"], "epochs": 1, "monitor": "logloss", **options.get("training", {})}
    )
    network = build_network(model_from_dict({"name": "fm", "embedding_dim": DIM}), rows.layout, 0)
    clock, few = Clock(), table(log.first(256))
    fit(network, rows, few, settings=settings, objective=Objective(), seed=0, callbacks=[clock])
    return statistics.median(b - a for a, b in itertools.pairwise(clock.times))


class PlainFM(nn.Module):
    def __init__(self, rows: int, *, sparse: bool) -> None:
        super().__init__()
        self.vectors, self.weights = (nn.Embedding(rows, size, sparse=sparse) for size in (DIM, 1))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.vectors(ids)
        pairs = 0.5 * (x.sum(1).square() - x.square().sum(1)).sum(1)
        return self.weights(ids).sum((1, 2)) + pairs + self.bias


def torch_step(log: Log, options: dict[str, Any]) -> float:
    """The same model with PyTorch's dense fused Adam, or its SparseAdam (and Adam for the bias)."""
    torch.manual_seed(0)
    sparse = options["optimizer"] == "sparse"
    model = PlainFM(sum(log.sizes), sparse=sparse)
    tables = [model.vectors.weight, model.weights.weight]
    optimizers: list[torch.optim.Optimizer]
    if sparse:
        optimizers = [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam([model.bias], lr=1e-3)]
    else:
        optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)]
    ids, y = torch.from_numpy((log.ids + log.offsets).astype(np.int64)), torch.from_numpy(log.y)
    loss_of, times = nn.BCEWithLogitsLoss(), []
    for chosen in torch.randperm(len(y)).split(options["batch"]):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model(ids[chosen]), y[chosen]).backward()
        for optimizer in optimizers:
            optimizer.step()
        times.append(time.perf_counter())
    return statistics.median(b - a for a, b in itertools.pairwise(times))


STEPS = {"fieldwise": fieldwise_step, "torch": torch_step}


def step(options: dict[str, Any]) -> Timed:
    """A turn makes a new model and optimizer and takes some steps, for each size of the vocabulary."""
    work, vocabularies = STEPS[options["with"]], options["vocabularies"]

    def turn() -> dict[str, float]:
        found = {}
        for vocabulary in vocabularies:
            log = random_rows(vocabulary, options["batch"] * options["steps"], options["fields"])
            found[f"{vocabulary}"] = work(log, options)
            gc.collect()
        return found if len(found) > 1 else {"seconds": next(iter(found.values()))}

    if options["with"] == "fieldwise":
        known_settings(options.get("training", {}))  # not first within a turn
    return turn, {}
