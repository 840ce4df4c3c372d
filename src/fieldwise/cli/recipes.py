"""`fieldwise recipes`."""

from dataclasses import dataclass

from fieldwise.cli.next import suggest

__all__ = ["RecipesOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class RecipesOptions:
    """This command has no options."""


def run(options: RecipesOptions) -> None:
    """List the built-in recipes."""
    from fieldwise.runs.recipe_files import recipe_names

    del options
    for name in recipe_names():
        print(name)
    suggest("see what a recipe trains", "describe", "simulated/afm")
