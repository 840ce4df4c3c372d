"""Callbacks of a training run: the one way to watch it, and to end it early."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from fieldwise.training.history import Evaluation, History

__all__ = ["Callback", "OutOfTime", "TrainingStart", "TrainingStep", "watched"]


class OutOfTime(Exception):  # noqa: N818  # not an error: like KeyboardInterrupt, it ends a run
    """Raised by a callback to end training with the best weights so far, when its time is over."""


@dataclass(frozen=True, kw_only=True)
class TrainingStart:
    """What is known when a run begins.

    Args:
        epochs: the largest number of epochs.
        steps: number of steps of an epoch.
        rows: number of training rows, which every epoch reads once.
        monitor: the metric for early stopping.
        steps_done: number of steps of a resumed run that were done before.
        rows_done: rows of its unfinished epoch that were read before.
        refit: whether this is the second training, on training and validation rows together, without evaluations.
        settings: settings of the model and the training, and the seed, as plain values.
    """

    epochs: int
    steps: int
    rows: int
    monitor: str
    steps_done: int = 0
    rows_done: int = 0
    refit: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


class TrainingStep(NamedTuple):
    """A step that was done.

    Args:
        number: its number in the run, from 1.
        epoch: the epoch, from 1.
        rows: number of its rows; 0 in a step of the regression that a run may start from (`linear_start`).
        loss: its mean loss, a scalar on the training's device; reading it waits for a GPU.
    """

    number: int
    epoch: int
    rows: int
    loss: Tensor


class Callback:
    """A callback of a training run; override the methods that you need.

    Give it to `Recommender.fit(..., callbacks=[...])` or `fieldwise.training.fit.Training`. Raise `OutOfTime` (or
    KeyboardInterrupt) in a method to end the run with the best weights so far. A run of several processes calls the
    callbacks of its main process only. With `training.refit` a second run follows.

    >>> from fieldwise import LR, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> class Losses(Callback):
    ...     def __init__(self) -> None:
    ...         self.losses: list[float] = []
    ...     def on_step(self, step: TrainingStep) -> None:
    ...         self.losses.append(step.loss.item())
    >>> losses, schema = Losses(), Schema(fields=(Categorical("user_id"),), label=Label("liked"))
    >>> settings = TrainingSettings(epochs=2, batch_size=100, patience=9)
    >>> model = Recommender(schema, LR(), training=settings).fit(simulate(1000), callbacks=[losses])
    >>> len(losses.losses)
    18
    """

    def on_start(self, start: TrainingStart) -> None:
        """Called before the first step."""

    def on_step(self, step: TrainingStep) -> None:
        """Called after every step, and at each step of an exact regression (`lbfgs`, `linear_start`), without rows."""

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after every evaluation on the validation rows; `better` if its weights are the best so far."""

    def on_end(self, result: History | None) -> None:
        """Called at the end of the run, with its result; None after an error."""


def watched(callbacks: Sequence[Callback], start: TrainingStart, work: Callable[[], History]) -> History:
    """The result of some work, of whose start and end callbacks are told.

    `on_end` of all of them is called, also after an error of one of them, which is then raised.
    """
    result: History | None = None

    def end(one: Callback) -> None:
        one.on_end(result)

    with contextlib.ExitStack() as ends:
        for one in reversed(callbacks):
            ends.callback(end, one)
        for one in callbacks:
            one.on_start(start)
        result = work()
    return result
