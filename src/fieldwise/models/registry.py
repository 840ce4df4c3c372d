"""Models by name: built-in ones, and user-defined networks or settings, registered or passed in Python.

What the rest of fieldwise asks of a model, beside `build(layout)` of its settings and
`forward(batch)` of its network, is optional.

Attributes of a settings class:

- `data_defaults`: what follows from the data (`fieldwise.models.settings.DataDefaults`).
- `title`: its name on a leaderboard, if not the class's.
- `of_schema(schema)`: the settings, completed by the schema.

Attributes of a network:

- `forward_with_auxiliary`: logits and an auxiliary loss (`fieldwise.training.step`).
- `binary_settings`: names of settings that must be 0 if the label is not binary.
- `first_order`: weights and a bias (`fieldwise.layers.FirstOrder`), which `start_from_lr` sets.
- `logit_terms`: terms that add up to the logit (`fieldwise.explain.Terms`).
- `pair_terms`: whether these terms include `pairs`.
- `score_candidates`: logits of a context's candidates (`fieldwise.layers.candidates`).
- `user`, `item` and `score`: two towers (`fieldwise.models.twotower`); with `score_stored`, item
  heads can be stored.

Attributes of a module in a network:

- `reads_rows`: a table is read without the fields' vectors; integrated gradients ask.
- `row_blocks`: the rows of `weight` belong to values, in blocks of these sizes; warm starts and
  growth ask (`fieldwise.layers.row_blocks`).

No code named by a file is ever imported: a recipe or a bundle may name a user-defined model, which
is found only if the user has imported it.
"""

import dataclasses
import hashlib
import importlib
import inspect
import json
import os
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from fieldwise.config import Settings, nearest, parse, to_plain
from fieldwise.errors import ConfigError, FieldwiseError
from fieldwise.layout import Layout
from fieldwise.models.settings import MODELS, ModelSettings

C = TypeVar("C", bound=type)

_REGISTERED: dict[str, type[ModelSettings]] = {}
_MADE: dict[type[nn.Module], type[ModelSettings]] = {}  # settings classes made from constructors


def source_digest(settings: Any) -> str | None:
    """SHA-256 of the source file of a user-defined model; None for a built-in model, and if there is no file."""
    if type(settings) in MODELS.values():
        return None
    try:
        file = inspect.getsourcefile(getattr(settings, "network_class", type(settings)))
    except TypeError:  # a class defined in an interactive shell
        return None
    return (
        None
        if file is None or not os.path.isfile(file)
        else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    )


def register_model(name: str | None = None) -> Callable[[C], C]:
    """A decorator that registers a model under a name, for recipes and bundles: one of fieldwise's files, or your own.

    Args:
        name: the name in recipes; `package.module:Class` if omitted.

    Errors:
        ConfigError: the name of a built-in model, or a class that is neither a network whose
            constructor takes the layout first nor a dataclass of settings with `build(layout)`.

    >>> import torch
    >>> from fieldwise import Batch
    >>> from fieldwise.layers import FirstOrder
    >>> @register_model("bounded")
    ... class Bounded(nn.Module):
    ...     def __init__(self, layout: Layout, *, bound: float = 3.0) -> None:
    ...         super().__init__()
    ...         self.first_order, self.bound = FirstOrder(layout), bound
    ...     def forward(self, batch: Batch) -> torch.Tensor:
    ...         return self.bound * torch.tanh(self.first_order(batch) / self.bound)
    >>> from fieldwise.models.serialise import model_from_dict
    >>> model_from_dict({"name": "bounded", "bound": 2})
    Bounded(bound=2.0)
    """

    def register(cls: C) -> C:
        settings = settings_class(cls)
        wanted = location(settings) if name is None else name
        built_in = settings.__module__.startswith("fieldwise.models.")
        if wanted in MODELS and not built_in:
            raise ConfigError(
                f"{wanted!r} is the name of a built-in model: register {cls.__name__} under another"
            )
        registry = MODELS if built_in else _REGISTERED
        known = registry.get(wanted)
        # reloading a module registers again
        if known is not None and location(known) != location(settings):
            raise ConfigError(
                f"two models cannot have one name: {wanted!r} is {location(known)} already"
            )
        registry[wanted] = settings
        return cls

    return register


