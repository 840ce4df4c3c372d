"""Recipes: data, schema, split, model and training of one run, in TOML; their files, and single settings by path."""

import dataclasses
import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, make_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import tomli_w

from fieldwise.config import changed, given_plain, nearest, parse, to_plain, toml_tables
from fieldwise.data.prepare.settings import (
    HistorySettings,
    NegativeSampling,
    RandomSplit,
    SplitSettings,
    TargetEncoding,
)
from fieldwise.data.read.file_listing import kind_of
from fieldwise.errors import ConfigError
from fieldwise.schema import Schema
from fieldwise.storage.machine import available_memory, parse_bytes
from fieldwise.training.settings import LBFGS, TrainingSettings

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.data.read.text_files import TextFormat
    from fieldwise.models import ModelSettings

RECIPES = Path(__file__).parents[1] / "recipes"
# in place of a path, for a table in memory that is not written to a file
IN_MEMORY = "table-in-memory"
CHOICES = ("kind", "name", "task")
MIN_SIMILARITY = 0.6  # minimum similarity of a suggested setting
SURE_SIMILARITY = 0.9  # similarity above which no other is searched
MOST_COMPARED = 200  # letters of a path that are compared: 200,000 take half a minute
LEAST_MEMORY = 64_000_000  # bytes


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The source of the rows.

    Args:
        name: a public data set (`fieldwise fetch`) or `simulated`.
        path: your own file (CSV, TSV, Parquet, Arrow, libFM), a folder of files of one kind, or a
            pattern such as `logs/*.parquet`, read in the order of the files' names; instead of
            `name`. A relative path in a recipe file is relative to that file's folder.
        separator: delimiter of a text file; detected if omitted.
        encoding: encoding of a text file, if not UTF-8.
        columns: column names of a text file without a header line.
        memory: memory for the rows while they are prepared, such as `2GB`, or a number of bytes; if
            omitted, half of what the machine has available then. Prepared data do not depend on it.
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
    memory: float | str | None = None
    rows: int = 120_000
    users: int = 1_000
    items: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            found = "neither" if self.name is None else f"both {self.name!r} and {str(self.path)!r}"
            raise ConfigError(
                f"data needs either name (a known data set) or path (a file), found {found}: give one"
            )
        if self.columns is not None:
            if isinstance(self.columns, str):
                raise ConfigError(
                    f"data.columns is a list of names, found the text {self.columns!r}"
                )
            object.__setattr__(self, "columns", tuple(self.columns))
            if self.path is None:
                raise ConfigError(
                    "data.columns are the column names of your own text file: also give data.path"
                )
        if self.memory is not None and parse_bytes(self.memory, "data.memory") < LEAST_MEMORY:
            raise ConfigError(
                f"data.memory must be at least {LEAST_MEMORY // 10**6}MB, found {self.memory!r}"
            )
        check_seed(self.seed)

    @property
    def memory_bytes(self) -> int:
        """The bytes of `memory`; if it is omitted, half of what the machine has available now."""
        return (
            available_memory() // 2
            if self.memory is None
            else parse_bytes(self.memory, "data.memory")
        )

    def text(self, text_columns: Sequence[str] = ()) -> "TextFormat":
        """How delimited text of `path` is written, and which of its columns a schema reads as text."""
        from fieldwise.data.read.text_files import TextFormat  # which imports Polars

        return TextFormat(
            separator=self.separator,
            encoding=self.encoding,
            columns=self.columns,
            text_columns=tuple(text_columns),
        )


