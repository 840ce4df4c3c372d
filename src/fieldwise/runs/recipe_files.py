"""Recipe files: where they are, which settings override which, and single settings as `key=value`."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldwise.config import REMOVED, nearest, toml_tables, unknown_setting
from fieldwise.data.read.kinds import kind_of
from fieldwise.errors import ConfigError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.setting_names import SURE, nearest_setting, setting_names
from fieldwise.schema import Schema

__all__ = ["RECIPES", "SECTIONS", "protocol_names", "recipe_names", "recipe_settings", "setting_path"]

RECIPES = Path(__file__).parents[1] / "recipes"
CHOICES = ("kind", "name", "task")
SECTIONS = (
    "benchmark",
    "protocol",
    "defaults",
    "data",
    "schema",
    "split",
    "negatives",
    "history",
    "target_encoding",
    "model",
    "training",
    "warm_start",
    "search",
    "seed",
    "data_seed",
    "description",
)


def recipe_names() -> list[str]:
    """Names of the built-in recipes, sorted. Files that begin with `_` are shared parts."""
    files = (f for f in RECIPES.glob("*/*.toml") if not f.name.startswith("_"))
    return sorted(f"{f.parent.name}/{f.stem}" for f in files)


def protocol_names(folder: str) -> list[str]:
    """Names of the built-in protocols for the recipes of a folder, such as `movielens-1m`, sorted."""
    return sorted(file.stem for file in (RECIPES / folder / "protocols").glob("*.toml"))


def recipe_settings(source: str | Path, overrides: Sequence[str], protocol: str | None) -> tuple[dict[str, Any], str]:
    """A recipe's tables with all overrides, and its name."""
    name, file = _find(source)
    settings = _read(file, name, ())
    if protocol is not None:
        over = _protocol(protocol, name, settings)
        if "split" in over:
            settings.pop("split", None)  # the protocol's split replaces it as a whole
        settings = _merge(settings, over)
    for override in overrides:
        settings = _merge(settings, _parse_override(override))
    for override in overrides:
        _check_name(override, settings)
    return settings, name


def _protocol(protocol: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    data = settings.get("data")
    own = data.get("name") if isinstance(data, dict) else None
    folder = str(own or "") if name.endswith(".toml") else Path(name).parent.name
    known = protocol_names(folder) if folder else []
    none = f"the package has none for {folder}" if folder else "your own data are split by the recipe's [split]"
    if protocol not in known:
        hint = nearest(protocol, known) if known else none
        raise ConfigError(f"recipe {name} has no protocol {protocol!r}: {hint}")
    return _read(RECIPES / folder / "protocols" / f"{protocol}.toml", name, ())


def _find(source: str | Path) -> tuple[str, Path]:
    path = Path(source)
    if kind_of(path) is not None:
        raise ConfigError(
            f"a recipe is a TOML file or a built-in name, found the table {path}: `fieldwise init {path}` writes a "
            "recipe for it"
        )
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise ConfigError(
                f"a recipe file must exist: {path} does not"
                f"{_nearest_file(path) or '; check the path, or see `fieldwise recipes`'}"
            )
        return str(path), path
    names = recipe_names()
    if str(source) not in ("", *names) and path.is_dir():
        raise ConfigError(f"a recipe must be a TOML file or a built-in name, found the folder {path}")
    if str(source) not in names:
        near = _nearest_file(path)
        raise ConfigError(f"no recipe is named {str(source)!r}{near or f': {nearest(str(source), names)}'}")
    return str(source), RECIPES / f"{source}.toml"


def _nearest_file(path: Path) -> str:
    """A hint with the recipe file in the same folder whose name is nearest, or an empty text."""
    try:
        names = [file.name for file in path.parent.glob("*.toml") if file.is_file()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f": did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def _read(file: Path, name: str, seen: tuple[Path, ...]) -> dict[str, Any]:
    if file.resolve() in seen:
        names = " -> ".join(f.name for f in (*seen, file))
        raise ConfigError(f"recipe {name}: extends must not be circular, found {names}")
    try:
        settings = toml_tables(file.read_text("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"recipe {name} ({file.name}) must be valid TOML in UTF-8: {e}") from None
    except OSError as e:
        raise ConfigError(f"recipe {name}: {file.name} cannot be read: {e.strerror or e}") from None
    if isinstance(settings.get("schema"), str):
        settings["schema"] = Schema.from_toml(file.parent / settings["schema"]).to_dict()
    _anchor(settings, file.parent)
    base = settings.pop("extends", None)
    if base is None:
        return settings
    base = str(base).removesuffix(".toml")
    beside = file.parent / f"{base}.toml"
    other = beside if beside.exists() else RECIPES / f"{base}.toml"
    return _merge(_read(other, name, (*seen, file.resolve())), settings)


def _anchor(settings: dict[str, Any], folder: Path) -> None:
    """Make a relative `data.path` or `warm_start` relative to `folder`, independently of the working directory."""
    data = settings.get("data")
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        data["path"] = str((folder / data["path"]).resolve())
    if isinstance(settings.get("warm_start"), str):
        settings["warm_start"] = str((folder / settings["warm_start"]).resolve())


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        mergeable = isinstance(value, Mapping) and isinstance(old, Mapping) and not _replaces(value, old)
        merged[key] = _merge(merged[key], value) if mergeable else value
    return merged


def _replaces(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether a table replaces the overridden one, because it makes another choice."""
    return ("path" in new and "name" in old) or any(c in new and new[c] != old.get(c) for c in CHOICES)


def setting_path(key: str) -> list[str]:
    """The parts of a dotted key in a recipe; below `training.l2` the rest is one parameter's name.

    >>> setting_path("training.l2.embedding.weight")
    ['training', 'l2', 'embedding.weight']
    """
    path = [part.strip() for part in key.split(".")]
    return [*path[:2], ".".join(path[2:])] if path[:2] == ["training", "l2"] and len(path) > 2 else path


def _check_name(override: str, settings: Mapping[str, Any]) -> None:
    """Check that a recipe has a path, with the nearest name in the error; values are checked later."""
    key = override.partition("=")[0].strip()
    table, *below = setting_path(key)
    names = setting_names(settings, DataSettings, model=table == "model")
    if table in SECTIONS and (not below or table not in names or below[0] in names[table]):
        return
    if key in REMOVED:
        raise ConfigError(f"--set {override}: {unknown_setting(table, below[0], ())}")
    near = nearest_setting(key, _paths(names), SURE)
    if near is None:  # also the model's settings, which need PyTorch
        names = setting_names(settings, DataSettings)
        near = nearest_setting(key, _paths(names))
    listing = nearest(below[0], names[table]) if table in names else nearest(table, SECTIONS)
    hint = listing if near is None else f"did you mean {near!r}? {listing.partition('? ')[2] or listing}"
    raise ConfigError(f"--set {override}: a recipe has no setting {key!r}: {hint}")


def _paths(names: Mapping[str, set[str]]) -> set[str]:
    paths = {f"{table}.{name}" for table, within in names.items() for name in within}
    return paths.union(set(SECTIONS) - names.keys())


def _parse_override(override: str) -> dict[str, Any]:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"a setting must be given as key=value, found {override!r}")
    path = setting_path(key)
    try:
        value: Any = toml_tables(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for part in reversed(path):
        value = {part: value}
    result: dict[str, Any] = value
    _anchor(result, Path())
    return result