def settings_of(network: type[nn.Module], **settings: Any) -> Any:
    """Settings for your own network: its constructor's arguments after the layout, as a frozen dataclass.

    Args:
        network: a class whose constructor takes the layout first, then only named settings, and
            whose `forward(batch)` gives the logits [B].
        settings: by name; omitted ones take the constructor's default.

    Errors:
        ConfigError: not such a class, an unknown or missing setting, or a value of the wrong type.

    >>> import torch
    >>> from fieldwise import Batch
    >>> class Constant(nn.Module):
    ...     def __init__(self, layout: Layout, bias: float = 0.5) -> None:
    ...         super().__init__()
    ...         self.bias = nn.Parameter(torch.tensor(bias))
    ...     def forward(self, batch: Batch) -> torch.Tensor:
    ...         return self.bias.expand(batch.size)
    >>> settings_of(Constant, bias=2).build(Layout.of_sizes([3])).bias.item()
    2.0
    """
    return parse(settings_class(network), settings, network.__name__)


def as_settings(model: Any) -> ModelSettings:
    """The settings of a model, given as settings (returned unchanged), as a class or by name (its default settings).

    Errors:
        ConfigError: an unknown name; neither settings of a model nor a class of a network or of
            settings, or settings that cannot be written as plain values.
    """
    if isinstance(model, nn.Module):
        name = type(model).__name__
        raise ConfigError(
            "model must be settings or a class, since table sizes depend on the training rows; found a network that "
            f"is already built: give {name}, or fieldwise.settings_of({name}, ...)"
        )
    if isinstance(model, str):
        model = model_class(model, "model")
    if isinstance(model, type):
        model = parse(settings_class(model), {}, model.__name__)
    if type(model) in MODELS.values():
        return typing.cast(ModelSettings, model)
    cls = settings_class(type(model))
    try:
        json.dumps(to_plain(model))
        same = parse(cls, to_plain(model), cls.__name__) == model
    except TypeError:
        same = False
    if not same:
        raise ConfigError(
            f"{cls.__name__} must hold only plain values (bool, int, float, str, tuples and other settings), so "
            f"that recipes and bundles can store them; found {model!r}"
        )
    return typing.cast(ModelSettings, model)


def settings_class(cls: Any) -> type[ModelSettings]:
    """The settings class of a model: the class itself, or one made from a network's constructor.

    Errors:
        ConfigError: the class is neither.
    """
    if isinstance(cls, type) and issubclass(cls, nn.Module):
        if cls not in _MADE:
            _MADE[cls] = _checked_settings(_settings_of_constructor(cls))
        return _MADE[cls]
    return _checked_settings(cls)


def _checked_settings(cls: Any) -> type[ModelSettings]:
    """A class, checked to be a dataclass of settings that builds a network."""
    is_settings = isinstance(cls, type) and dataclasses.is_dataclass(cls)
    if not (is_settings and callable(getattr(cls, "build", None))):
        name = getattr(cls, "__name__", repr(cls))
        raise ConfigError(
            f"{name} is not a built-in model ({', '.join(MODELS)}) and not your own model, which is a "
            "dataclass of settings with build(layout), or a torch.nn.Module with forward(batch)"
        )
    if "name" in {f.name for f in dataclasses.fields(cls)}:
        raise ConfigError(
            f"{cls.__name__} has a setting 'name', which recipes use for the model's name: rename it"
        )
    return typing.cast(type[ModelSettings], cls)


