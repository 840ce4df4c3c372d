"""Trainings and exchanges that tests/distributed run in one process and in several, by `ranks.in_processes`."""

import dataclasses
import hashlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from ids import ITEM, USER

from fieldwise import (
    AFM,
    DAT,
    FM,
    AutoIntPlus,
    Bag,
    Callback,
    Categorical,
    ConfigError,
    DeepFM,
    Encoder,
    IntTower,
    Label,
    Numeric,
    Schema,
    TrainingSettings,
)
from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import ProcessGroup, current_group, explaining_lost_process
from fieldwise.errors import LostProcessError
from fieldwise.layers.batch_norm import GlobalBatchNorm, normalize_over_processes
from fieldwise.models.build import build_network
from fieldwise.training import checkpoint
from fieldwise.training.callbacks import TrainingStep
from fieldwise.training.checkpoint import CheckpointFolder, Checkpoints, check_same_on_all_ranks
from fieldwise.training.fit import Training
from fieldwise.training.history import Evaluation
from fieldwise.training.objective import Objective

ROWS, TRAINED = 422, 322  # in batches of 40: the last has two rows, and one of three processes none
LAZY = {"optimizer": "rowwise_adagrad", "learning_rate": 0.1}
ALL = {
    "unknown_share": 1.0, "l2": {"embedding.weight": 0.02, "*": 0.001}, "l2_rows": "touched", "clip_norm": 0.3,
    "average": 0.9,
}  # fmt: skip
SPREAD = {"embedding_update": "lazy", "l2": {"*embedding.weight": 0.02}, "unknown_share": 1.0}
MODELS = {
    "fm": FM(embedding_dim=4, embedding_std=0.3),
    "afm": AFM(embedding_dim=4, attention_dim=3, embedding_std=0.3, dropout=0.0),
    "autoint+": AutoIntPlus(
        embedding_dim=4, embedding_std=0.3, layers=2, attention_dim=4, hidden=(8,)
    ),
    "inttower": IntTower(
        embedding_dim=4,
        embedding_std=0.3,
        hidden=(8, 4),
        user_heads=2,
        item_heads=2,
        head_dim=3,
        dropout=0.0,
    ),
}
OTHERS = {
    "deepfm": DeepFM(
        embedding_dim=4, embedding_std=0.3, hidden=(8, 4), batch_norm=True, mlp_dropout=0.0
    ),
    "dat": DAT(
        embedding_dim=4,
        embedding_std=0.3,
        hidden=(8,),
        output_dim=4,
        category="genre",
        user_id="user",
        item_id="item",
    ),
}


class Stopped(Exception):  # noqa: N818  # stands for a kill
    pass


