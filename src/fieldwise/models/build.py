"""Building networks from settings with a seed, and settings from plain values."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fieldwise.config import parse, to_plain
from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import MODELS, ModelSettings
from fieldwise.models.multi_task import multi_task
from fieldwise.models.own import model_class, own_name

__all__ = ["build_network", "model_from_dict", "model_name", "model_to_dict"]


def build_network(settings: ModelSettings, layout: Layout, seed: int, *, labels: int = 1) -> nn.Module:
    """A network with seeded weights; the global random state is not changed.

    With several labels it has one head per label and returns scores [B, T] (`fieldwise.models.multi_task`).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [settings.build(layout) for _ in range(labels)]
    return networks[0] if labels == 1 else multi_task(networks)


def model_from_dict(data: Mapping[str, Any], where: str = "model") -> ModelSettings:
    """Settings from a mapping whose `name` is one of `MODELS`, or of a model of your own that is registered.

    Errors:
        ConfigError: an unknown name or a wrong setting, below `where`.

    >>> model_from_dict({"name": "afm", "attention_dim": 8}).attention_dim
    8
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a table of settings, found {data!r}")
    cls = model_class(data.get("name"), where)
    settings: ModelSettings = parse(cls, {k: v for k, v in data.items() if k != "name"}, where)
    return settings


def model_name(settings: ModelSettings) -> str:
    """The model's name in recipes; `package.module:Class` for your own model that is not registered."""
    for name, cls in MODELS.items():
        if type(settings) is cls:
            return name
    return own_name(settings)


def model_to_dict(settings: ModelSettings) -> dict[str, Any]:
    """The inverse of `model_from_dict`."""
    return {"name": model_name(settings), **to_plain(settings)}
