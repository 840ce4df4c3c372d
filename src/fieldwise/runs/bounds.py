"""Bounds of a search: the values that `fieldwise tune` may choose for a setting."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fieldwise.config import parse
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from optuna.trial import BaseTrial


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

    @property
    def boundary_values(self) -> tuple[Any, ...]:
        """The values that are valid in a recipe if all of the range are."""
        return self.low, self.high

    def suggest(self, trial: "BaseTrial", name: str) -> Any:
        """A value of Optuna's choice."""
        if self.whole:
            step = 1 if self.step is None else int(self.step)
            return trial.suggest_int(name, int(self.low), int(self.high), step=step, log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


@dataclass(frozen=True, kw_only=True)
class OneOf:
    """A choice of values: numbers, texts, booleans, or lists of them."""

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise ConfigError("choices must have at least one value, found none")

    @property
    def boundary_values(self) -> tuple[Any, ...]:
        """The values that have to be valid in a recipe."""
        return self.choices

    def suggest(self, trial: "BaseTrial", name: str) -> Any:
        """A value of Optuna's choice."""
        study_values = [study_value(choice) for choice in self.choices]
        suggested = trial.suggest_categorical(name, study_values)
        return self.choices[study_values.index(suggested)]


Bounds = Range | OneOf


def study_value(choice: Any) -> Any:
    """A choice as a study stores it: a list as text."""
    if isinstance(choice, (str, int, float)):
        return choice
    return json.dumps(choice)


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
            space[key] = parse(OneOf, value, path)
        elif "low" in value or "high" in value:
            space[key] = parse(Range, value, path)
        else:
            for inner_key, bounds in parse_space(value, path).items():
                space[f"{key}.{inner_key}"] = bounds
    return space


def merged_space(*spaces: Mapping[str, Bounds | Literal[False]]) -> dict[str, Bounds]:
    """Merged spaces, where later ones override; paths that are False are removed."""
    merged: dict[str, Bounds | Literal[False]] = {}
    for space in spaces:
        merged |= space
    return {path: bounds for path, bounds in merged.items() if bounds is not False}
