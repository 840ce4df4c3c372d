"""The optimizers that `training.optimizer` chooses among: one entry each. PyTorch is not loaded for their names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from fieldwise.ops.sparse_update import RuleName
    from fieldwise.training.settings import TrainingSettings

__all__ = ["LBFGS", "OPTIMIZERS", "OptimizerKind", "RowUpdate"]


@dataclass(frozen=True, kw_only=True)
class RowUpdate:
    """How an optimizer moves only those rows of an embedding table that a batch reads.

    Args:
        rule: of `fieldwise.ops.sparse_update`.
        states: what it keeps for a table [R, D] before the first step, given the settings' `adagrad_accumulator`. Names
            are PyTorch's, in the order in which the rule takes them.
        eps: added to a root in a denominator; as PyTorch's optimizer has it.
        same: whether a table updated so has the numbers of one updated as a whole, where no other setting tells them
            apart: then `embedding_update = 'auto'` takes it for large tables.
    """

    rule: "RuleName"
    states: "Callable[[Tensor, float], dict[str, Tensor]]"
    eps: float
    same: bool = True


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """An optimizer that recipes may name.

    Args:
        name: as recipes have it.
        make: PyTorch's optimizer of parameters that are updated as a whole.
        numbers: how many numbers that one keeps for each number of a parameter.
        rows: how it updates rows alone.
        rows_only: whether embedding tables are always updated by rows.
    """

    name: str
    make: "Callable[[list[nn.Parameter], TrainingSettings], torch.optim.Optimizer]"
    numbers: int
    rows: RowUpdate
    rows_only: bool = False


FUSED = ("cpu", "cuda")  # devices for which PyTorch has every optimizer as one kernel


def _fused(parameters: "list[nn.Parameter]") -> bool | None:
    """Whether the optimizer runs as one kernel; None leaves the choice to PyTorch."""
    return True if all(p.device.type in FUSED for p in parameters) else None


def _adam(parameters: "list[nn.Parameter]", settings: "TrainingSettings") -> "torch.optim.Optimizer":
    from torch.optim import Adam

    return Adam(parameters, lr=settings.learning_rate, fused=_fused(parameters))


def _adagrad(parameters: "list[nn.Parameter]", settings: "TrainingSettings") -> "torch.optim.Optimizer":
    from torch.optim import Adagrad

    start = settings.adagrad_accumulator
    return Adagrad(parameters, lr=settings.learning_rate, initial_accumulator_value=start, fused=_fused(parameters))


def _sgd(parameters: "list[nn.Parameter]", settings: "TrainingSettings") -> "torch.optim.Optimizer":
    from torch.optim import SGD

    return SGD(parameters, lr=settings.learning_rate, fused=_fused(parameters))


def _moments(table: "Tensor", _: float) -> "dict[str, Tensor]":
    return {"exp_avg": table.new_zeros(table.shape), "exp_avg_sq": table.new_zeros(table.shape)}


OPTIMIZERS: Mapping[str, OptimizerKind] = {
    kind.name: kind
    for kind in (
        OptimizerKind(
            name="adam",
            make=_adam,
            numbers=2,
            rows=RowUpdate(rule="adam", states=_moments, eps=1e-8, same=False),
        ),
        OptimizerKind(
            name="adagrad",
            make=_adagrad,
            numbers=1,
            rows=RowUpdate(
                rule="adagrad", states=lambda table, start: {"sum": table.new_full(table.shape, start)}, eps=1e-10
            ),
        ),
        OptimizerKind(
            name="rowwise_adagrad",
            make=_adagrad,
            numbers=1,
            rows=RowUpdate(
                rule="rowwise_adagrad",
                states=lambda table, start: {"row_sum": table.new_full((len(table),), start)},
                eps=1e-10,
            ),
            rows_only=True,
        ),
        OptimizerKind(
            name="sgd",
            make=_sgd,
            numbers=0,
            rows=RowUpdate(rule="sgd", states=lambda _table, _start: {}, eps=0.0),
        ),
    )
}
"""All of them by name; the first is the one where nothing is said."""

LBFGS = "lbfgs"  # solves a regression as a whole, without steps over batches (`fieldwise.training.regression`)
