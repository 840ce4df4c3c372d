"""What a training run has reached, as one object that a checkpoint keeps."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fieldwise.config import to_plain
from fieldwise.ops.devices import CPU, device_of, get_rng_state, set_rng_state
from fieldwise.training.checkpoint import State
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.result import Evaluation

__all__ = ["Parts", "Reached", "captured", "copied_weights", "restore"]

Stopped = Literal["patience", "epochs", "interrupted", "time"]


@dataclass(kw_only=True)
class Reached:
    """What a run has reached between two steps, without weights, optimizer and generators.

    Args:
        epoch: number of epochs begun.
        step: steps done in the last of them.
        position: epochs done, with their fraction.
        evaluated: whether the evaluation after that step, if there is one, is done.
        order: state of the generator of row orders when the epoch began.
        history: all evaluations.
        best: the best evaluation and its weights.
        without_gain: evaluations since.
        losses: of the steps since the last evaluation.
        step_seconds: time in steps of each whole epoch.
        spent: time in steps of this epoch so far.
        started: `perf_counter` when the run began.
        stopped: what ended the run; None while it goes on.
    """

    epoch: int = 0
    step: int = 0
    position: float = 0.0
    evaluated: bool = True
    order: Tensor | None = None
    history: list[Evaluation] = field(default_factory=list)
    best: tuple[Evaluation, dict[str, Tensor]] | None = None
    without_gain: int = 0
    losses: list[Tensor] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    spent: float = 0.0
    started: float = field(default_factory=time.perf_counter)
    stopped: Stopped | None = None

    def begin_epoch(self, order: torch.Generator) -> None:
        """The next epoch begins."""
        self.epoch, self.step, self.evaluated, self.spent = self.epoch + 1, 0, True, 0.0
        self.order = order.get_state()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run changes with every step.

    Args:
        mean: averaged weights.
        draws: the generator of `ShowUnknown`.
    """

    network: nn.Module
    optimizer: RunOptimizer
    mean: AveragedModel | None
    draws: torch.Generator | None


def copied_weights(network: nn.Module) -> dict[str, Tensor]:
    """A network's weights and buffers, copied to the CPU."""
    return {name: value.detach().to(CPU, copy=True) for name, value in network.state_dict().items()}


def captured(reached: Reached, parts: Parts, *, copied: bool) -> State:
    """The state of a run, on the CPU; `copied` if its next steps are not to change it.

    PyTorch's global generators, which dropout uses, are part of it.
    """
    of, tensors = parts.optimizer.state_dict(), dict[str, Tensor]()
    for part, held in of.items():
        for number, state in held["state"].items():
            named = ((name, value) for name, value in state.items() if isinstance(value, Tensor))
            tensors |= {f"optimizer.{part}.{number}.{name}": value for name, value in named}
    tensors |= {f"network.{name}": value for name, value in parts.network.state_dict().items()}
    if parts.mean is not None:
        tensors |= {f"mean.{name}": value for name, value in parts.mean.state_dict().items()}
    tensors = {name: value.detach().to(CPU, copy=copied) for name, value in tensors.items()}
    if reached.best is not None:  # replaced as a whole, never changed
        tensors |= {f"best.{name}": value for name, value in reached.best[1].items()}
    if reached.losses:
        tensors["losses"] = torch.stack(reached.losses).to(CPU)
    if reached.order is not None:
        tensors["generator.order"] = reached.order
    if parts.draws is not None:
        tensors["generator.unknown"] = parts.draws.get_state()
    tensors["generator.global"] = torch.get_rng_state()
    if (state := get_rng_state(device_of(parts.network))) is not None:
        tensors["generator.device"] = state
    facts = {
        "epoch": reached.epoch,
        "step": reached.step,
        "position": reached.position,
        "evaluated": reached.evaluated,
        "without_gain": reached.without_gain,
        "step_seconds": list(reached.step_seconds),
        "spent": reached.spent,
        "seconds": time.perf_counter() - reached.started,
        "stopped": reached.stopped,
        "history": [to_plain(one) for one in reached.history],
        "best": None if reached.best is None else reached.history.index(reached.best[0]),
        "rates": [group["lr"] for group in parts.optimizer.param_groups],
    }
    return State(facts=facts, tensors=tensors)


def restore(state: State, parts: Parts, order: torch.Generator) -> Reached:
    """Set a run's parts and generators to a state; returns what the run had reached.

    Errors:
        LookupError, RuntimeError, TypeError, ValueError: the state is not one of this run.
    """
    facts, tensors = state.facts, state.tensors
    parts.network.load_state_dict(_below(tensors, "network"))
    if parts.mean is not None:
        parts.mean.load_state_dict(_below(tensors, "mean"))
    _restore_optimizer(parts.optimizer, tensors, facts["rates"])
    if parts.draws is not None:
        parts.draws.set_state(tensors["generator.unknown"])
    torch.set_rng_state(tensors["generator.global"])
    device = device_of(parts.network)
    set_rng_state(device, tensors.get("generator.device"))
    history = [Evaluation(**one) for one in facts["history"]]
    reached = Reached(
        history=history,
        best=None if facts["best"] is None else (history[facts["best"]], _below(tensors, "best")),
        losses=list(tensors["losses"].to(device)) if "losses" in tensors else [],
        order=tensors.get("generator.order"),
        started=time.perf_counter() - facts["seconds"],
        epoch=int(facts["epoch"]),
        step=int(facts["step"]),
        without_gain=int(facts["without_gain"]),
        position=float(facts["position"]),
        spent=float(facts["spent"]),
        evaluated=bool(facts["evaluated"]),
        step_seconds=[float(one) for one in facts["step_seconds"]],
        stopped=facts["stopped"],
    )
    if reached.stopped not in (None, *get_args(Stopped)):
        raise ValueError(f"it stopped by {reached.stopped!r:.60}")
    if reached.order is not None:
        order.set_state(reached.order)
    return reached


def _restore_optimizer(optimizer: RunOptimizer, tensors: Mapping[str, Tensor], rates: list[float]) -> None:
    of = optimizer.state_dict()
    for part, held in of.items():
        held["state"] = {}
        for name, value in _below(tensors, f"optimizer.{part}").items():
            number, _, what = name.partition(".")
            held["state"].setdefault(int(number), {})[what] = value
    optimizer.load_state_dict(of)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = float(rate)


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}.")}
