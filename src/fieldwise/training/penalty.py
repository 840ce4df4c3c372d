"""Squared L2 on named parameters, over whole tables or over the rows that a batch touches."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.config import nearest
from fieldwise.distributed.process_group import all_gather_rows
from fieldwise.errors import ConfigError
from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Batch

__all__ = ["L2Penalty", "l2_strengths"]


class L2Penalty:
    """The L2 penalty of a step, `sum over named parameters of strength / 2 * sum of squares`.

    Args:
        network: the network with the named parameters.
        strengths: by parameter name or shell pattern; the first match applies.
        rows: whether `all` rows of embedding tables count, or only the distinct ones `touched` by the batch. A table
            with a sparse gradient (`FieldEmbedding.sparse`) is excluded: its optimizer applies L2 to the updated rows.

    Errors:
        ConfigError: a pattern that matches no parameter.
    """

    def __init__(self, network: nn.Module, strengths: Mapping[str, float], rows: Literal["all", "touched"]) -> None:
        tables = {id(module.weight) for module in network.modules() if isinstance(module, FieldEmbedding)}
        lazy = {id(m.weight) for m in network.modules() if isinstance(m, FieldEmbedding) and m.sparse}
        parameters = dict(network.named_parameters())
        self._whole: list[tuple[Tensor, float]] = []
        self._touched: list[tuple[Tensor, float]] = []
        for name, strength in l2_strengths(network, strengths).items():
            parameter = parameters[name]
            if strength == 0.0 or id(parameter) in lazy:
                continue
            by_row = rows == "touched" and id(parameter) in tables
            (self._touched if by_row else self._whole).append((parameter, strength))

    def __bool__(self) -> bool:
        return bool(self._whole or self._touched)

    @torch.no_grad()
    def add_gradients(self, batch: Batch) -> None:
        """Add the penalty's gradient to the parameters' gradients, in place, as autograd would."""
        for p, strength in self._whole:
            if p.grad is None:
                p.grad = strength * p
            else:
                p.grad.add_(p, alpha=strength)
        if self._touched:  # the distinct rows that a batch reads, of which other processes may have a part
            rows = torch.unique(all_gather_rows(torch.cat([batch.ids.reshape(-1), batch.bag_ids]))).long()
            for p, strength in self._touched:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.index_add_(0, rows, p[rows], alpha=strength)


def l2_strengths(network: nn.Module, strengths: Mapping[str, float]) -> dict[str, float]:
    """The strength of every parameter by name, 0 if no pattern matches; the first match applies.

    Errors:
        ConfigError: a pattern that matches no parameter.

    >>> l2_strengths(nn.Linear(1, 1), {"w*": 0.5})
    {'weight': 0.5, 'bias': 0.0}
    """
    names = [name for name, _ in network.named_parameters()]
    for pattern in strengths:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = nearest(pattern, names)
            raise ConfigError(f"l2 names parameter {pattern!r}, which the model does not have: {hint}")
    return {name: next((s for p, s in strengths.items() if fnmatchcase(name, p)), 0.0) for name in names}
