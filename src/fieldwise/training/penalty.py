"""Squared L2 on named parameters, over whole tables or over the rows that a batch touches."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.config import nearest
from fieldwise.errors import ConfigError
from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Batch

__all__ = ["L2Penalty"]


class L2Penalty:
    """`sum over named parameters of strength / 2 * sum of squares`, to be added to the mean loss of a step.

    Args:
        network: whose parameters the names mean.
        strengths: by parameter name or shell pattern; where several fit, the first counts.
        rows: embedding tables count `all` rows, or only the distinct ones `touched` by the batch.

    Errors:
        ConfigError: a pattern that fits no parameter.
    """

    def __init__(self, network: nn.Module, strengths: Mapping[str, float], rows: Literal["all", "touched"]) -> None:
        tables = {id(module.weight) for module in network.modules() if isinstance(module, FieldEmbedding)}
        parameters = dict(network.named_parameters())
        for pattern in strengths:
            if not any(fnmatchcase(name, pattern) for name in parameters):
                hint = nearest(pattern, parameters)
                raise ConfigError(f"l2 names parameter {pattern!r}, which the model has not: {hint}")
        self._whole: list[tuple[Tensor, float]] = []
        self._touched: list[tuple[Tensor, float]] = []
        for name, parameter in parameters.items():
            strength = next((s for pattern, s in strengths.items() if fnmatchcase(name, pattern)), 0.0)
            if strength == 0.0:
                continue
            by_row = rows == "touched" and id(parameter) in tables
            (self._touched if by_row else self._whole).append((parameter, strength))

    def __bool__(self) -> bool:
        return bool(self._whole or self._touched)

    def __call__(self, batch: Batch) -> Tensor:
        """The penalty, a scalar."""
        terms = [0.5 * strength * p.square().sum() for p, strength in self._whole]
        if self._touched:
            rows = torch.unique(torch.cat([batch.ids.reshape(-1), batch.bag_ids]))
            terms += [0.5 * strength * p[rows.long()].square().sum() for p, strength in self._touched]
        return torch.stack(terms).sum()
