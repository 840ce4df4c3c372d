"""Recipes: data, schema, split, model and training of one run, in TOML. A paper's table row is one recipe."""

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
    """Where the rows come from.

    Args:
        name: a public set (`fieldwise data list`) or `simulated`.
        path: a file of one's own (CSV, TSV, Parquet, Arrow), instead of `name`.
            A relative path in a recipe file counts from that file's folder.
        separator: of a text file, where it is not the usual one.
        encoding: of a text file, where it is not UTF-8.
        columns: names of the columns of a text file without a header line.
        rows: of the simulated log.
        users: of the simulated log.
        items: of the simulated log.
        seed: of the simulated log.
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
            raise ConfigError("give either name (a known data set) or path (a file), not both and not neither")
        if self.columns is not None:
            if isinstance(self.columns, str):
                raise ConfigError(f"data.columns is a list of names, found the text {self.columns!r}")
            object.__setattr__(self, "columns", tuple(self.columns))
            if self.path is None:
                raise ConfigError("data.columns names the columns of a text file of one's own: give data.path too")
        check_seed(self.seed)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run, ready to train.

    Args:
        defaults: what settings of `[model]` and `[training]` are that the recipe does not give: `data`, by rules from
            the training rows (`fieldwise.runs.defaults`), or `fixed`, the values of the settings' classes, as the
            recipes of papers and benchmarks have them.
        warm_start: folder of a bundle that the network starts from (`fieldwise.bundle.warm_start`), such as a
            trained FM for an AFM. A relative path in a recipe file counts from that file's folder.
        search: what `fieldwise tune` may change, by dotted path, over the package's space for the model.
        benchmark: the name of the task: rows, fields and label. Figures compare only within one benchmark and protocol.
        protocol: the name of the way its rows are divided and its features made; the package has several for some.
        seed: of initial weights, row order and dropout; of split and negatives too, where `data_seed` is left out.
        data_seed: of split and negatives.
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
        if isinstance(self.model, type):  # a model of one's own
            from fieldwise.models.own import as_settings

            object.__setattr__(self, "model", as_settings(self.model))

    @property
    def rows_seed(self) -> int:
        """The seed that decides which rows are whose."""
        return self.seed if self.data_seed is None else self.data_seed

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads back."""
        from fieldwise.models.build import model_name, model_to_dict

        plain: dict[str, Any] = to_plain(self)
        del plain["name"]
        if self.defaults == "fixed":
            return {**plain, "model": model_to_dict(self.model)}
        model = {"name": model_name(self.model), **given_plain(self.model)}
        return {**plain, "model": model, "training": given_plain(self.training)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], name: str) -> "Recipe":
        """From the tables of a recipe file, with `extends` already resolved.

        Errors:
            ConfigError, SchemaError: an unknown, missing or wrong setting, by its path.
        """
        top, schema, search = _checked(data, name)
        from fieldwise.models.build import model_from_dict  # PyTorch: where the rest of the recipe is right

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
    """All of a recipe but its model's settings, for which alone PyTorch is loaded."""
    top = parse(_Top, data, f"recipe {name}")
    check_seed(top.seed)
    check_seed(top.seed if top.data_seed is None else top.data_seed, "data_seed")
    schema = Schema.from_dict(top.schema, f"recipe {name}.schema")
    return top, schema, parse_space(top.search, f"recipe {name}.search")


