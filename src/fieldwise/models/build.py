"""From settings to a network: seeded, and from plain values with every setting checked."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fieldwise.config import nearest, parse, to_plain
from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import MODELS, ModelSettings
from fieldwise.models.several import several_labels

__all__ = ["build_network", "model_from_dict", "model_name", "model_to_dict"]


def build_network(settings: ModelSettings, layout: Layout, seed: int, *, labels: int = 1) -> nn.Module:
    """A network with seeded weights; the global random state is left as it was.

    With several labels it has one head each and gives scores [B, T] (`fieldwise.models.several`).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [settings.build(layout) for _ in range(labels)]
    return networks[0] if labels == 1 else several_labels(networks)


def model_from_dict(data: Mapping[str, Any], where: str = "model") -> ModelSettings:
    """Settings from a mapping whose `name` is one of `MODELS`.

    >>> model_from_dict({"name": "afm", "attention_dim": 8}).attention_dim
    8
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a table of settings, found {data!r}")
    name = data.get("name")
    if not isinstance(name, str) or name not in MODELS:
        raise ConfigError(f"{where}.name must be a known model, found {name!r}: {nearest(str(name), MODELS)}")
    settings: ModelSettings = parse(MODELS[name], {k: v for k, v in data.items() if k != "name"}, where)
    return settings


def model_name(settings: ModelSettings) -> str:
    """The name that recipes call these settings' model by."""
    for name, cls in MODELS.items():
        if type(settings) is cls:
            return name
    raise ConfigError(f"{type(settings).__name__} is not among fieldwise's models: {', '.join(MODELS)}")


def model_to_dict(settings: ModelSettings) -> dict[str, Any]:
    """The inverse of `model_from_dict`."""
    return {"name": model_name(settings), **to_plain(settings)}
