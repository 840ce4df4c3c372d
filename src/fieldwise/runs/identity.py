"""Digests of rows, to check whether they are those of an earlier run, and the rows of a bundle's run by them."""

from pathlib import Path
from typing import Literal

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.prepare.row_fingerprints import digest_rows
from fieldwise.errors import BundleError, DataError
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema

__all__ = ["UNCHECKED", "recipe_of", "rows_digest", "rows_of_run", "scored_rows_digest"]


def rows_digest(frame: pl.DataFrame, schema: Schema) -> str:
    """SHA-256 over the columns that a schema reads of a table's rows, in order."""
    columns = dict.fromkeys([*schema.row_keys, *schema.columns, *(label.column for label in schema.labels)])
    return digest_rows(frame.select([c for c in columns if c in frame.columns]))


def scored_rows_digest(frame: pl.DataFrame, recipe: Recipe) -> str:
    """A digest that identifies rows independently of a recipe's fields: by keys and labels, or all raw columns."""
    schema = recipe.schema
    made = {recipe.history.column} if recipe.history is not None else set()
    made |= set(recipe.target_encoding.made) if recipe.target_encoding is not None else set()
    named = [*schema.row_keys, *(label.column for label in schema.labels)] if schema.row_keys else frame.columns
    return digest_rows(frame.select([c for c in dict.fromkeys(named) if c in frame.columns and c not in made]))


UNCHECKED = "not checked: whether these are the {} rows of the training run, because the bundle has no digest of them"
_WORDS = {"valid": "validation", "test": "test"}


def recipe_of(bundle: Bundle, folder: Path, instead: str) -> Recipe:
    """The recipe of a bundle, from a folder; an error ends with the advice `instead`.

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
    if digest is not None and digest != rows_digest(frame, recipe.schema):
        raise DataError(
            f"the recipe's {word} rows must be those of the training run, but the data of {recipe.name} have changed "
            f"since: restore them, or {instead}"
        )
    return frame, digest is not None