def _settings_of_constructor(network: type[nn.Module]) -> Any:
    """A dataclass with a setting for each argument of a network's constructor but the layout."""
    hints = typing.get_type_hints(network.__init__)
    fields = []
    for parameter in _setting_parameters(network):
        if isinstance(parameter.default, list | dict | set):
            raise ConfigError(
                f"{network.__name__}'s setting {parameter.name} has a mutable default: use a tuple"
            )
        default = dataclasses.field()
        if parameter.default is not parameter.empty:
            default = dataclasses.field(default=parameter.default)
        fields.append((parameter.name, hints.get(parameter.name, Any), default))

    def build(self: Any, layout: Layout) -> nn.Module:
        return network(layout, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def reduce(self: Any) -> Any:  # for copying: the class cannot be found by name
        return _again, (network, {name: getattr(self, name) for name in self._given})

    namespace = {
        "build": build,
        "network_class": network,
        "__reduce__": reduce,
        "__doc__": f"Settings of {network}.",
    }
    settings = dataclasses.make_dataclass(
        network.__name__, fields, bases=(Settings,), frozen=True, kw_only=True, namespace=namespace
    )
    settings.__module__ = network.__module__
    settings.__qualname__ = network.__qualname__
    return settings


def _setting_parameters(network: type[nn.Module]) -> list[inspect.Parameter]:
    """The parameters of a network's constructor after the layout, which must have names."""
    parameters = list(inspect.signature(network).parameters.values())
    by_position = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_layout = bool(parameters) and parameters[0].kind in by_position
    if not takes_layout or any(parameter.kind not in by_name for parameter in parameters[1:]):
        rule = "must take the layout first, then named settings, as in __init__(self, layout, *, width=8)"
        raise ConfigError(f"{network.__name__} {rule}; found {inspect.signature(network)}")
    if network.forward is nn.Module.forward:
        raise ConfigError(
            f"{network.__name__} must have forward(batch), which returns the logits [B]; found none"
        )
    return parameters[1:]


def location(cls: type) -> str:
    """The location of a model's class: `package.module:Class`."""
    network = getattr(cls, "network_class", cls)
    return f"{network.__module__}:{network.__qualname__}"


def known_models() -> dict[str, type[ModelSettings]]:
    """The settings classes of all built-in and registered models by name."""
    return MODELS | _REGISTERED


def model_class(name: object, where: str) -> type[ModelSettings]:
    """The settings class of a model by its name in recipes.

    Errors:
        ConfigError: an unknown name, or a user-defined model that is not registered.
    """
    if isinstance(name, str) and (result := known_models().get(name)):
        return result
    if isinstance(name, str) and ":" in name:
        raise ConfigError(
            f"{where}.name is {name!r}, a user-defined model, and code named by a file is not imported: "
            f"run `fieldwise --import {name} ...`, or in Python register it (fieldwise.register_model)"
        )
    known = nearest(str(name), list(known_models()))
    raise ConfigError(
        f"{where}.name must be a known model, found {name!r}: {known}; your own model must be imported first "
        "(`fieldwise --import MODULE ...`)"
    )


def import_model(target: str) -> None:
    """Import a module, whose decorators register its models; or, for `module:Class`, register that class.

    Modules are searched on Python's path, then in the working directory.

    Errors:
        ConfigError: no such module or class, a module that cannot be imported, or a class that is
            not a model.
    """
    module, separator, path = target.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        result: Any = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is not None and (module == e.name or module.startswith(f"{e.name}.")):
            raise ConfigError(
                f"the module {module!r} to import must be installed or in the working directory: there is no {e.name!r}"
            ) from None
        raise
    except FieldwiseError:
        raise
    except (Exception, SystemExit) as e:
        raise ConfigError(
            f"the module {module!r} cannot be imported: {type(e).__name__}: {e}"
        ) from e
    if not separator:
        return
    for part in path.split("."):
        if not hasattr(result, part):
            classes = [n for n, value in vars(result).items() if isinstance(value, type)]
            raise ConfigError(f"the module {module!r} has no {path!r}: {nearest(path, classes)}")
        result = getattr(result, part)
    register_model(target)(result)


def _again(network: type[nn.Module], given: dict[str, Any]) -> Any:
    return settings_class(network)(**given)
