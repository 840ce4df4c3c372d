"""The models, one paper a file: settings that build a network whose forward takes a batch and gives logits [B]."""

from typing import Protocol

from torch import nn

from fieldwise.layout import Layout
from fieldwise.models.afm import AFM, AFMNetwork
from fieldwise.models.autoint import AutoInt, AutoIntNetwork, AutoIntPlus
from fieldwise.models.fm import FM, FMNetwork
from fieldwise.models.inttower import IntTower, IntTowerNetwork
from fieldwise.models.lr import LR, LRNetwork

__all__ = [
    "AFM",
    "FM",
    "LR",
    "MODELS",
    "AFMNetwork",
    "AutoInt",
    "AutoIntNetwork",
    "AutoIntPlus",
    "FMNetwork",
    "IntTower",
    "IntTowerNetwork",
    "LRNetwork",
    "ModelSettings",
    "parameter_count",
]


class ModelSettings(Protocol):
    """What every model's settings can do."""

    def build(self, layout: Layout) -> nn.Module:
        """A network with fresh weights, drawn from torch's global generator."""
        ...


MODELS: dict[str, type[ModelSettings]] = {
    "lr": LR,
    "fm": FM,
    "afm": AFM,
    "autoint": AutoInt,
    "autoint+": AutoIntPlus,
    "inttower": IntTower,
}
"""Settings by the names that recipes use."""


def parameter_count(network: nn.Module) -> int:
    """Numbers that training may change.

    >>> parameter_count(LR().build(Layout.of_sizes([3, 4])))
    8
    """
    return sum(p.numel() for p in network.parameters() if p.requires_grad)
