"""Digests of a run's rows, by which the same rows are known again."""

import polars as pl

from fieldwise.data.prepare.row_fingerprints import digest_rows
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema


def rows_digest(frame: pl.DataFrame, schema: Schema) -> str:
    """SHA-256 over the columns that a schema reads of a table's rows, in order."""
    label_columns = [label.column for label in schema.labels]
    columns = dict.fromkeys([*schema.row_keys, *schema.columns, *label_columns])
    return digest_rows(frame.select([c for c in columns if c in frame.columns]))


def scored_rows_digest(frame: pl.DataFrame, recipe: Recipe) -> str:
    """A digest that identifies rows independently of a recipe's fields: by keys and labels, or all raw columns."""
    schema = recipe.schema
    derived_columns: set[str] = set()
    if recipe.history is not None:
        derived_columns.add(recipe.history.column)
    if recipe.target_encoding is not None:
        derived_columns.update(recipe.target_encoding.made)

    candidates = frame.columns
    if schema.row_keys:
        candidates = [*schema.row_keys, *(label.column for label in schema.labels)]
    raw_columns = [
        column
        for column in dict.fromkeys(candidates)
        if column in frame.columns and column not in derived_columns
    ]
    return digest_rows(frame.select(raw_columns))
