"""Trainings that tests/distributed run in one process and in several."""

import dataclasses
import hashlib
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from ids import ITEM, USER

from fieldwise import Bag, Categorical, Label, Numeric, Schema
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import current_group
from fieldwise.models import AFM, DAT, FM, AutoIntPlus, DeepFM, IntTower
from fieldwise.models.build import build_network
from fieldwise.training import checkpoint
from fieldwise.training.callbacks import Callback, TrainingStep
from fieldwise.training.checkpoint import CheckpointFolder, Checkpoints
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

ROWS, TRAINED = 422, 322  # in batches of 40: the last has two rows, and one of three processes none
EVEN = 46  # seven batches of equal size: batch normalization over two rows would amplify the rounding of float32
LAZY = {"optimizer": "rowwise_adagrad", "learning_rate": 0.1}
ALL = {
    "unknown_share": 1.0,
    "l2": {"embedding.weight": 0.02, "*": 0.001},
    "l2_rows": "touched",
    "clip_norm": 0.3,
    "average": 0.9,
}
MODELS = {
    "fm": FM(embedding_dim=4, embedding_std=0.3),
    "afm": AFM(embedding_dim=4, attention_dim=3, embedding_std=0.3, dropout=0.0),
    "autoint+": AutoIntPlus(embedding_dim=4, embedding_std=0.3, layers=2, attention_dim=4, hidden=(8,)),
    "inttower": IntTower(
        embedding_dim=4, embedding_std=0.3, hidden=(8, 4), user_heads=2, item_heads=2, head_dim=3, dropout=0.0
    ),
}
OTHERS = {
    "deepfm": DeepFM(embedding_dim=4, embedding_std=0.3, hidden=(8, 4), batch_norm=True, mlp_dropout=0.0),
    "dat": DAT(
        embedding_dim=4, embedding_std=0.3, hidden=(8,), output_dim=4, category="genre", user_id="user", item_id="item"
    ),
}


class Stopped(Exception):  # noqa: N818  # stands for a kill
    pass


class Losses(Callback):
    """Keeps the loss of every step, and breaks off after one."""

    def __init__(self, stop: int = -1) -> None:
        self.found: list[float] = []
        self.stop = stop

    def on_step(self, step: TrainingStep) -> None:
        assert step.rows in (40, 2, EVEN), "the batch's rows, not the process's"
        self.found.append(step.loss.item())
        if len(self.found) == self.stop:
            raise Stopped


def tables(kind: type = np.float32) -> tuple[EncodedTable, EncodedTable]:
    """Training rows with weights, and validation rows: ids, a number and a bag whose effects the label shows."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 12, ROWS), rng.integers(0, 9, ROWS)
    price = rng.random(ROWS)
    tags = [rng.integers(0, 6, n).tolist() for n in rng.integers(0, 4, ROWS)]
    effect = np.linspace(-2, 2, 12)[user] + np.linspace(2, -2, 9)[item] + price
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-effect))).astype(np.float32)
    frame = pl.DataFrame({"user": user, "item": item, "genre": item % 3, "price": price, "tags": tags})
    schema = Schema(
        fields=(USER, Bag("tags", role="user"), ITEM, Categorical("genre", role="item"), Numeric("price", role="item")),
        label=Label("y"),
    )
    encoder = Encoder.fit(frame[:TRAINED], schema)
    train = encoder.transform(frame[:TRAINED], y=y[:TRAINED])
    weight = rng.gamma(2.0, size=TRAINED)
    train = dataclasses.replace(train, weight=weight.astype(np.float32))
    return as_kind(train, kind), as_kind(encoder.transform(frame[TRAINED:], y=y[TRAINED:]), kind)


def as_kind(table: EncodedTable, kind: type) -> EncodedTable:
    assert table.y is not None
    return dataclasses.replace(table, values=table.values.astype(kind), y=table.y.astype(kind))


def trained(
    model: Any,
    kind: type = np.float32,
    kept: Checkpoints | None = None,
    stop: int = -1,
    *,
    fixed: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """The losses of every step, the best evaluation, the last weights' sums, and a digest of the best weights.

    With `stop` the run is broken off after that step of this call, as by a kill; with `fixed`, biases before batch
    normalization stay 0.
    """
    train, valid = tables(kind)
    network = build_network(model, train.layout, 1)
    if fixed:
        fix_biases(network)
    if kind is np.float64:
        network.double()
    progress = Losses(stop)
    given = TrainingSettings(**{"batch_size": 40, "epochs": 2, "learning_rate": 0.02, **settings})
    of = {"network": network, "train": train, "valid": valid, "settings": given, "objective": Objective(), "seed": 1}
    try:
        result = Training(**of, callbacks=[progress], checkpoints=kept).run()
    except Stopped:
        return {"losses": progress.found}
    state = network.state_dict()
    return {
        "losses": progress.found,
        "metrics": result.best.metrics,
        "weights": {name: value.double().norm().item() for name, value in state.items()},
        "digest": hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest(),
    }


def fix_biases(network: torch.nn.Module) -> None:
    """Train no bias whose effect batch normalization takes away: its gradient is rounding alone."""
    for layers in (m for m in network.modules() if isinstance(m, torch.nn.Sequential)):
        for layer, after in pairwise(layers):
            if isinstance(layer, torch.nn.Linear) and isinstance(after, torch.nn.BatchNorm1d):
                layer.bias.requires_grad_(False)


def single(_: int) -> dict[str, Any]:
    """Trainings in float32: the models as they are, with lazy updates, and one with all settings."""
    results = {name: trained(model, batch_size=EVEN) for name, model in MODELS.items()}
    results |= {f"{name} lazy": trained(model, **LAZY, batch_size=EVEN) for name, model in MODELS.items()}
    results["tower with fixed biases"] = trained(MODELS["inttower"], batch_size=EVEN, fixed=True)
    return results | {"fm all": trained(MODELS["fm"], **ALL)}


def double(_: int) -> dict[str, Any]:
    """Trainings in float64, the other models too. Adam would show DAT's rounding errors, divided by its small eps."""
    results = {name: trained(model, np.float64) for name, model in MODELS.items()}
    results |= {f"{name} lazy": trained(MODELS[name], np.float64, **LAZY) for name in ("fm", "inttower")}
    results |= {name: trained(model, np.float64, optimizer="sgd", learning_rate=0.3) for name, model in OTHERS.items()}
    return results | {"fm all": trained(MODELS["fm"], np.float64, **ALL)}


def resumed(stop: int, name: str = "resumed") -> dict[str, Any]:
    """A training that begins, or goes on where an earlier one was, and is broken off."""
    checkpoint.MOST_WAITING, group = float("inf"), current_group()
    place = CheckpointFolder(folder=Path(os.environ["CHECKPOINTS"]) / name)
    kept = Checkpoints(place=place, name="first", minutes=1e-9, about=dict)
    mine = kept if group is None or group.rank == 0 else None
    return trained(MODELS["fm"], np.float64, mine, stop, **LAZY, average=0.9, clip_norm=0.5)


def unbroken(_: int) -> dict[str, Any]:
    return resumed(-1, "unbroken")


def begun(_: int) -> dict[str, Any]:
    return resumed(5)


def gone_on(_: int) -> dict[str, Any]:
    return resumed(6)


def ended(_: int) -> dict[str, Any]:
    return resumed(-1)
