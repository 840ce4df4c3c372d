"""Published figures and the recipes that reproduce them, from `tables.toml`."""

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fieldwise.config import parse
from fieldwise.errors import ConfigError
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import load_recipe

__all__ = ["Row", "Table", "read_tables"]

TABLES = Path(__file__).with_name("tables.toml")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published figure, or a baseline without one.

    Args:
        published: metrics by name, as printed.
        recipe: name of a recipe of the package.
        set: settings that override the recipe's, in the form of `--set`, for ablations.
        learner: a learner used instead of the recipe's model, on the recipe's rows and fields.
    """

    model: str
    recipe: str
    set: tuple[str, ...] = ()
    learner: Literal["lightgbm"] | None = None
    published: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        """The name of its runs."""
        if self.learner is not None:
            return f"{self.recipe.rpartition('/')[0]}/{self.learner}"
        return " ".join([self.recipe, *(f"--set {setting}" for setting in self.set)])

    def load(self, protocol: str | None) -> Recipe:
        """Its recipe, under its name."""
        return dataclasses.replace(
            load_recipe(self.recipe, self.set, protocol=protocol), name=self.name
        )


@dataclass(frozen=True, kw_only=True)
class Table:
    """One task.

    Args:
        metrics: metrics that are shown; models are compared by the first.
        protocol: protocol that replaces the recipes' own.
        base: the recipe that others are tested against; by default the first row's.
        draws: recipes whose runs are repeated with other samples of the data's negatives
            (`data_seed` 0, 1 and 2).
    """

    name: str
    title: str
    about: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    protocol: str | None = None
    base: str | None = None
    seeds: int = 3
    draws: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _File:
    table: tuple[Table, ...]


def read_tables(path: Path = TABLES) -> dict[str, Table]:
    """All tables by name.

    Errors:
        ConfigError: an entry is invalid, or a table names a recipe twice.
    """
    tables = parse(_File, tomllib.loads(path.read_text("utf-8")), path.name).table
    for table in tables:
        names = [row.name for row in table.rows]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"table {table.name} must name each recipe once, found {twice[0]} twice"
            )
    return {table.name: table for table in tables}
