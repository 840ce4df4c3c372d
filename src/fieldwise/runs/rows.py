"""The rows of a bundle's run: its recipe's data, prepared again and compared with the stored digests."""

from pathlib import Path
from typing import Literal

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import BundleError, DataError
from fieldwise.runs.identity import same_rows
from fieldwise.runs.recipe import Recipe

__all__ = ["UNCHECKED", "recipe_of", "rows_of_run"]

UNCHECKED = "not checked: whether these are the {} rows of the training run, because the bundle has no digest of them"
_WORDS = {"valid": "validation", "test": "test"}


def recipe_of(bundle: Bundle, folder: Path, instead: str) -> Recipe:
    """The recipe of a bundle.

    Args:
        bundle: the bundle.
        folder: its folder, for the error.
        instead: advice if there is no recipe.

    Errors:
        BundleError: it was not made by a recipe.
    """
    saved = bundle.about.get("recipe")
    if not isinstance(saved, dict) or "settings" not in saved:
        raise BundleError(f"the bundle {folder} was not made by a recipe, so its rows are unknown: {instead}")
    return Recipe.from_dict({"defaults": "fixed", **saved["settings"]}, str(saved.get("name", folder)))


def rows_of_run(
    bundle: Bundle, recipe: Recipe, prepared: Prepared, part: Literal["valid", "test"], instead: str
) -> tuple[pl.DataFrame, bool]:
    """The raw rows of one part of a run, and whether they are verified to be those of the run.

    Errors:
        DataError: there are none, the network was trained on them, or the data have changed since; the message ends
            with `instead`.
    """
    if part == "valid" and "refit" in bundle.about.get("run", {}):
        raise DataError(f"the network was trained on the recipe's validation rows too (training.refit): {instead}")
    frame, word = getattr(prepared, part).frame, _WORDS[part]
    if frame.height == 0:
        raise DataError(f"the recipe {recipe.name} has no {word} rows: {instead}")
    digest = bundle.about.get("run", {}).get(f"{part}_digest")
    if digest is not None and not same_rows(digest, frame, recipe.schema):
        raise DataError(
            f"the recipe's {word} rows must be those of the training run, but the data of {recipe.name} have changed "
            f"since: restore them, or {instead}"
        )
    return frame, digest is not None
