"""Recipes: data, schema, split, model and training of one run, in TOML. A paper's table row is one recipe."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fieldwise.config import nearest, parse, to_plain
from fieldwise.data.history import HistorySettings
from fieldwise.data.negatives import NegativeSampling
from fieldwise.data.split_settings import RandomSplit, SplitSettings
from fieldwise.errors import ConfigError
from fieldwise.models import ModelSettings
from fieldwise.models.build import model_from_dict, model_to_dict
from fieldwise.schema import Schema
from fieldwise.training.settings import TrainingSettings

__all__ = ["DataSettings", "Recipe", "check_seed", "load_recipe", "recipe_names"]

RECIPES = Path(__file__).parent / "recipes"
CHOICES = ("kind", "name", "task")
SECTIONS = ("data", "schema", "split", "negatives", "history", "model", "training", "warm_start", "seed", "description")


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where the rows come from.

    Args:
        name: a public set (`fieldwise data list`) or `simulated`.
        path: a file of one's own (CSV, TSV, Parquet, Arrow), instead of `name`.
            A relative path in a recipe file counts from that file's folder.
        separator: of a text file, where it is not the usual one.
        encoding: of a text file, where it is not UTF-8.
        rows: of the simulated log.
        users: of the simulated log.
        items: of the simulated log.
        seed: of the simulated log.
    """

    name: str | None = None
    path: str | None = None
    separator: str | None = None
    encoding: str = "utf-8"
    rows: int = 120_000
    users: int = 1_000
    items: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            raise ConfigError("give either name (a known data set) or path (a file), not both and not neither")
        check_seed(self.seed)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run, ready to train.

    Args:
        warm_start: folder of a bundle that the network starts from (`fieldwise.warm_start`), such as a trained FM for
            an AFM. A relative path in a recipe file counts from that file's folder.
        seed: of split, negatives, initial weights, row order and dropout.
    """

    name: str
    data: DataSettings
    schema: Schema
    model: ModelSettings
    split: SplitSettings = field(default_factory=RandomSplit)
    negatives: NegativeSampling | None = None
    history: HistorySettings | None = None
    training: TrainingSettings = field(default_factory=TrainingSettings)
    warm_start: str | None = None
    description: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` reads back."""
        plain: dict[str, Any] = to_plain(self)
        del plain["name"]
        return {**plain, "model": model_to_dict(self.model)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], name: str) -> "Recipe":
        """From the tables of a recipe file, with `extends` already resolved.

        Errors:
            ConfigError, SchemaError: an unknown, missing or wrong setting, by its path.
        """
        top = parse(_Top, data, f"recipe {name}")
        return cls(
            name=name,
            description=top.description,
            data=top.data,
            schema=Schema.from_dict(top.schema, f"recipe {name}.schema"),
            split=top.split,
            negatives=top.negatives,
            history=top.history,
            model=model_from_dict(top.model, f"recipe {name}.model"),
            training=top.training,
            warm_start=top.warm_start,
            seed=top.seed,
        )


@dataclass(frozen=True, kw_only=True)
class _Top:
    data: DataSettings
    schema: dict[str, Any]
    model: dict[str, Any]
    split: SplitSettings = field(default_factory=RandomSplit)
    negatives: NegativeSampling | None = None
    history: HistorySettings | None = None
    training: TrainingSettings = field(default_factory=TrainingSettings)
    warm_start: str | None = None
    description: str = ""
    seed: int = 0


def check_seed(seed: int) -> None:
    """A seed must be one that NumPy and PyTorch both take: 0 to 2**32 - 1, or ConfigError."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed must lie between 0 and {2**32 - 1}, found {seed}")


def recipe_names() -> list[str]:
    """Names of the recipes in the package, sorted. Files that begin with `_` are shared parts."""
    files = (f for f in RECIPES.glob("*/*.toml") if not f.name.startswith("_"))
    return sorted(f"{f.parent.name}/{f.stem}" for f in files)


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by its name in the package or by the path of a TOML file.

    A file may say `extends = "OTHER"` (a file beside it, without `.toml`, or a recipe of the package): its settings
    are laid over those of OTHER, table by table. Lists are replaced whole, and so is a table whose `kind`, `name` or
    `task` differs, and data by `name` where data by `path` are given. `schema` may be the path of a schema's own file,
    counted, as `data.path`, from the recipe's folder.

    Args:
        source: a name that `recipe_names` gives, or the path of a TOML file.
        overrides: `key=value` with a dotted key and a TOML value, such as `training.epochs=3`.

    Errors:
        ConfigError: no such recipe, invalid TOML, an unknown key (the nearest known one is named).

    >>> load_recipe("simulated/afm", ["model.attention_dim=8"]).model.attention_dim
    8
    """
    name, file = _find(source)
    settings = _read(file, name, ())
    for override in overrides:
        settings = _merge(settings, _parse_override(override))
    return Recipe.from_dict(settings, name)


def _find(source: str | Path) -> tuple[str, Path]:
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise ConfigError(f"a recipe file must exist: {path} does not; check the path, or see `fieldwise recipes`")
        return str(path), path
    names = recipe_names()
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


def _parse_override(override: str) -> dict[str, Any]:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"a setting is given as key=value, found {override!r}")
    path = [part.strip() for part in key.split(".")]
    if path[0] not in SECTIONS:
        in_training = path[0] in {f.name for f in dataclasses.fields(TrainingSettings)}
        hint = f"did you mean 'training.{key.strip()}'?" if in_training else nearest(path[0], SECTIONS)
        raise ConfigError(f"--set {override}: a recipe has no table {path[0]!r}: {hint}")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    if path[:2] == ["training", "l2"] and len(path) > 2:
        path = ["training", "l2", ".".join(path[2:])]
    for part in reversed(path):
        value = {part: value}
    result: dict[str, Any] = value
    _anchor(result, Path())
    return result
