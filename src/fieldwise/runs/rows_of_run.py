"""The recipe of a bundle, and the validation or test rows of its run, checked by the bundle's digests of them."""

from pathlib import Path
from typing import Literal

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import BundleError, DataError
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.row_digests import rows_digest

UNCHECKED = "not checked: whether these are the {} rows of the training run, because the bundle has no digest of them"
PART_WORDS = {"train": "training", "valid": "validation", "test": "test"}


def recipe_of(bundle: Bundle, folder: Path, instead: str) -> Recipe:
    """The recipe of a bundle, from a folder; an error ends with the advice `instead`.

    Errors:
        BundleError: it was not made by a recipe.
    """
    saved = bundle.about.recipe
    if saved is None:
        raise BundleError(
            f"the bundle {folder} was not made by a recipe, so its rows are unknown: {instead}"
        )
    settings = {"defaults": "fixed", **saved.settings}
    return Recipe.from_dict(settings, saved.name)


def rows_of_run(
    bundle: Bundle, recipe: Recipe, prepared: Prepared, part: Literal["valid", "test"], instead: str
) -> tuple[pl.DataFrame, bool]:
    """The raw rows of one part of a run, and whether they are verified to be those of the run.

    Errors:
        DataError: there are none, the network was trained on them, or the data have changed since;
            the message ends with `instead`.
    """
    if part == "valid" and bundle.about.is_refit:
        raise DataError(
            f"the network was trained on the recipe's validation rows too (training.refit): {instead}"
        )

    frame = getattr(prepared, part).frame
    word = PART_WORDS[part]
    if frame.height == 0:
        raise DataError(f"the recipe {recipe.name} has no {word} rows: {instead}")

    recorded_digest = bundle.about.row_digest(part)
    if recorded_digest is not None and recorded_digest != rows_digest(frame, recipe.schema):
        raise DataError(
            f"the recipe's {word} rows must be those of the training run, but the data of {recipe.name} have changed "
            f"since: restore them, or {instead}"
        )
    return frame, recorded_digest is not None
