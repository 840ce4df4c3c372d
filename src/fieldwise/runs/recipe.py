"""Recipes: data, schema, split, model and training of one run, in TOML."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fieldwise.config import changed, given_plain, parse, to_plain
from fieldwise.data.prepare.settings import HistorySettings, NegativeSampling, TargetEncoding
from fieldwise.data.prepare.split_settings import RandomSplit, SplitSettings
from fieldwise.runs.data_settings import DataSettings, check_seed
from fieldwise.runs.recipe_files import recipe_settings
from fieldwise.runs.search_space import Bounds, parse_space
from fieldwise.schema import Schema
from fieldwise.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fieldwise.models import ModelSettings

__all__ = ["Recipe", "check_recipe", "load_recipe"]

Defaults = Literal["data", "fixed"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run, ready to train.

    Args:
        defaults: source of omitted `[model]` and `[training]` settings: `data`, rules on the training rows
            (`fieldwise.runs.defaults`), or `fixed`, the classes' defaults, as in recipes of papers and benchmarks.
        warm_start: folder of a bundle for a warm start (`fieldwise.bundle.warm_start`), such as a trained FM for an
            AFM. A relative path in a recipe file is relative to that file's folder.
        search: search space of `fieldwise tune`, by dotted path, merged over the built-in space of the model.
        benchmark: name of the task: rows, fields and label. Metrics are comparable only within one benchmark and
            protocol.
        protocol: name of the split and feature definition; some data sets have several.
        seed: seed of initial weights, row order and dropout; also of split and negatives if `data_seed` is omitted.
        data_seed: seed of split and negatives.
    """

    name: str
    data: DataSettings
    schema: Schema
    model: "ModelSettings"
    split: SplitSettings = field(default_factory=RandomSplit)
    negatives: NegativeSampling | None = None
    history: HistorySettings | None = None
    target_encoding: TargetEncoding | None = None
    training: TrainingSettings = field(default_factory=TrainingSettings)
    defaults: Defaults = "data"
    warm_start: str | None = None
    description: str = ""
    benchmark: str = ""
    protocol: str = ""
    search: Mapping[str, Bounds | Literal[False]] = field(default_factory=dict)
    seed: int = 0
    data_seed: int | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_seed(self.rows_seed, "data_seed")
        if isinstance(self.model, type):  # a user-defined model
            from fieldwise.models.own import as_settings

            object.__setattr__(self, "model", as_settings(self.model))

    @property
    def rows_seed(self) -> int:
        """The seed of the split and negatives."""
        return self.seed if self.data_seed is None else self.data_seed

    def on(self, device: str) -> "Recipe":
        """The recipe, to be trained on another device (`training.device`)."""
        return dataclasses.replace(self, training=changed(self.training, {"device": device}, "training"))

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values for `from_dict`, without what belongs to this machine (`training.device`)."""
        from fieldwise.models.build import model_name, model_to_dict

        plain: dict[str, Any] = to_plain(self)
        del plain["name"]
        if self.defaults == "fixed":
            return {**plain, "model": model_to_dict(self.model)}
        model = {"name": model_name(self.model), **given_plain(self.model)}
        return {**plain, "model": model, "training": given_plain(self.training)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], name: str) -> "Recipe":
        """A recipe from the tables of a recipe file, with `extends` already resolved.

        Errors:
            ConfigError, SchemaError: an unknown, missing or wrong setting; the message has its path.
        """
        top, schema, search = _checked(data, name)
        from fieldwise.models.build import model_from_dict  # imports PyTorch: only if the rest of the recipe is valid

        more = {f.name: getattr(top, f.name) for f in fields(top) if f.name not in ("schema", "model", "search")}
        model = model_from_dict(top.model, f"recipe {name}.model")
        return cls(name=name, schema=schema, model=model, search=search, **more)


@dataclass(frozen=True, kw_only=True)
class _Top:
    """A recipe as its file has it: schema, model and search are not parsed yet."""

    data: DataSettings
    schema: dict[str, Any]
    model: dict[str, Any]
    split: SplitSettings = field(default_factory=RandomSplit)
    negatives: NegativeSampling | None = None
    history: HistorySettings | None = None
    target_encoding: TargetEncoding | None = None
    training: TrainingSettings = field(default_factory=TrainingSettings)
    defaults: Defaults = "data"
    warm_start: str | None = None
    description: str = ""
    benchmark: str = ""
    protocol: str = ""
    search: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    data_seed: int | None = None


def _checked(data: Mapping[str, Any], name: str) -> tuple[_Top, Schema, dict[str, Bounds | Literal[False]]]:
    """A recipe without its model's settings, which need PyTorch."""
    top = parse(_Top, data, f"recipe {name}")
    check_seed(top.seed)
    check_seed(top.seed if top.data_seed is None else top.data_seed, "data_seed")
    schema = Schema.from_dict(top.schema, f"recipe {name}.schema")
    return top, schema, parse_space(top.search, f"recipe {name}.search")


def load_recipe(source: str | Path, overrides: Sequence[str] = (), *, protocol: str | None = None) -> Recipe:
    """A built-in recipe by name, or a recipe from a TOML file.

    A file may have `extends = "OTHER"` (a file in the same folder, or a built-in recipe): its settings override those
    of OTHER, table by table. Lists are replaced as a whole, and so are tables with a different `kind`, `name` or
    `task`, and data by `name` if data by `path` are given. `schema` may be the path of a schema file, relative to the
    recipe's folder, like `data.path`.

    Args:
        source: a name from `recipe_names`, or the path of a TOML file.
        overrides: `key=value` with a dotted key and a TOML value, such as `training.epochs=3`.
        protocol: name of another split and feature definition (`protocol_names`), whose settings override the
            recipe's. Your own recipe file can use those of its data set.

    Errors:
        ConfigError: no such recipe or protocol, invalid TOML, an unknown key (the nearest known one is named).

    >>> load_recipe("simulated/afm", ["model.attention_dim=8"]).model.attention_dim
    8
    """
    settings, name = recipe_settings(source, overrides, protocol)
    return Recipe.from_dict(settings, name)


def check_recipe(source: str | Path, overrides: Sequence[str] = (), *, protocol: str | None = None) -> None:
    """Check a recipe without PyTorch: raises the errors of `load_recipe`, except for the model's settings."""
    settings, name = recipe_settings(source, overrides, protocol)
    _checked(settings, name)
