"""A snapshot of a run between two steps, as a checkpoint stores it: plain values, and tensors on the CPU."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fieldwise.config import to_plain
from fieldwise.ops.devices import CPU, device_of, get_rng_state, set_rng_state
from fieldwise.training.history import STOPPED, Evaluation
from fieldwise.training.state import TrainState
from fieldwise.training.step import Step

Snapshot = tuple[Mapping[str, Any], Mapping[str, Tensor]]
"""What a run has reached between two steps: plain values for JSON, and tensors on the CPU by name."""

PLAIN_STATE: dict[str, Callable[[Any], Any]] = {
    "epoch": int,
    "step": int,
    "without_gain": int,
    "position": float,
    "spent": float,
    "evaluated": bool,
}
"""Attributes of `TrainState` that are stored as they are, with their types."""


def snapshot(state: TrainState, step: Step, *, copied: bool) -> Snapshot:
    """The state of a run, on the CPU; `copied` if its next steps are not to change it.

    PyTorch's global generators, which dropout uses, are part of it.
    """
    tensors = _optimizer_tensors(step)
    tensors |= _prefixed("network", step.network.state_dict())
    if step.averaged is not None:
        tensors |= _prefixed("mean", step.averaged.state_dict())
    tensors = {name: value.detach().to(CPU, copy=copied) for name, value in tensors.items()}
    if state.best is not None:  # replaced as a whole, never changed
        tensors |= _prefixed("best", state.best[1])
    if state.losses:
        tensors["losses"] = torch.stack(state.losses).to(CPU)

    if state.order is not None:
        tensors["generator.order"] = state.order
    if step.oov_dropout is not None:
        tensors["generator.unknown"] = step.oov_dropout.draws.get_state()
    tensors["generator.global"] = torch.get_rng_state()
    rng_state_of_device = get_rng_state(device_of(step.network))
    if rng_state_of_device is not None:
        tensors["generator.device"] = rng_state_of_device

    facts = {
        **{name: getattr(state, name) for name in PLAIN_STATE},
        "stopped": state.stopped,
        "step_seconds": list(state.step_seconds),
        "seconds": time.perf_counter() - state.started,
        "history": [to_plain(evaluation) for evaluation in state.history],
        "best": None if state.best is None else state.history.index(state.best[0]),
        "rates": [group["lr"] for group in step.optimizer.param_groups],
    }
    return facts, tensors


def restore(snapshot: Snapshot, step: Step, order: torch.Generator) -> TrainState:
    """Set a run's step and generators to a snapshot; returns what the run had reached."""
    facts, tensors = snapshot
    step.network.load_state_dict(_below("network", tensors))
    if step.averaged is not None:
        step.averaged.load_state_dict(_below("mean", tensors))
    _restore_optimizer(step, tensors, facts["rates"])
    if step.oov_dropout is not None:
        step.oov_dropout.draws.set_state(tensors["generator.unknown"])
    torch.set_rng_state(tensors["generator.global"])
    device = device_of(step.network)
    set_rng_state(device, tensors.get("generator.device"))

    history = [Evaluation(**evaluation) for evaluation in facts["history"]]
    best = None
    if facts["best"] is not None:
        best = (history[facts["best"]], _below("best", tensors))
    losses = list[Tensor]()
    if "losses" in tensors:
        losses = list(tensors["losses"].to(device))
    state = TrainState(
        history=history,
        best=best,
        losses=losses,
        order=tensors.get("generator.order"),
        started=time.perf_counter() - facts["seconds"],
        step_seconds=[float(seconds) for seconds in facts["step_seconds"]],
        stopped=facts["stopped"],
        **{name: convert(facts[name]) for name, convert in PLAIN_STATE.items()},
    )
    if state.stopped is not None and state.stopped not in STOPPED:
        raise ValueError(f"it stopped by {state.stopped!r:.60}")
    if state.order is not None:
        order.set_state(state.order)
    return state


def _optimizer_tensors(step: Step) -> dict[str, Tensor]:
    """The optimizer's states, as `optimizer.PART.PARAMETER.NAME`, of which PARAMETER is a number."""
    tensors = dict[str, Tensor]()
    for part, part_state in step.optimizer.state_dict().items():
        for parameter, states in part_state["state"].items():
            for name, value in states.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{part}.{parameter}.{name}"] = value
    return tensors


def _restore_optimizer(step: Step, tensors: Mapping[str, Tensor], rates: list[Any]) -> None:
    """Set the optimizer to stored states and learning rates."""
    state_dict = step.optimizer.state_dict()
    for part, part_state in state_dict.items():
        states = dict[int, dict[str, Tensor]]()
        for key, value in _below(f"optimizer.{part}", tensors).items():
            parameter, _, name = key.partition(".")
            states.setdefault(int(parameter), {})[name] = value
        part_state["state"] = states
    step.optimizer.load_state_dict(state_dict)
    for group, rate in zip(step.optimizer.param_groups, rates, strict=True):
        group["lr"] = float(rate)


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `_prefixed`, from tensors of several prefixes."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)
    }
