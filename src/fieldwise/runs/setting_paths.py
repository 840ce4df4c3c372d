"""Single settings of a recipe by dotted path, such as `training.learning_rate`, and overrides: `key=value`."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, get_args

from fieldwise.config import nearest, to_plain, toml_tables
from fieldwise.data.prepare.settings import (
    HistorySettings,
    NegativeSampling,
    SplitSettings,
    TargetEncoding,
)
from fieldwise.errors import Argument, ConfigError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import SECTIONS, Recipe
from fieldwise.training.settings import TrainingSettings

MIN_SIMILARITY = 0.6
"""Below this similarity a setting is not suggested."""
LONGEST_COMPARED_PATH = 200
"""Letters: 200,000 take half a minute."""
SURE_SIMILARITY = 0.9
"""A setting that is as similar is suggested without a look at the model's, which need PyTorch."""


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


def parse_override(override: str) -> dict[str, Any]:
    """The tables of a recipe file that has only the setting of an override."""
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"a setting must be given as key=value, found {override!r}")
    try:
        value: Any = toml_tables(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()

    tables = value
    for inner_key in reversed(setting_path(key)):
        tables = {inner_key: tables}
    make_paths_absolute(tables, Path())
    return tables  # type: ignore[no-any-return]


def protocol_of(overrides: Sequence[str]) -> str | None:
    """The protocol that overrides name last; None if they name none."""
    protocol = None
    for table in map(parse_override, overrides):
        if "protocol" in table:
            protocol = str(table["protocol"])
    return protocol


def make_paths_absolute(settings: dict[str, Any], folder: Path) -> None:
    """Make a relative `data.path`, `warm_start`, file of vectors or feature's table relative to `folder`."""
    data = settings.get("data")
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        data["path"] = str((folder / data["path"]).resolve())
    schema = settings.get("schema")
    if isinstance(schema, dict):
        make_vectors_absolute(schema, folder)
    features = settings.get("features")
    for feature in features if isinstance(features, list) else []:
        if isinstance(feature, dict) and isinstance(feature.get("table"), str):
            feature["table"] = str((folder / feature["table"]).resolve())
    if isinstance(settings.get("warm_start"), str):
        settings["warm_start"] = str((folder / settings["warm_start"]).resolve())


def make_vectors_absolute(schema: dict[str, Any], folder: Path) -> None:
    """Make the files of vectors of a schema's fields relative to `folder`."""
    fields = schema.get("fields")
    for f in fields if isinstance(fields, list) else []:
        if isinstance(f, dict) and isinstance(f.get("vectors"), str):
            f["vectors"] = str((folder / f["vectors"]).resolve())


def check_override(override: str, settings: Mapping[str, Any]) -> None:
    """Check that a recipe has the setting, with the nearest name in the error; values are checked later."""
    key = override.partition("=")[0].strip()
    section, *inner_keys = setting_path(key)
    names = _names_by_section()
    if section == "model":
        names |= _names_of_model(settings)

    if section in SECTIONS:
        is_whole_section = not inner_keys
        if is_whole_section or section not in names or inner_keys[0] in names[section]:
            return

    suggestion = nearest_setting(key, _paths(names), SURE_SIMILARITY)
    if suggestion is None:
        names |= _names_of_model(settings)
        suggestion = nearest_setting(key, _paths(names))

    hint = nearest(section, SECTIONS, suggestion)
    if section in names:
        hint = nearest(inner_keys[0], names[section], suggestion)
    raise ConfigError(
        Argument("overrides"), f" {override}: a recipe has no setting {key!r}: {hint}"
    )


def _names_by_section() -> dict[str, set[str]]:
    """The names of settings by section, for the sections whose classes do not need PyTorch."""
    return {
        "data": _field_names(DataSettings),
        "split": _field_names(*get_args(SplitSettings)),
        "negatives": _field_names(NegativeSampling),
        "history": _field_names(HistorySettings),
        "target_encoding": _field_names(TargetEncoding),
        "training": _field_names(TrainingSettings),
    }


def _field_names(*classes: Any) -> set[str]:
    names: set[str] = set()
    for cls in classes:
        names.update(f.name for f in fields(cls))
    return names


def _names_of_model(settings: Mapping[str, Any]) -> dict[str, set[str]]:
    """The names of the settings of a recipe's model, below `model`; empty if the model is not known."""
    model = settings.get("model")
    if not isinstance(model, Mapping):
        return {}
    from fieldwise.models.registry import known_models  # imports PyTorch

    cls = known_models().get(str(model.get("name")))
    if cls is None:
        return {}
    return {"model": {"name"} | _field_names(cls)}


def _paths(names: Mapping[str, set[str]]) -> set[str]:
    """The dotted paths of named settings, and the sections without named ones."""
    paths = set(SECTIONS) - names.keys()
    for section, section_names in names.items():
        paths.update(f"{section}.{name}" for name in section_names)
    return paths


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

    most_similar = max(sorted(known), key=similarity, default=None)
    if most_similar is None or similarity(most_similar) < min_similarity:
        return None
    return most_similar
