"""Recipes: data, schema, split, model and training of one run, in TOML."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fieldwise.config import given_plain, nearest, parse, to_plain
from fieldwise.data.prepare.settings import HistorySettings, NegativeSampling, TargetEncoding
from fieldwise.data.prepare.split_settings import RandomSplit, SplitSettings
from fieldwise.errors import ConfigError
from fieldwise.runs.search_space import Bounds, parse_space
from fieldwise.runs.setting_names import SURE, nearest_setting, setting_names
from fieldwise.schema import Schema
from fieldwise.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fieldwise.models import ModelSettings

__all__ = [
    "DataSettings",
    "Recipe",
    "check_recipe",
    "check_seed",
    "load_recipe",
    "protocol_names",
    "recipe_names",
    "setting_path",
]

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

Defaults = Literal["data", "fixed"]


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The source of the rows.

    Args:
        name: a public data set (`fieldwise data list`) or `simulated`.
        path: your own file (CSV, TSV, Parquet, Arrow), instead of `name`. A relative path in a recipe file is relative
            to that file's folder.
        separator: delimiter of a text file; by its suffix if omitted.
        encoding: encoding of a text file, if not UTF-8.
        columns: column names of a text file without a header line.
        rows: number of rows of the simulated log.
        users: number of users of the simulated log.
        items: number of items of the simulated log.
        seed: seed of the simulated log.
    """

    name: str | None = None
    path: str | None = None
    separator: str | None = None
    encoding: str = "utf-8"
    columns: tuple[str, ...] | None = None
    rows: int = 120_000
    users: int = 1_000
    items: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            raise ConfigError("give either name (a known data set) or path (a file)")
        if self.columns is not None:
            if isinstance(self.columns, str):
                raise ConfigError(f"data.columns is a list of names, found the text {self.columns!r}")
            object.__setattr__(self, "columns", tuple(self.columns))
            if self.path is None:
                raise ConfigError("data.columns are the column names of your own text file: also give data.path")
        check_seed(self.seed)


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

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values for `from_dict`."""
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

        return cls(
            name=name,
            description=top.description,
            benchmark=top.benchmark,
            protocol=top.protocol,
            search=search,
            data=top.data,
            schema=schema,
            split=top.split,
            negatives=top.negatives,
            history=top.history,
            target_encoding=top.target_encoding,
            model=model_from_dict(top.model, f"recipe {name}.model"),
            training=top.training,
            defaults=top.defaults,
            warm_start=top.warm_start,
            seed=top.seed,
            data_seed=top.data_seed,
        )


@dataclass(frozen=True, kw_only=True)
class _Top:
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


def check_seed(seed: int, what: str = "seed") -> None:
    """Check that a seed is valid for NumPy and PyTorch: 0 to 2**32 - 1."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"{what} must lie between 0 and {2**32 - 1}, found {seed}")


def recipe_names() -> list[str]:
    """Names of the built-in recipes, sorted. Files that begin with `_` are shared parts."""
    files = (f for f in RECIPES.glob("*/*.toml") if not f.name.startswith("_"))
    return sorted(f"{f.parent.name}/{f.stem}" for f in files)


def protocol_names(folder: str) -> list[str]:
    """Names of the built-in protocols for the recipes of a folder, such as `movielens-1m`, sorted."""
    return sorted(file.stem for file in (RECIPES / folder / "protocols").glob("*.toml"))


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
    settings, name = _settings(source, overrides, protocol)
    return Recipe.from_dict(settings, name)


def check_recipe(source: str | Path, overrides: Sequence[str] = (), *, protocol: str | None = None) -> None:
    """Check a recipe without PyTorch: raises the errors of `load_recipe`, except for the model's settings."""
    settings, name = _settings(source, overrides, protocol)
    _checked(settings, name)


def _settings(source: str | Path, overrides: Sequence[str], protocol: str | None) -> tuple[dict[str, Any], str]:
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
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise ConfigError(f"a recipe file must exist: {path} does not; check the path, or see `fieldwise recipes`")
        return str(path), path
    names = recipe_names()
    if str(source) not in ("", *names) and path.is_dir():
        raise ConfigError(f"a recipe must be a TOML file or a built-in name, found the folder {path}")
    if str(source) not in names:
        raise ConfigError(f"no recipe is named {str(source)!r}: {nearest(str(source), names)}")
    return str(source), RECIPES / f"{source}.toml"


def _read(file: Path, name: str, seen: tuple[Path, ...]) -> dict[str, Any]:
    if file.resolve() in seen:
        names = " -> ".join(f.name for f in (*seen, file))
        raise ConfigError(f"recipe {name}: extends must not be circular, found {names}")
    try:
        settings = tomllib.loads(file.read_text("utf-8-sig"))
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
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for part in reversed(path):
        value = {part: value}
    result: dict[str, Any] = value
    _anchor(result, Path())
    return result
