"""Model settings as plain values with the model's name, and back."""

from collections.abc import Mapping
from typing import Any

from fieldwise.config import parse, to_plain
from fieldwise.errors import ConfigError
from fieldwise.models.registry import known_models, location, model_class, settings_class
from fieldwise.models.settings import ModelSettings


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
    return parse(cls, {k: v for k, v in data.items() if k != "name"}, where)


def model_name(settings: ModelSettings) -> str:
    """The model's name in recipes; `package.module:Class` for your own model that is not registered."""
    for name, known in known_models().items():
        if type(settings) is known:
            return name
    return location(settings_class(type(settings)))


def model_to_dict(settings: ModelSettings) -> dict[str, Any]:
    """The inverse of `model_from_dict`."""
    return {"name": model_name(settings), **to_plain(settings)}