class Losses(Callback):
    """Keeps the loss of every step, and breaks off after one."""

    def __init__(self, stop: int = -1, *, known_sizes: bool = True) -> None:
        self.found: list[float] = []
        self.known_sizes = known_sizes  # not of batches of whole groups
        self.stop = stop

    def on_step(self, step: TrainingStep) -> None:
        if step.rows == 0:  # of the LR before, of which several processes do not tell
            return
        if self.known_sizes:
            assert step.rows in (40, 2), "the batch's rows, not the process's"
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
    frame = pl.DataFrame(
        {"user": user, "item": item, "genre": item % 3, "price": price, "tags": tags}
    )
    schema = Schema(
        fields=(
            USER,
            Bag("tags", role="user"),
            ITEM,
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


def trained(
    model: Any,
    kind: type = np.float32,
    kept: Checkpoints | None = None,
    stop: int = -1,
    **settings: Any,
) -> dict[str, Any]:
    """The losses of every step, the best evaluation, the last weights' sums, and a digest of the best weights.

    With `stop` the run is broken off after that step of this call, as by a kill.
    """
    train, valid = tables(kind)
    network = build_network(model, train.layout, 1)
    if kind is np.float64:
        network.double()
    progress = Losses(stop, known_sizes="loss" not in settings)
    given = TrainingSettings(**{"batch_size": 40, "epochs": 2, "learning_rate": 0.02, **settings})
    of = {
        "network": network,
        "train": train,
        "valid": valid,
        "settings": given,
        "objective": Objective(),
        "train_group": train.ids[:, 0] * 1000 + train.ids[:, 1],
        "valid_group": valid.ids[:, 0],
        "seed": 1,
    }
    try:
        result = Training(**of, callbacks=[progress], checkpoints=kept).run()
    except Stopped:
        return {"losses": progress.found}
    state = network.state_dict()
    return {
        "losses": progress.found,
        "metrics": result.best.metrics,
        "weights": {name: value.double().norm().item() for name, value in state.items()},
        "digest": hashlib.sha256(
            b"".join(value.numpy().tobytes() for value in state.values())
        ).hexdigest(),
    }


EPOCH = {"epochs": 1}


def single(_: int) -> dict[str, Any]:
    """Trainings in float32, whose operations are native ones."""
    results = {name: trained(MODELS[name], **EPOCH) for name in ("fm", "afm")}
    results |= {f"{name} lazy": trained(MODELS[name], **LAZY, **EPOCH) for name in ("fm", "afm")}
    results["fm from lr"] = trained(MODELS["fm"], start_from_lr=True, l2_of_lr=0.01, **EPOCH)
    return results | {"fm all": trained(MODELS["fm"], **ALL, **EPOCH)}


def double(_: int) -> dict[str, Any]:
    """Trainings in float64, the other models too. Adam would show DAT's rounding errors, divided by its small eps."""
    results = {name: trained(model, np.float64, **EPOCH) for name, model in MODELS.items()}
    results |= {
        f"{name} lazy": trained(MODELS[name], np.float64, **LAZY, **EPOCH)
        for name in ("fm", "inttower")
    }
    sgd = {"optimizer": "sgd", "learning_rate": 0.3, **EPOCH}
    results |= {name: trained(model, np.float64, **sgd) for name, model in OTHERS.items()}
    for loss in ("pairwise", "listwise", "combined"):
        results[f"fm {loss}"] = trained(MODELS["fm"], np.float64, loss=loss, **EPOCH)
    results["fm spread"] = trained(MODELS["fm"], np.float64, **SPREAD, **EPOCH)
    return results | {"fm all": trained(MODELS["fm"], np.float64, **ALL, **EPOCH)}


def resumed(stop: int, name: str, _: int) -> dict[str, Any]:
    """A training that begins, or goes on where an earlier one was, and is broken off."""
    checkpoint.MOST_WAITING, group = float("inf"), current_group()
    unfinished = CheckpointFolder(folder=Path(os.environ["CHECKPOINTS"]) / name)
    kept = Checkpoints(unfinished=unfinished, name="first", minutes=1e-9, about=dict)
    mine = kept if group is None or group.rank == 0 else None
    return trained(MODELS["fm"], np.float64, mine, stop, **LAZY, average=0.9, clip_norm=0.5)


unbroken = partial(resumed, -1, "unbroken")
begun, gone_on, ended = (
    partial(resumed, 5, "resumed"),
    partial(resumed, 6, "resumed"),
    partial(resumed, -1, "resumed"),
)


# what processes exchange, and how one's failure reaches the others


def _group() -> ProcessGroup:
    group = current_group()
    assert group is not None
    return group


def _found(call) -> str:
    """The sentence that a process ends with."""
    try:
        with explaining_lost_process(_group().size):
            call()
    except (LostProcessError, ConfigError) as e:
        return str(e)
    return ""


def killed(rank: int) -> str:
    """The last process is killed between two steps."""
    group = _group()
    dist.all_reduce(torch.ones(3))
    if rank == group.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _found(lambda: [dist.all_reduce(torch.ones(3)) for _ in range(3)])


def different(rank: int) -> str:
    """Process 1 has another learning rate and other rows."""
    facts = {
        "training": {"learning_rate": 0.01 if rank == 1 else 0.001},
        "training rows": f"rows2:{rank == 1}",
    }
    return _found(lambda: check_same_on_all_ranks(_group(), facts))


def unsuitable(_: int) -> str:
    """A layer that normalizes over the rows that it is given."""
    network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm2d(3))
    return _found(lambda: normalize_over_processes(network))


def half(rank: int) -> list:
    """Rows of 16 bits, whose statistics are not."""
    layer = GlobalBatchNorm(1).train()
    result = layer(torch.full((2, 1), float(rank), dtype=torch.bfloat16))
    return [str(result.dtype), layer.running_mean.item()]


class _Late(Callback):
    """Counts steps, and gets Ctrl-C in an evaluation in one process."""

    def __init__(self, rank: int) -> None:
        self.rank, self.steps = rank, 0

    def on_step(self, step: TrainingStep) -> None:
        self.steps += 1

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)


def interrupted_late(rank: int) -> list:
    """Two trainings one after another, as with `refit`; the first one's last evaluation is interrupted."""
    train, valid = tables()
    settings = TrainingSettings(epochs=1, batch_size=40)

    def run(callback: Callback, repeats: Any = None) -> Any:
        network = FM(embedding_dim=2).build(train.layout)
        given = {
            "network": network,
            "train": train,
            "valid": valid,
            "settings": settings,
            "seed": 0,
            "repeats": repeats,
        }
        return Training(**given, objective=Objective(), callbacks=[callback]).run()

    first, again, how = run(_Late(rank)), _Late(-1), "whole"
    try:
        run(again, first)  # as long as the first
    except KeyboardInterrupt:
        how = "interrupted"
    return [first.stopped, how, again.steps]


def exchanged(rank: int) -> list:
    """Values, rows of different number, and a place where one process of the machine goes first."""
    group = _group()
    with group.first("order", on_machine=True):
        seen = dist.distributed_c10d._get_default_store().add("order", 1)
    rows = torch.full((rank, 2), float(rank))
    lengths = group.all_gather(torch.tensor(rank)).tolist()
    return [
        group.all_gather_object([rank] * rank),
        group.all_gather_v(rows, lengths).tolist(),
        seen if rank == 0 else None,
    ]