def check_seed(seed: int, what: str = "seed") -> None:
    """Check that a seed is valid for NumPy and PyTorch: 0 to 2**32 - 1."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"{what} must lie between 0 and {2**32 - 1}, found {seed}")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers between two inclusive bounds; whole numbers if both bounds are.

    Args:
        log: uniform on a logarithmic scale.
        step: only `low` plus multiples of `step`.
    """

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ConfigError(f"low must not exceed high, found {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ConfigError(f"a range with log = true lies above 0, found low = {self.low:g}")
        if self.log and self.step is not None:
            raise ConfigError("a range has log = true or a step, found both")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ConfigError(f"step must be positive and at most high - low, found {self.step:g}")
        if self.whole and isinstance(self.step, float):
            raise ConfigError(f"the step of a range of whole numbers is one, found {self.step:g}")

    @property
    def whole(self) -> bool:
        """Whether the range has whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, trial: "BaseTrial", name: str) -> Any:
        """A value of Optuna's choice."""
        if self.whole:
            return trial.suggest_int(
                name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log
            )
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A choice of values: numbers, texts, booleans, or lists of them."""

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise ConfigError("choices must have at least one value, found none")

    def suggest(self, trial: "BaseTrial", name: str) -> Any:
        """A value of Optuna's choice."""
        plain = [stored(value) for value in self.choices]
        return self.choices[plain.index(trial.suggest_categorical(name, plain))]


Bounds = Range | Choices


def stored(value: Any) -> Any:
    """A choice as a study has it: a list as text."""
    return value if isinstance(value, (str, int, float)) else json.dumps(value)


def parse_space(tables: Mapping[str, Any], where: str) -> dict[str, Bounds | Literal[False]]:
    """A space by dotted path, such as `training.learning_rate`, from a recipe's `[search]`.

    Paths may be quoted keys or nested tables; `false` removes a path from the overridden space.

    Errors:
        ConfigError: neither bounds nor choices, or invalid ones.

    >>> parse_space({"training": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}}, "search")
    {'training.learning_rate': Range(low=0.0001, high=0.01, log=True, step=None)}
    """
    space: dict[str, Bounds | Literal[False]] = {}
    for key, value in tables.items():
        path = f"{where}.{key}"
        if value is False:
            space[key] = False
        elif not isinstance(value, Mapping):
            raise ConfigError(
                f"{path} must be a table with low and high, or with choices, or false, found {value!r}"
            )
        elif "choices" in value:
            space[key] = parse(Choices, value, path)
        elif "low" in value or "high" in value:
            space[key] = parse(Range, value, path)
        else:
            space |= {f"{key}.{rest}": result for rest, result in parse_space(value, path).items()}
    return space


@cache
def default_space(model: str) -> Mapping[str, Bounds]:
    """The built-in space of a model by name: the space of all models, overridden by its own."""
    tables = tomllib.loads((RECIPES / "_search.toml").read_text("utf-8"))
    return merged_space(
        *(parse_space(tables.get(name, {}), f"search.{name}") for name in ("all", model))
    )


def merged_space(*spaces: Mapping[str, Bounds | Literal[False]]) -> dict[str, Bounds]:
    """Merged spaces, where later ones override; paths that are False are removed."""
    merged = {path: bounds for space in spaces for path, bounds in space.items()}
    return {path: bounds for path, bounds in merged.items() if bounds is not False}


Defaults = Literal["data", "fixed"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run, ready to train.

    Args:
        defaults: source of omitted `[model]` and `[training]` settings: `data`, rules on the
            training rows (`fieldwise.runs.default_settings`), or `fixed`, the classes' defaults, as
            in recipes of papers and benchmarks.
        warm_start: folder of a bundle for a warm start (`fieldwise.bundle.bundle.warm_start`), such
            as a trained FM for an AFM. A relative path in a recipe file is relative to that file's
            folder.
        search: search space of `fieldwise tune`, by dotted path, merged over the built-in space of
            the model.
        benchmark: name of the task: rows, fields and label. Metrics are comparable only within one
            benchmark and protocol.
        protocol: name of the split and feature definition; some data sets have several.
        seed: seed of initial weights, row order and dropout; also of split and negatives if
            `data_seed` is omitted.
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
            from fieldwise.models.registry import as_settings

            object.__setattr__(self, "model", as_settings(self.model))

    @property
    def rows_seed(self) -> int:
        """The seed of the split and negatives."""
        return self.seed if self.data_seed is None else self.data_seed

    def cautions(self, prepared: "Prepared | None" = None) -> list[str]:
        """Warnings of a protocol that leaks, for comparison with published figures only; counted in prepared rows."""
        sentences = []
        encoding = self.target_encoding
        split = self.split
        if encoding is not None and encoding.source != "train":
            rows = (
                ""
                if prepared is None
                else f", which are all {prepared.counts['test_rows']:,} test rows"
            )
            sentences.append(
                f"target_encoding.source = {encoding.source!r} uses the labels of the scored rows{rows}: metrics are "
                "too good, and only comparable with published ones that have the same leak"
            )
        if isinstance(split, RandomSplit) and split.drop_without_positive is not None:
            dropped = 0 if prepared is None else prepared.counts.get("dropped_by_split", 0)
            rows = "" if prepared is None else f", which left out {dropped:,}"
            sentences.append(
                f"split.drop_without_positive = {split.drop_without_positive!r} chooses rows by their labels{rows}, "
                "also among the test rows: metrics are only comparable with published ones of the same rows"
            )
        if isinstance(split, RandomSplit) and split.valid_last_by is not None:
            sentences.append(
                f"split.valid_last_by = {split.valid_last_by!r} takes the last rows by that column for validation"
                f"{_unseen_words(split.valid_last_by, self.schema, prepared)}: metrics are only comparable with "
                "published ones of the same split"
            )
        return sentences

    def on(self, device: str) -> "Recipe":
        """The recipe, to be trained on another device (`training.device`)."""
        return dataclasses.replace(
            self, training=changed(self.training, {"device": device}, "training")
        )

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
            ConfigError, SchemaError: an unknown, missing or wrong setting; the message has its
                path.
        """
        top, schema, search = _checked(data, name)
        # imports PyTorch: only if the rest of the recipe is valid
        from fieldwise.models.build import model_from_dict

        more = {
            f.name: getattr(top, f.name)
            for f in fields(top)
            if f.name not in ("schema", "model", "search")
        }
        model = model_from_dict(top.model, f"recipe {name}: model")
        return cls(name=name, schema=schema, model=model, search=search, **more)


def _unseen_words(column: str, schema: Schema, prepared: "Prepared | None") -> str:
    """How many validation and test rows have a value in a field's column that no training row has."""
    fields = [f.name for f in schema.fields if f.column == column]
    if prepared is None or not fields or fields[0] not in prepared.unseen["test"]:
        return ""
    in_valid = prepared.unseen["valid"][fields[0]]
    in_test = prepared.unseen["test"][fields[0]]
    return (
        f", so that {in_valid:.1%} of the validation rows and {in_test:.1%} of the test rows have one that no training "
        "row has"
    )


SECTIONS = tuple(f.name for f in fields(Recipe)[1:])  # without the name
# the model's settings need PyTorch
_RAW = dict.fromkeys(("schema", "model", "search"), dict[str, Any])
_Tables: Any = make_dataclass(
    "_Tables", [(f.name, _RAW.get(f.name, f.type), copy(f)) for f in fields(Recipe)[1:]]
)
"""A recipe as its file has it: schema, model and search are not parsed yet."""


def _checked(
    data: Mapping[str, Any], name: str
) -> tuple[Any, Schema, dict[str, Bounds | Literal[False]]]:
    """The parts of a recipe, checked but for the model's settings, which need PyTorch."""
    top = parse(_Tables, data, f"recipe {name}:")
    check_seed(top.seed)
    check_seed(top.seed if top.data_seed is None else top.data_seed, "data_seed")
    schema = Schema.from_dict(top.schema, f"recipe {name}: schema")
    return top, schema, parse_space(top.search, f"recipe {name}: search")


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
    _checked(settings, name)


def recipe_names() -> list[str]:
    """Names of the built-in recipes, sorted. Files that begin with `_` are shared parts."""
    files = (f for f in RECIPES.glob("*/*.toml") if not f.name.startswith("_"))
    return sorted(f"{f.parent.name}/{f.stem}" for f in files)


def protocol_names(folder: str) -> list[str]:
    """Names of the built-in protocols for the recipes of a folder, such as `movielens-1m`, sorted."""
    return sorted(file.stem for file in (RECIPES / folder / "protocols").glob("*.toml"))


def protocol_of(overrides: Sequence[str]) -> str | None:
    """The protocol that overrides name last; None if they name none."""
    named = [
        str(table["protocol"]) for table in map(_parse_override, overrides) if "protocol" in table
    ]
    return named[-1] if named else None


def _recipe_settings(
    source: str | Path, overrides: Sequence[str], protocol: str | None = None
) -> tuple[dict[str, Any], str]:
    """A recipe's tables with all overrides, and its name; the overrides lie over the protocol that they name."""
    name, file = _find(source)
    settings, files = _read(file, name, ())
    named = protocol_of(overrides)
    chosen = protocol if named is None else named
    if chosen is not None:
        over = _protocol_settings(chosen, name, settings, files)
        if "split" in over:
            settings.pop("split", None)  # the protocol's split replaces it as a whole
        settings = _merge(settings, over)
    for table in map(_parse_override, overrides):
        if "protocol" not in table:
            settings = _merge(settings, table)
    for override in overrides:
        _check_name(override, settings)
    return settings, name


def _protocol_settings(
    chosen: str, name: str, settings: Mapping[str, Any], files: Sequence[Path]
) -> dict[str, Any]:
    """The settings of a protocol by name, for a recipe that was read from `files`, itself and those that it extends."""
    folder = _protocol_folder(settings, files)
    known = [] if folder is None else protocol_names(folder)
    if folder is None or chosen not in known:
        if known:
            hint = nearest(chosen, known)
        elif folder is None:
            hint = "your own data are split by the recipe's [split]"
        else:
            hint = f"the package has none for {folder}"
        raise ConfigError(f"recipe {name} has no protocol {chosen!r}: {hint}")
    over, _ = _read(RECIPES / folder / "protocols" / f"{chosen}.toml", name, ())
    return over


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
    with_protocols = (folder for folder in folders if protocol_names(folder))
    return next(with_protocols, folders[0])


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
                f"{_nearest_file(path) or '; check the path, or see `fieldwise describe`'}"
            )
        return str(path), path
    names = recipe_names()
    if str(source) not in ("", *names) and path.is_dir():
        raise ConfigError(
            f"a recipe must be a TOML file or a built-in name, found the folder {path}"
        )
    if str(source) not in names:
        suggestion = _nearest_file(path)
        raise ConfigError(
            f"no recipe is named {str(source)!r}{suggestion or f': {nearest(str(source), names)}'}"
        )
    return str(source), RECIPES / f"{source}.toml"


def _nearest_file(path: Path) -> str:
    """A hint with the recipe file in the same folder whose name is nearest, or an empty text."""
    names = []
    try:
        for file in path.parent.glob("*.toml"):
            try:  # a file with `fields` at the top, such as `schema.toml`, is a schema
                recipe = file.is_file() and "fields" not in toml_tables(file.read_text("utf-8-sig"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError):
                recipe = True  # in need of correction
            names += [file.name] if recipe else []
    except OSError:
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f": did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def _read(file: Path, name: str, seen: tuple[Path, ...]) -> tuple[dict[str, Any], list[Path]]:
    """The settings of a recipe file laid over those that it extends, and all of these files, its own first."""
    if file.resolve() in seen:
        names = " -> ".join(f.name for f in (*seen, file))
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
        settings["schema"] = Schema.from_toml(file.parent / settings["schema"]).to_dict()
    _anchor(settings, file.parent)
    base = settings.pop("extends", None)
    if base is None:
        return settings, [file]
    base = str(base).removesuffix(".toml")
    beside = file.parent / f"{base}.toml"
    other = beside if beside.exists() else RECIPES / f"{base}.toml"
    inherited, files = _read(other, name, (*seen, file.resolve()))
    return _merge(inherited, settings), [file, *files]


def _anchor(settings: dict[str, Any], folder: Path) -> None:
    """Make a relative `data.path` or `warm_start` relative to `folder`, independently of the working directory."""
    data = settings.get("data")
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        data["path"] = str((folder / data["path"]).resolve())
    if isinstance(settings.get("warm_start"), str):
        settings["warm_start"] = str((folder / settings["warm_start"]).resolve())


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables over others; a table with another `kind`, `name` or `task` replaces the other as a whole."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            other = any(choice in value and value[choice] != old.get(choice) for choice in CHOICES)
            merged[key] = (
                value if other or ("path" in value and "name" in old) else _merge(old, value)
            )
        else:
            merged[key] = value
    return merged


def setting_path(key: str) -> list[str]:
    """The parts of a dotted key in a recipe; below `training.l2` the rest is one parameter's name.

    >>> setting_path("training.l2.embedding.weight")
    ['training', 'l2', 'embedding.weight']
    """
    path = [part.strip() for part in key.split(".")]
    return (
        [*path[:2], ".".join(path[2:])]
        if path[:2] == ["training", "l2"] and len(path) > 2
        else path
    )


def _check_name(override: str, settings: Mapping[str, Any]) -> None:
    """Check that a recipe has a path, with the nearest name in the error; values are checked later."""
    key = override.partition("=")[0].strip()
    table, *below = setting_path(key)
    classes: dict[str, tuple[Any, ...]] = {
        "data": (DataSettings,),
        "split": get_args(SplitSettings),
        "negatives": (NegativeSampling,),
        "history": (HistorySettings,),
        "target_encoding": (TargetEncoding,),
        "training": (TrainingSettings,),
    }
    names = {
        section: {f.name for one in of for f in fields(one)} for section, of in classes.items()
    }
    chosen = settings.get("model")
    for model, least in ((table == "model", SURE_SIMILARITY), (True, MIN_SIMILARITY)):
        if model and isinstance(chosen, Mapping):  # last: they need PyTorch
            from fieldwise.models.registry import known_models

            if (own := known_models().get(str(chosen.get("name")))) is not None:
                names["model"] = {"name", *(f.name for f in fields(own))}  # type: ignore[arg-type]
        if table in SECTIONS and (not below or table not in names or below[0] in names[table]):
            return
        paths = {f"{section}.{name}" for section, within in names.items() for name in within}
        if (
            suggestion := nearest_setting(key, paths.union(set(SECTIONS) - names.keys()), least)
        ) is not None:
            break
    listing = nearest(below[0], names[table]) if table in names else nearest(table, SECTIONS)
    hint = (
        listing
        if suggestion is None
        else f"did you mean {suggestion!r}? {listing.partition('? ')[2] or listing}"
    )
    raise ConfigError(f"override {override}: a recipe has no setting {key!r}: {hint}")


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


def nearest_setting(key: str, known: Collection[str], least: float = MIN_SIMILARITY) -> str | None:
    """The nearest dotted path to a wrong one: similar as a whole, or with the same last part.

    >>> nearest_setting("epochs", ["training.epochs", "model.layers", "seed"])
    'training.epochs'
    >>> nearest_setting("modl.layrs", ["training.epochs", "model.layers", "seed"])
    'model.layers'
    """
    key = key[:MOST_COMPARED]

    def likeness(path: str) -> float:
        whole = SequenceMatcher(None, key, path).ratio()
        last = SequenceMatcher(None, key.rpartition(".")[2], path.rpartition(".")[2]).ratio()
        return max(whole, 0.95 * last)

    best = max(sorted(known), key=likeness, default=None)
    return best if best is not None and likeness(best) >= least else None


def search_space(recipe: Recipe) -> dict[str, Bounds]:
    """The search space: the built-in space of the model, overridden by the recipe's `[search]`."""
    from fieldwise.models.build import model_name

    space = default_space(model_name(recipe.model))
    if recipe.training.optimizer == LBFGS:
        space = {path: bounds for path, bounds in space.items() if path != "training.learning_rate"}
    names = {f"model.{f.name}" for f in fields(recipe.model)}  # type: ignore[arg-type]
    space = {
        path: bounds
        for path, bounds in space.items()
        if not path.startswith("model.") or path in names
    }
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
        for value in bounds.choices if isinstance(bounds, Choices) else (bounds.low, bounds.high):
            with_values(recipe, {path: value})


def recipe_toml(plain: Mapping[str, Any]) -> str:
    """A recipe file of `Recipe.to_dict`'s values, without empty ones and what the source of the rows has by default.

    >>> print(recipe_toml({"data": {"path": "a.csv", "encoding": "utf-8", "rows": 120_000}, "protocol": "", "seed": 1}))
    seed = 1
    <BLANKLINE>
    [data]
    path = "a.csv"
    <BLANKLINE>
    """
    usual = to_plain(DataSettings(path=""))
    data = {name: value for name, value in plain["data"].items() if value != usual.get(name)}
    return tomli_w.dumps({k: v for k, v in {**plain, "data": data}.items() if v not in ("", {})})


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
                raise ConfigError(
                    f"search.{path}: {key!r} of the recipe is not a table of settings"
                )
        table[keys[-1]] = to_plain(value)
    result = Recipe.from_dict(plain, recipe.name)
    device = recipe.training.device  # not part of the plain values
    return result if device == result.training.device else result.on(device)


def value_at(recipe: Recipe, path: str) -> Any:
    """The recipe's value at a dotted path; None if there is none."""
    value: Any = recipe.to_dict()
    for key in setting_path(path):
        value = value.get(key) if isinstance(value, dict) else None
    return value
