"""What processes find when another one fails: run by `ranks.in_processes`."""

import os
import signal

import torch
import torch.distributed as dist
from distributed.shared_runs import tables

from fieldwise.distributed.process_group import ProcessGroup, current_group, explained_loss
from fieldwise.errors import ConfigError, LostProcessError
from fieldwise.layers.batch_norm import GlobalBatchNorm, normalize_over_processes
from fieldwise.models import FM
from fieldwise.training.callbacks import Callback, TrainingStep
from fieldwise.training.checkpoint import check_same_on_all_ranks
from fieldwise.training.fit import Training
from fieldwise.training.history import Evaluation
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings


def _group() -> ProcessGroup:
    group = current_group()
    assert group is not None
    return group


def _found(call) -> str:
    """The sentence that a process ends with."""
    try:
        with explained_loss(_group().size):
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
    facts = {"training": {"learning_rate": 0.01 if rank == 1 else 0.001}, "training rows": f"rows2:{rank == 1}"}
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
    given = {"train": train, "settings": settings, "objective": Objective(), "seed": 0}
    first = Training(
        network=FM(embedding_dim=2).build(train.layout), valid=valid, callbacks=[_Late(rank)], **given
    ).run()
    again, how = _Late(-1), "whole"
    try:
        Training(network=FM(embedding_dim=2).build(train.layout), valid=first, callbacks=[again], **given).run()
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
