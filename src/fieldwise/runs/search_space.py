"""The search space of a recipe: the settings that `fieldwise tune` changes, with their bounds."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache

from fieldwise.errors import ConfigError
from fieldwise.runs.bounds import Bounds, merged_space, parse_space
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import RECIPES
from fieldwise.runs.setting_paths import setting_path, with_values
from fieldwise.training.settings import LBFGS


@cache
def default_space(model: str) -> Mapping[str, Bounds]:
    """The built-in space of a model by name: the space of all models, overridden by its own."""
    tables = tomllib.loads((RECIPES / "_search.toml").read_text("utf-8"))
    of_all_models = parse_space(tables.get("all", {}), "search.all")
    of_model = parse_space(tables.get(model, {}), f"search.{model}")
    return merged_space(of_all_models, of_model)


def search_space(recipe: Recipe) -> dict[str, Bounds]:
    """The search space: the built-in space of the model, overridden by the recipe's `[search]`."""
    from fieldwise.models.serialise import model_name

    model_paths = {f"model.{f.name}" for f in fields(recipe.model)}  # type: ignore[arg-type]
    space: dict[str, Bounds] = {}
    for path, bounds in default_space(model_name(recipe.model)).items():
        is_of_another_model = path.startswith("model.") and path not in model_paths
        is_unused = path == "training.learning_rate" and recipe.training.optimizer == LBFGS
        if not is_of_another_model and not is_unused:
            space[path] = bounds
    return merged_space(space, recipe.search)


def check_space(recipe: Recipe, space: Mapping[str, Bounds]) -> None:
    """Check every bound and choice of a space on the recipe, before any work.

    Errors:
        ConfigError: a path that the recipe does not have, or an invalid value.
    """
    if not space:
        raise ConfigError(f"recipe {recipe.name} has nothing to search: give it a [search]")
    for path, bounds in space.items():
        if setting_path(path)[0] not in ("model", "training") or path == "training.monitor":
            raise ConfigError(
                f"a search may only change model.* and training.*, found {path!r}: remove it"
            )
        for value in bounds.boundary_values:
            with_values(recipe, {path: value})
