"""Settings as frozen dataclasses, built from plain mappings (TOML, JSON) with clear errors."""

import dataclasses
import difflib
import functools
import math
import numbers
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, InitVar, dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from fieldwise.errors import ConfigError, FieldwiseError

T = TypeVar("T")
# half of the time of `parse`
_hints: Callable[[type], dict[str, Any]] = functools.cache(typing.get_type_hints)
MOST_SHOWN = 32
MOST_LEVELS = 50  # of tables and arrays in TOML; more is no settings file
LOCAL = {"local": True}
"""Metadata of a dataclass field that belongs to this machine, not to the work: `to_plain` leaves it out."""
KEY = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
# the time to parse one grows with its square
LONG_KEY = re.compile(rf"(?<![\w-])(?:{KEY}){{{MOST_LEVELS}}}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of settings that remember which values were given.

    A recipe or an estimator chooses the others from the data before training
    (`fieldwise.runs.default_settings`). Until then they have the class's defaults, which a network
    built directly from the settings uses. Settings with equal values are equal, whichever were
    given. Copies have the same ones given, and `dataclasses.replace` adds those that it changes.
    """

    _given: InitVar[tuple[str, ...] | None] = None
    """For `dataclasses.replace` alone, which passes the attribute of the original, and every setting."""

    def __new__(
        cls, *unnamed: Any, _given: tuple[str, ...] | None = None, **settings: Any
    ) -> "Settings":
        """A new object, before `__init__` fills it; a ConfigError for settings without a name, and unknown names."""
        defaults = {f.name: _default(f) for f in dataclasses.fields(cls) if f.init}
        if unnamed:
            example = ", and has none"
            if defaults:
                example = f", as in {cls.__name__}({next(iter(defaults))}={unnamed[0]!r})"
            raise ConfigError(
                f"{cls.__name__} takes settings by name{example}; found {unnamed[0]!r} without a name"
            )
        for name in settings:
            if name not in defaults:
                raise ConfigError(unknown_setting(cls.__name__, name, defaults))

        names = sorted(settings)
        if _given is not None:
            names = [name for name in names if name in _given or settings[name] != defaults[name]]
        instance = super().__new__(cls)
        # A tuple: a copied set may have another order and hash.
        object.__setattr__(instance, "_given", tuple(names))
        return instance

    def __post_init__(self, _given: tuple[str, ...] | None) -> None:
        self.check()

    def check(self) -> None:
        """Check the settings; a subclass that checks more calls this first."""
        convert_settings(self)


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()


def given(settings: Any) -> frozenset[str]:
    """The names of the settings that were given; all of them for a dataclass that is not a `Settings`.

    >>> from fieldwise.models import FM
    >>> sorted(given(FM(embedding_dim=8)))
    ['embedding_dim']
    """
    if isinstance(settings, Settings):
        return frozenset(vars(settings)["_given"])
    return frozenset(f.name for f in dataclasses.fields(settings) if f.init)


def convert_settings(settings: Any) -> None:
    """Check the values of a frozen dataclass by its annotations, and convert them as `parse` does: 1 to 1.0.

    Annotations that `parse` does not know are not checked.

    Errors:
        ConfigError: a value of the wrong type, an unknown choice, or a number that is not finite.

    >>> from fieldwise import TrainingSettings
    >>> TrainingSettings(epochs="3")
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: epochs must be of type int, found '3'
    """
    hints = _hints(type(settings))
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        try:
            converted = _convert_field(value, f, hints[f.name], f.name, ConfigError)
        except TypeError:  # `isinstance` does not know the annotation of a user's own setting
            continue
        if converted is not value:
            object.__setattr__(settings, f.name, converted)


def check_numbers(settings: Any, rule: str, fits: Callable[[Any], bool], *names: str) -> None:
    """Check numbers of settings that are not None; `rule` ends the sentence "NAME must".

    >>> from types import SimpleNamespace
    >>> check_numbers(SimpleNamespace(epochs=0), "be at least 1", lambda n: n >= 1, "epochs")
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: epochs must be at least 1, found 0
    """
    for name in names:
        number = getattr(settings, name)
        if number is not None and not fits(number):
            raise ConfigError(f"{name} must {rule}, found {number}")


def check_seed(seed: int, what: str = "seed") -> None:
    """Check that a seed is valid for NumPy and PyTorch: 0 to 2**32 - 1."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"{what} must lie between 0 and {2**32 - 1}, found {seed}")


def changed(settings: T, values: Mapping[str, Any], where: str) -> T:
    """A copy of the settings with some values changed, which become given, also where they are the class's defaults.

    Errors:
        ConfigError: an unknown name, or a wrong value, below `where`.
    """
    unchanged = {name: getattr(settings, name) for name in given(settings)}
    return parse(type(settings), {**unchanged, **values}, where)


def given_plain(settings: Any) -> dict[str, Any]:
    """`to_plain` for the settings that were given, from which `parse` makes the same settings again."""
    names = given(settings)
    return {name: value for name, value in to_plain(settings).items() if name in names}


def nearest(word: str, known: Iterable[str], suggestion: str | None = None) -> str:
    """A hint with the nearest known word and the others, for the end of an error message.

    A `suggestion` takes the place of the nearest of these words.

    >>> nearest("layrs", ["layers", "heads"])
    "did you mean 'layers'? known: heads, layers"
    """
    options = sorted(known)
    if not options:
        return "none are known"
    if suggestion is None:
        suggestion = next(iter(difflib.get_close_matches(word, options, n=1, cutoff=0.5)), None)
    listing = f"known: {', '.join(options)}"
    if len(options) > MOST_SHOWN:
        nearest_options = difflib.get_close_matches(word, options, n=5, cutoff=0.0)
        listing = f"nearest of {len(options)}: {', '.join(nearest_options)}"
    return listing if suggestion is None else f"did you mean {suggestion!r}? {listing}"


def unknown_setting(
    where: str, key: str, known: Iterable[str], suggestion: str | None = None
) -> str:
    """The sentence on a setting that does not exist, with the nearest known one, or the `suggestion`.

    >>> unknown_setting("training", "optimiser", ["optimizer"])
    "training has no setting 'optimiser': did you mean 'optimizer'? known: optimizer"
    """
    return f"{where.removesuffix(':')} has no setting {key!r}: {nearest(key, known, suggestion)}"


def _path_one_table_below(hints: Mapping[str, Any], key: str) -> str | None:
    """The path of a setting that stands in a table below, such as `label.trials` of a schema."""
    for name, hint in hints.items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and key in _hints(hint):
            return f"{name}.{key}"
    return None


def _below(where: str, key: str) -> str:
    """The path of a setting below another, or below a whole: `recipe a.toml: training`."""
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"


def parse(
    cls: type[T], data: Mapping[str, Any], where: str, error: type[FieldwiseError] = ConfigError
) -> T:
    """Build dataclass `cls` from a mapping; unknown keys, missing keys and wrong types raise `error`.

    Args:
        cls: a dataclass whose annotations use bool, int, float, str, Literal, tuple, dict, unions
            with None, other dataclasses, and unions of dataclasses distinguished by a `kind` field.
        data: the mapping, as read from TOML or JSON.
        where: the path that errors name, such as `training.l2`, or the whole, with a colon, such as
            `recipe a.toml:`.
        error: the class of errors raised.
    """
    whole = where.removesuffix(":")
    if not isinstance(data, Mapping):
        raise error(f"{whole} must be a table of settings, found {data!r}")
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            suggestion = _path_one_table_below(hints, key)
            raise error(unknown_setting(where, key, fields, suggestion))
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in data:
            raise error(f"{whole} needs the setting {name!r}, which is missing")
    values = {
        key: _convert_field(value, fields[key], hints[key], _below(where, key), error)
        for key, value in data.items()
    }
    try:
        return cls(**values)
    except FieldwiseError as e:
        raise error(f"{whole}: ", *e.args) from None


def to_plain(value: Any) -> Any:
    """The inverse of `parse`: dataclasses as dicts, tuples as lists, without entries that are None or `LOCAL`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = (
            (f.name, getattr(value, f.name))
            for f in dataclasses.fields(value)
            if "local" not in f.metadata
        )
        return {k: to_plain(v) for k, v in items if v is not None}
    if isinstance(value, Mapping):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested plain values by dotted path; lists and empty tables are values.

    >>> flat({"training": {"epochs": 3}, "seed": 0})
    {'training.epochs': 3, 'seed': 0}
    """
    results: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            results |= flat(value, f"{above}{key}.")
        else:
            results[f"{above}{key}"] = value
    return results


def _convert_field(
    value: Any,
    field: "dataclasses.Field[Any]",
    hint: Any,
    path: str,
    error: type[FieldwiseError],
) -> Any:
    """A field's value as its type hint says; a name must be one that the function `choices` of its metadata returns."""
    converted = _convert(value, hint, path, error)
    if converted is not None and "choices" in field.metadata:
        check_choice(path, converted, field.metadata["choices"](), error)
    return converted


def _convert(value: Any, hint: Any, path: str, error: type[FieldwiseError]) -> Any:
    """A value as its type hint says; `error` names the setting by its path."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is Literal:
        check_choice(path, value, get_args(hint), error)
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), path, error)
    if origin is tuple:
        return _convert_tuple(value, get_args(hint), path, error)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise error(f"{path} must be a table of settings, found {value!r}")
        _, inner = get_args(hint)
        return {str(key): _convert(v, inner, f"{path}.{key}", error) for key, v in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else parse(hint, value, path, error)
    return _convert_plain(value, hint, path, error)


def check_choice(
    name: str, value: object, choices: Sequence[object], error: type[FieldwiseError] = ConfigError
) -> None:
    """Check that a setting has one of the values of its `Literal`; no truth value stands for a number."""
    is_truth_for_number = isinstance(value, bool) != isinstance(choices[0], bool)
    if value not in choices or is_truth_for_number:
        options = ", ".join(repr(choice) for choice in choices)
        raise error(f"{name} must be one of {options}, found {value!r}")


def _convert_tuple(
    value: Any, hints: tuple[Any, ...], path: str, error: type[FieldwiseError]
) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise error(f"{path} must be a list, found {value!r}")
    has_any_length = len(hints) == 2 and hints[1] is Ellipsis
    if has_any_length:
        hints = hints[:1] * len(value)
    elif len(value) != len(hints):
        raise error(f"{path} must hold {len(hints)} values, found {len(value)}")
    return tuple(
        _convert(inner, hint, f"{path}[{position}]", error)
        for position, (inner, hint) in enumerate(zip(value, hints, strict=True))
    )


def _convert_plain(value: Any, hint: Any, path: str, error: type[FieldwiseError]) -> Any:
    """A number (NumPy's too), a text or a truth value, which is no number."""
    is_truth = isinstance(value, bool)
    if hint is int and isinstance(value, numbers.Integral) and not is_truth:
        return int(value)
    if hint is float and isinstance(value, numbers.Real) and not is_truth:
        try:
            number = float(value)
        except OverflowError:
            raise error(f"{path} must be a number below 1e308, found {str(value)[:8]}…") from None
        if not math.isfinite(number):
            raise error(f"{path} must be finite, found {number}")
        return number
    if not isinstance(value, hint) or (is_truth and hint is not bool):
        raise error(f"{path} must be of type {hint.__name__}, found {value!r}")
    return value


def _convert_union(
    value: Any, args: tuple[Any, ...], path: str, error: type[FieldwiseError]
) -> Any:
    options: list[Any] = [a for a in args if a is not type(None)]
    if value is None and len(options) < len(args):
        return None
    if len(options) == 1:
        return _convert(value, options[0], path, error)
    dataclass_options: list[Any] = [a for a in options if dataclasses.is_dataclass(a)]
    classes = {str(a.kind): a for a in dataclass_options}
    if classes and isinstance(value, Mapping):
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in classes:
            result = "none" if kind is None else repr(kind)
            raise error(f"{path} needs kind = one of {', '.join(sorted(classes))}, found {result}")
        return parse(classes[kind], value, path, error)
    if isinstance(value, tuple(classes.values())):
        return value
    if len(classes) == len(options):
        raise error(
            f"{path} must be a table of settings with a kind ({', '.join(sorted(classes))}), found {value!r}"
        )
    failures: list[str] = []
    for option in sorted(options, key=lambda o: o is float):
        try:
            return _convert(value, option, path, error)
        except FieldwiseError as e:
            failures.append(str(e))
    if all(option in (bool, int, float, str) for option in options):
        names = ", ".join(option.__name__ for option in options)
        raise error(f"{path} must be finite and of one of the types {names}, found {value!r}")
    raise error(f"{path}: {value!r} matches none of: " + "; ".join(failures))


def toml_tables(text: str) -> dict[str, Any]:
    """The tables of a TOML text that is not nested deeply.

    Errors:
        tomllib.TOMLDecodeError: not valid TOML, or more than 50 levels.

    >>> toml_tables("a.b = 1")
    {'a': {'b': 1}}
    """
    deep = tomllib.TOMLDecodeError(
        f"tables and arrays must have at most {MOST_LEVELS} levels, found more"
    )
    if LONG_KEY.search(text):
        raise deep
    try:
        result = tomllib.loads(text)
    except RecursionError:
        raise deep from None
    level: list[Any] = [result]
    for _ in range(MOST_LEVELS):
        cells: list[Any] = []
        for value in level:
            cells += value.values() if isinstance(value, dict) else value
        level = [cell for cell in cells if isinstance(cell, (dict, list))]
    if level:
        raise deep
    return result
