"""The audit of a table or a recipe: every detector in turn."""

from collections.abc import Sequence
from pathlib import Path

from fieldwise.auditing.detectors import audit_rows
from fieldwise.auditing.finding import AuditReport
from fieldwise.auditing.table import AuditedTable, of_schema, of_table
from fieldwise.config import check_seed
from fieldwise.data.prepare.preparation import check_columns
from fieldwise.data.prepare.settings import SplitSettings
from fieldwise.data.read.row_numbers import naming_lines
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import ConfigError
from fieldwise.runs.raw_table import load_frame, preparation_of
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema


def audit(
    data: Recipe | TableLike,
    label: str | None = None,
    *,
    positive: Sequence[str] = (),
    schema: Schema | None = None,
    split: SplitSettings | None = None,
    seed: int = 0,
    data_dir: str | Path = "data",
) -> AuditReport:
    """What in a table tells labels that a model will not have when it is used, and how sure that is.

    Args:
        data: a path, a table of any type that `as_table` takes, or a recipe, whose split, negatives
            and made columns are audited too; it has a schema, split and seed, which are not given
            again.
        label: the label's column. Default: guessed by name and values.
        positive: the label's positive values, if they cannot be inferred.
        schema: what the columns mean; its fields alone are audited. Default: users, items and times
            are inferred, and every column is audited.
        split: how the rows are split, such as `ColumnSplit(column="part")`. Without it nothing is
            said on the split.
        seed: seed of samples, folds and permutations.
        data_dir: the folder of public data sets, for recipes on one.

    Errors:
        SchemaError, DataError: the table has no label, or it breaks a rule of the schema.
        ConfigError: a setting that a recipe or a schema has is given too.

    >>> import polars as pl
    >>> paid = [0, 1, 1, 0, 1] * 40
    >>> table = pl.DataFrame({"paid": paid, "visits": range(200), "refund": [7.5 * (1 - y) for y in paid]})
    >>> [(f.severity, f.column) for f in audit(table, "paid").findings]
    [('high', 'refund')]
    """
    if isinstance(data, Recipe):
        if label is not None or positive or schema is not None or split is not None or seed:
            raise ConfigError(
                "a recipe has its own schema, split and seed, found some of them given too: change the recipe, or "
                "omit them"
            )
        return audit_rows(recipe_rows(data, Path(data_dir)))
    check_seed(seed)
    texts = schema.text_columns if schema is not None else ()
    frame = as_table(data, text_columns=texts)
    if schema is None:
        return audit_rows(of_table(frame, label, positive, split, seed=seed))
    if label is not None or positive:
        raise ConfigError(
            f"a schema names the label and its rule, column {schema.label.column!r}, found a label or positive values "
            "given too: change the schema, or omit them"
        )
    check_columns(frame.columns, schema)
    return audit_rows(of_schema(frame, schema, split, preparation=None, seed=seed))


def recipe_rows(recipe: Recipe, data_dir: Path) -> AuditedTable:
    """The rows of a recipe with its split, negatives and made columns, as a model trains on them."""
    frame = load_frame(recipe.data, data_dir, recipe.text_columns)
    preparation = preparation_of(recipe)
    with naming_lines(recipe.data.path, recipe.data.text()):
        return of_schema(
            frame, recipe.schema, recipe.split, preparation=preparation, seed=recipe.rows_seed
        )