def check_seed(seed: int, what: str = "seed") -> None:
    """A seed must be one that NumPy and PyTorch both take: 0 to 2**32 - 1, or ConfigError."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"{what} must lie between 0 and {2**32 - 1}, found {seed}")


def recipe_names() -> list[str]:
    """Names of the recipes in the package, sorted. Files that begin with `_` are shared parts."""
    files = (f for f in RECIPES.glob("*/*.toml") if not f.name.startswith("_"))
    return sorted(f"{f.parent.name}/{f.stem}" for f in files)


def protocol_names(folder: str) -> list[str]:
    """Names of the protocols in the package for the recipes of a folder, such as `movielens-1m`, sorted."""
    return sorted(file.stem for file in (RECIPES / folder / "protocols").glob("*.toml"))


def load_recipe(source: str | Path, overrides: Sequence[str] = (), *, protocol: str | None = None) -> Recipe:
    """A recipe by its name in the package or by the path of a TOML file.

    A file may say `extends = "OTHER"` (a file beside it, or a recipe of the package): its settings
    are laid over those of OTHER, table by table. Lists are replaced whole, and so is a table whose `kind`, `name` or
    `task` differs, and data by `name` where data by `path` are given. `schema` may be the path of a schema's own file,
    counted, as `data.path`, from the recipe's folder.

    Args:
        source: a name that `recipe_names` gives, or the path of a TOML file.
        overrides: `key=value` with a dotted key and a TOML value, such as `training.epochs=3`.
        protocol: another way of dividing rows and making features, by its name (`protocol_names`): its settings are
            laid over the recipe's. A recipe file of one's own takes those of its data set.

    Errors:
        ConfigError: no such recipe or protocol, invalid TOML, an unknown key (the nearest known one is named).

    >>> load_recipe("simulated/afm", ["model.attention_dim=8"]).model.attention_dim
    8
    """
    settings, name = _settings(source, overrides, protocol)
    return Recipe.from_dict(settings, name)


def check_recipe(source: str | Path, overrides: Sequence[str] = (), *, protocol: str | None = None) -> None:
    """`load_recipe`'s errors but those of the model's settings, without PyTorch: what a command checks first."""
    settings, name = _settings(source, overrides, protocol)
    _checked(settings, name)


def _settings(source: str | Path, overrides: Sequence[str], protocol: str | None) -> tuple[dict[str, Any], str]:
    """A recipe's tables, with all that is laid over them, and its name."""
    name, file = _find(source)
    settings = _read(file, name, ())
    if protocol is not None:
        over = _protocol(protocol, name, settings)
        if "split" in over:
            settings.pop("split", None)  # the protocol's split is the whole of it
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
    none = f"the package has none for {folder}" if folder else "data of your own are divided by the recipe's [split]"
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
        raise ConfigError(f"a recipe must be a TOML file or a name of the package's, found the folder {path}")
    if str(source) not in names:
        raise ConfigError(f"no recipe is named {str(source)!r}: {nearest(str(source), names)}")
    return str(source), RECIPES / f"{source}.toml"


def _read(file: Path, name: str, seen: tuple[Path, ...]) -> dict[str, Any]:
    if file.resolve() in seen:
        names = " -> ".join(f.name for f in (*seen, file))
        raise ConfigError(f"recipe {name}: extends must not go in a circle, found {names}")
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
    """A relative `data.path` or `warm_start` counts from `folder`, wherever a run is started and a bundle evaluated."""
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
    """Whether a table chooses something else than the one below it, whose settings then mean nothing."""
    return ("path" in new and "name" in old) or any(c in new and new[c] != old.get(c) for c in CHOICES)


def setting_path(key: str) -> list[str]:
    """The tables of a recipe that a dotted key leads through; below `training.l2` the rest is one parameter's name.

    >>> setting_path("training.l2.embedding.weight")
    ['training', 'l2', 'embedding.weight']
    """
    path = [part.strip() for part in key.split(".")]
    return [*path[:2], ".".join(path[2:])] if path[:2] == ["training", "l2"] and len(path) > 2 else path


def _check_name(override: str, settings: Mapping[str, Any]) -> None:
    """Refuse a path that a recipe does not have, and name the nearest of all; values are checked as they are read."""
    key = override.partition("=")[0].strip()
    table, *below = setting_path(key)
    names = setting_names(settings, DataSettings, model=table == "model")
    if table in SECTIONS and (not below or table not in names or below[0] in names[table]):
        return
    near = nearest_setting(key, _paths(names), SURE)
    if near is None:  # the model's settings too, for which PyTorch is loaded
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
        raise ConfigError(f"a setting is given as key=value, found {override!r}")
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
