"""Recipe files in TOML: the built-in ones and a user's own, what they extend, and their protocols."""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli_w

from fieldwise.config import nearest, to_plain, toml_tables
from fieldwise.errors import ConfigError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import Recipe, checked_tables
from fieldwise.runs.setting_paths import (
    check_override,
    make_paths_absolute,
    make_vectors_absolute,
    parse_override,
    protocol_of,
)
from fieldwise.schema import Schema

RECIPES = Path(__file__).parents[1] / "recipes"
KEYS_OF_A_CHOICE = {"kind", "name", "task"}
"""Tables that differ in one of these are of different classes."""


def load_recipe(
    source: str | Path, overrides: Sequence[str] = (), *, protocol: str | None = None
) -> Recipe:
    """A built-in recipe by name, or a recipe from a TOML file.

    A file may have `extends = "OTHER"` (a file in the same folder, or a built-in recipe): its
    settings override those of OTHER, table by table. Lists are replaced as a whole, and so are
    tables with a different `kind`, `name` or `task`, and data by `name` if data by `path` are
    given. `schema` may be the path of a schema file, relative to the recipe's folder, like
    `data.path`.

    Args:
        source: a name from `recipe_names`, or the path of a TOML file.
        overrides: `key=value` with a dotted key and a TOML value, such as `training.epochs=3`, or
            `protocol=time`.
        protocol: name of another split and feature definition (`protocol_names`), whose settings
            override the recipe's, if no override names one. Your own recipe file has those of the
            recipe that it extends, or else of its data set.

    Errors:
        ConfigError: no such recipe or protocol, invalid TOML, an unknown key (the nearest known one
            is named).

    >>> load_recipe("simulated/afm", ["model.attention_dim=8"]).model.attention_dim
    8
    """
    settings, name = _recipe_settings(source, overrides, protocol)
    return Recipe.from_dict(settings, name)


def check_recipe(source: str | Path, overrides: Sequence[str] = ()) -> None:
    """Check a recipe without PyTorch: raises the errors of `load_recipe`, except for the model's settings."""
    settings, name = _recipe_settings(source, overrides)
    checked_tables(settings, name)


def recipe_names() -> list[str]:
    """Names of the built-in recipes, sorted. Files that begin with `_` are shared parts."""
    files = (file for file in RECIPES.glob("*/*.toml") if not file.name.startswith("_"))
    return sorted(f"{file.parent.name}/{file.stem}" for file in files)


def protocol_names(folder: str) -> list[str]:
    """Names of the built-in protocols for the recipes of a folder, such as `movielens-1m`, sorted."""
    return sorted(file.stem for file in (RECIPES / folder / "protocols").glob("*.toml"))


def recipe_toml(plain: Mapping[str, Any]) -> str:
    """A recipe file of `Recipe.to_dict`'s values, without empty ones and what the source of the rows has by default.

    >>> print(recipe_toml({"data": {"path": "a.csv", "encoding": "utf-8", "rows": 120_000}, "protocol": "", "seed": 1}))
    seed = 1
    <BLANKLINE>
    [data]
    path = "a.csv"
    <BLANKLINE>
    """
    data_defaults = to_plain(DataSettings(path=""))
    data = {
        name: value for name, value in plain["data"].items() if value != data_defaults.get(name)
    }
    tables = {**plain, "data": data}
    return tomli_w.dumps({name: value for name, value in tables.items() if value not in ("", {})})


def _recipe_settings(
    source: str | Path, overrides: Sequence[str], protocol: str | None = None
) -> tuple[dict[str, Any], str]:
    """A recipe's tables with all overrides, and its name; the overrides lie over the protocol that they name."""
    name, file = _find(source)
    settings, files = _read(file, name, ())

    overriding_protocol = protocol_of(overrides)
    if overriding_protocol is not None:
        protocol = overriding_protocol
    if protocol is not None:
        of_protocol = _protocol_settings(protocol, name, settings, files)
        if "split" in of_protocol:
            settings.pop("split", None)  # the protocol's split replaces it as a whole
        settings = _merge(settings, of_protocol)

    for tables in map(parse_override, overrides):
        if "protocol" not in tables:
            settings = _merge(settings, tables)
    for override in overrides:
        check_override(override, settings)
    return settings, name


def _protocol_settings(
    protocol: str, name: str, settings: Mapping[str, Any], files: Sequence[Path]
) -> dict[str, Any]:
    """The settings of a protocol by name, for a recipe that was read from `files`, itself and those that it extends."""
    folder = _protocol_folder(settings, files)
    known = [] if folder is None else protocol_names(folder)
    if folder is not None and protocol in known:
        of_protocol, _ = _read(RECIPES / folder / "protocols" / f"{protocol}.toml", name, ())
        return of_protocol

    if known:
        hint = nearest(protocol, known)
    elif folder is None:
        hint = "your own data are split by the recipe's [split]"
    else:
        hint = f"the package has none for {folder}"
    raise ConfigError(f"recipe {name} has no protocol {protocol!r}: {hint}")


