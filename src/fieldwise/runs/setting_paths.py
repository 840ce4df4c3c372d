"""Single settings of a recipe by dotted path, such as `training.learning_rate`."""

from collections.abc import Collection, Mapping
from difflib import SequenceMatcher
from typing import Any

from fieldwise.config import to_plain
from fieldwise.errors import ConfigError
from fieldwise.runs.recipe import Recipe

MIN_SIMILARITY = 0.6
"""Below this similarity a setting is not suggested."""
LONGEST_COMPARED_PATH = 200
"""Letters: 200,000 take half a minute."""


def setting_path(key: str) -> list[str]:
    """The parts of a dotted key in a recipe; below `training.l2` the rest is one parameter's name.

    >>> setting_path("training.l2.embedding.weight")
    ['training', 'l2', 'embedding.weight']
    """
    parts = [part.strip() for part in key.split(".")]
    is_l2_of_parameter = parts[:2] == ["training", "l2"] and len(parts) > 2
    if is_l2_of_parameter:
        return ["training", "l2", ".".join(parts[2:])]
    return parts


def nearest_setting(
    key: str, known: Collection[str], min_similarity: float = MIN_SIMILARITY
) -> str | None:
    """The nearest dotted path to a wrong one: similar as a whole, or with the same last part.

    >>> nearest_setting("epochs", ["training.epochs", "model.layers", "seed"])
    'training.epochs'
    >>> nearest_setting("modl.layrs", ["training.epochs", "model.layers", "seed"])
    'model.layers'
    """
    key = key[:LONGEST_COMPARED_PATH]

    def similarity(path: str) -> float:
        of_whole = SequenceMatcher(None, key, path).ratio()
        of_last_part = SequenceMatcher(
            None, key.rpartition(".")[2], path.rpartition(".")[2]
        ).ratio()
        return max(of_whole, 0.95 * of_last_part)

    nearest = max(sorted(known), key=similarity, default=None)
    if nearest is None or similarity(nearest) < min_similarity:
        return None
    return nearest


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values at dotted paths.

    Errors:
        ConfigError: an invalid path or value.
    """
    plain = recipe.to_dict()
    for path, value in values.items():
        *table_keys, last_key = setting_path(path)
        table = plain
        for key in table_keys:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ConfigError(
                    f"search.{path}: {key!r} of the recipe is not a table of settings"
                )
        table[last_key] = to_plain(value)

    changed = Recipe.from_dict(plain, recipe.name)
    device = recipe.training.device  # not part of the plain values
    if device != changed.training.device:
        changed = changed.on(device)
    return changed


def value_at(recipe: Recipe, path: str) -> Any:
    """The recipe's value at a dotted path; None if there is none."""
    value: Any = recipe.to_dict()
    for key in setting_path(path):
        value = value.get(key) if isinstance(value, dict) else None
    return value
