"""Trainings that tests/distributed run in one process and in several."""

import dataclasses
import hashlib
from typing import Any

import numpy as np
import polars as pl
import torch

from fieldwise import Bag, Categorical, Label, Numeric, Schema
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.table import EncodedTable
from fieldwise.models import AFM, DAT, FM, AutoIntPlus, DeepFM, IntTower
from fieldwise.models.build import build_network
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.progress import Silent
from fieldwise.training.settings import TrainingSettings

ROWS, TRAINED = 422, 322  # in batches of 40: the last has two rows, and one of three processes none
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


class Losses(Silent):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def step(self, rows: int, loss: torch.Tensor) -> None:
        assert rows in (40, 2), "the batch's rows, not the process's"
        self.found.append(loss.item())


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
        fields=(
            Categorical("user", role="user"),
            Bag("tags", role="user"),
            Categorical("item", role="item"),
            Categorical("genre", role="item"),
            Numeric("price", role="item"),
        ),
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


def trained(model: Any, kind: type = np.float32, **settings: Any) -> dict[str, Any]:
    """The losses of every step, the best evaluation, the last weights' sums, and a digest of the best weights."""
    train, valid = tables(kind)
    network = build_network(model, train.layout, 1)
    if kind is np.float64:
        network.double()
    progress = Losses()
    given = TrainingSettings(**{"batch_size": 40, "epochs": 2, "learning_rate": 0.02, **settings})
    result = Training(
        network=network, train=train, valid=valid, settings=given, objective=Objective(), seed=1, progress=progress
    ).run()
    state = network.state_dict()
    return {
        "losses": progress.found,
        "metrics": result.best.metrics,
        "weights": {name: value.double().norm().item() for name, value in state.items()},
        "digest": hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest(),
    }


def single(_: int) -> dict[str, Any]:
    """Trainings in float32: the models as they are, with lazy updates, and one with all settings."""
    found = {name: trained(model) for name, model in MODELS.items()}
    found |= {f"{name} lazy": trained(model, **LAZY) for name, model in MODELS.items()}
    return found | {"fm all": trained(MODELS["fm"], **ALL)}


def double(_: int) -> dict[str, Any]:
    """Trainings in float64, the other models too. Adam would show DAT's rounding errors, divided by its small eps."""
    found = {name: trained(model, np.float64) for name, model in MODELS.items()}
    found |= {f"{name} lazy": trained(MODELS[name], np.float64, **LAZY) for name in ("fm", "inttower")}
    found |= {name: trained(model, np.float64, optimizer="sgd", learning_rate=0.3) for name, model in OTHERS.items()}
    return found | {"fm all": trained(MODELS["fm"], np.float64, **ALL)}
