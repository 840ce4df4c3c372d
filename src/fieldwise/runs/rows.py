"""The rows of the run that made a bundle: its recipe's data, prepared again and compared with the digests of then."""

from pathlib import Path
from typing import Literal

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import BundleError, DataError
from fieldwise.runs.identity import same_rows
from fieldwise.runs.recipe import Recipe

__all__ = ["UNCHECKED", "recipe_of", "rows_of_run"]

UNCHECKED = "not checked: whether these are the {} rows of the training run, of which the bundle keeps no digest"
_WORDS = {"valid": "validation", "test": "test"}


def recipe_of(bundle: Bundle, folder: Path, instead: str) -> Recipe:
    """The recipe that a bundle was trained by.

    Args:
        bundle: what was trained.
        folder: where it lies, for the error.
        instead: what to do where there is no recipe.

    Errors:
        BundleError: it was not made by a recipe.
    """
    saved = bundle.about.get("recipe")
    if not isinstance(saved, dict) or "settings" not in saved:
        raise BundleError(f"the bundle {folder} was not made by a recipe, so it names no rows: {instead}")
    return Recipe.from_dict({"defaults": "fixed", **saved["settings"]}, str(saved.get("name", folder)))


def rows_of_run(
    bundle: Bundle, recipe: Recipe, prepared: Prepared, part: Literal["valid", "test"], instead: str
) -> tuple[pl.DataFrame, bool]:
    """One part of a run's rows as they came, and whether they are known to be those of the run.

    Errors:
        DataError: there are none, or the data have changed since; ends with `instead`, what else to do.
    """
    frame, word = getattr(prepared, part).frame, _WORDS[part]
    if frame.height == 0:
        raise DataError(f"the recipe {recipe.name} gives no {word} rows: {instead}")
    digest = bundle.about.get("run", {}).get(f"{part}_digest")
    if digest is not None and not same_rows(digest, frame, recipe.schema):
        raise DataError(
            f"the recipe's {word} rows must be those of the training run, but the data of {recipe.name} have changed "
            f"since: restore them, or {instead}"
        )
    return frame, digest is not None
