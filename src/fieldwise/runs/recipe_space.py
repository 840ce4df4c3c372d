"""The search space of a recipe, and recipes with other values at dotted paths."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fieldwise.config import to_plain
from fieldwise.errors import ConfigError
from fieldwise.models.build import model_name
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import setting_path
from fieldwise.runs.search_space import Bounds, default_space, grid_ends, merged_space
from fieldwise.training.optimizer_kinds import LBFGS

__all__ = ["check_space", "search_space", "value_at", "with_values"]


def search_space(recipe: Recipe) -> dict[str, Bounds]:
    """The search space: the built-in space of the model, overridden by the recipe's `[search]`."""
    space = default_space(model_name(recipe.model))
    if recipe.training.optimizer == LBFGS:
        space = {path: bounds for path, bounds in space.items() if path != "training.learning_rate"}
    names = {f"model.{f.name}" for f in dataclasses.fields(recipe.model)}  # type: ignore[arg-type]
    space = {path: bounds for path, bounds in space.items() if not path.startswith("model.") or path in names}
    return merged_space(space, recipe.search)


def check_space(recipe: Recipe, space: Mapping[str, Bounds]) -> None:
    """Try every end of a space on the recipe, before any work.

    Errors:
        ConfigError: a path that the recipe does not have, or an invalid value.
    """
    if not space:
        raise ConfigError(f"recipe {recipe.name} has nothing to search: give it a [search]")
    for path, value in grid_ends(space):
        if setting_path(path)[0] not in ("model", "training") or path == "training.monitor":
            raise ConfigError(f"a search may only change model.* and training.*, found {path!r}: remove it")
        with_values(recipe, {path: value})


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values at dotted paths.

    Errors:
        ConfigError: an invalid path or value.
    """
    plain = recipe.to_dict()
    for path, value in values.items():
        keys = setting_path(path)
        table = plain
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ConfigError(f"search.{path}: {key!r} of the recipe is not a table of settings")
        table[keys[-1]] = to_plain(value)
    found = Recipe.from_dict(plain, recipe.name)
    device = recipe.training.device  # not part of the plain values
    return found if device == found.training.device else found.on(device)


def value_at(recipe: Recipe, path: str) -> Any:
    """The recipe's value at a dotted path; None if there is none."""
    value: Any = recipe.to_dict()
    for key in setting_path(path):
        value = value.get(key) if isinstance(value, dict) else None
    return value
