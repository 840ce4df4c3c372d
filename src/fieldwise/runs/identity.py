"""Digests of rows, to check whether they are those of an earlier run."""

import polars as pl

from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.storage.digest import digest_rows, first_rows_digest

__all__ = ["rows_digest", "same_rows", "scored_rows_digest"]


def rows_digest(frame: pl.DataFrame, schema: Schema) -> str:
    """SHA-256 over the columns that a schema reads of a table's rows, in order."""
    return digest_rows(_read_columns(frame, schema))


def scored_rows_digest(frame: pl.DataFrame, recipe: Recipe) -> str:
    """A digest that identifies rows independently of a recipe's fields: by keys and labels, or all raw columns."""
    schema = recipe.schema
    made = {recipe.history.column} if recipe.history is not None else set()
    made |= set(recipe.target_encoding.made) if recipe.target_encoding is not None else set()
    named = [*schema.row_keys, *(label.column for label in schema.labels)] if schema.row_keys else frame.columns
    return digest_rows(frame.select([c for c in dict.fromkeys(named) if c in frame.columns and c not in made]))


def same_rows(digest: object, frame: pl.DataFrame, schema: Schema) -> bool:
    """Whether `digest` is the `rows_digest` of these rows, by this or an older version."""
    if not isinstance(digest, str):
        return False
    if ":" in digest:
        return digest == rows_digest(frame, schema)
    return digest == first_rows_digest(_read_columns(frame, schema))


def _read_columns(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    columns = dict.fromkeys([*schema.row_keys, *schema.columns, *(label.column for label in schema.labels)])
    return frame.select([c for c in columns if c in frame.columns])