def _protocol_folder(settings: Mapping[str, Any], files: Sequence[Path]) -> str | None:
    """The package's folder whose protocols a recipe has; None if its data are not a public set.

    It is the first with protocols among the recipe's own folder, those of the recipes that it
    extends, and the one named like its data set; else the first.
    """
    data = settings.get("data")
    public_set = data.get("name") if isinstance(data, dict) else None
    if public_set is None:
        return None
    folders = [file.parent.name for file in files if file.parent.parent == RECIPES]
    folders.append(str(public_set))
    folders_with_protocols = (folder for folder in folders if protocol_names(folder))
    return next(folders_with_protocols, folders[0])


def _find(source: str | Path) -> tuple[str, Path]:
    """The name and the file of a recipe, which is given by its name or its file."""
    path = Path(source)
    if path.suffix not in ("", ".toml"):
        from fieldwise.data.read.formats import format_of  # which imports Polars

        if format_of(path) is not None:
            raise ConfigError(
                f"a recipe is a TOML file or a built-in name, found the table {path}: `fieldwise init {path}` writes "
                "a recipe for it"
            )
    if path.is_file():
        return str(path), path
    if path.suffix == ".toml":
        hint = _nearest_file(path) or "; check the path, or see `fieldwise describe`"
        raise ConfigError(f"a recipe file must exist: {path} does not{hint}")

    name = str(source)
    names = recipe_names()
    if name in names:
        return name, RECIPES / f"{name}.toml"
    if name and path.is_dir():
        raise ConfigError(
            f"a recipe must be a TOML file or a built-in name, found the folder {path}"
        )
    hint = _nearest_file(path) or f": {nearest(name, names)}"
    raise ConfigError(f"no recipe is named {name!r}{hint}")


def _nearest_file(path: Path) -> str:
    """A hint with the recipe file in the same folder whose name is nearest, or an empty text."""
    try:
        names = [file.name for file in path.parent.glob("*.toml") if _may_be_recipe(file)]
    except OSError:
        return ""
    close_names = get_close_matches(path.name, names, n=1, cutoff=0.7)
    if not close_names:
        return ""
    return f": did you mean {str(path.with_name(close_names[0]))!r}?"


def _may_be_recipe(file: Path) -> bool:
    """Whether a TOML file is a recipe or, in need of correction, may become one; not a schema."""
    try:
        return file.is_file() and "fields" not in toml_tables(file.read_text("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return True


def _read(file: Path, name: str, seen: tuple[Path, ...]) -> tuple[dict[str, Any], list[Path]]:
    """The settings of a recipe file laid over those that it extends, and all of these files, its own first."""
    if file.resolve() in seen:
        names = " -> ".join(path.name for path in (*seen, file))
        raise ConfigError(f"recipe {name}: extends must not be circular, found {names}")
    try:
        settings = toml_tables(file.read_text("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"recipe {name} ({file.name}) must be valid TOML in UTF-8: {e}") from None
    except OSError as e:
        raise ConfigError(f"recipe {name}: {file.name} cannot be read: {e.strerror or e}") from None
    if "fields" in settings:
        raise ConfigError(
            f"a recipe is needed, found the schema {file}: name the recipe that refers to it"
        )
    if isinstance(settings.get("schema"), str):
        schema_file = file.parent / settings["schema"]
        settings["schema"] = Schema.from_toml(schema_file).to_dict()
        make_vectors_absolute(settings["schema"], schema_file.parent)
    make_paths_absolute(settings, file.parent)

    extended = settings.pop("extends", None)
    if extended is None:
        return settings, [file]
    extended_name = f"{str(extended).removesuffix('.toml')}.toml"
    extended_file = file.parent / extended_name
    if not extended_file.exists():
        extended_file = RECIPES / extended_name
    inherited, files = _read(extended_file, name, (*seen, file.resolve()))
    return _merge(inherited, settings), [file, *files]


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables over others; a table with another `kind`, `name` or `task` replaces the other as a whole."""
    merged = dict(base)
    for key, value in over.items():
        base_value = merged.get(key)
        merged[key] = value
        if not isinstance(value, Mapping) or not isinstance(base_value, Mapping):
            continue
        changed = [name for name in value if value[name] != base_value.get(name)]
        is_path_for_name = "path" in value and "name" in base_value  # of data
        if not is_path_for_name and KEYS_OF_A_CHOICE.isdisjoint(changed):
            merged[key] = _merge(base_value, value)
    return merged
