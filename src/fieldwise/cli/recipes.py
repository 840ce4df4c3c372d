"""`fieldwise recipes`."""

from dataclasses import dataclass

from fieldwise.cli.next import suggest

__all__ = ["RecipesOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class RecipesOptions:
    """The command takes none."""


def run(options: RecipesOptions) -> None:
    """List the recipes in the package."""
    from fieldwise.runs.recipe import recipe_names

    del options
    for name in recipe_names():
        print(name)
    suggest("what one of them means", "describe", "simulated/afm")
