"""The audit of a table or a recipe: every detector in turn."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fieldwise.auditing.added import columns_that_add_most
from fieldwise.auditing.columns import MOST_ROWS, columns_alone
from fieldwise.auditing.drift import columns_that_tell_the_part
from fieldwise.auditing.finding import AuditReport, Finding, worst_first
from fieldwise.auditing.future import changed_copies, knows_later_labels, later_times
from fieldwise.auditing.labels import contradicting_labels, groups_of_one_class, smallest_difference
from fieldwise.auditing.negatives import context_of_drawn_negatives
from fieldwise.auditing.own_labels import own_labels
from fieldwise.auditing.prepared_elsewhere import learned_on_all_rows
from fieldwise.auditing.purity import PURE, copies_of_label, pure_values
from fieldwise.auditing.split_rows import equal_rows, identity_alone, sessions_on_both_sides
from fieldwise.auditing.split_time import split_against_time
from fieldwise.auditing.table import AuditedTable, of_schema, of_table
from fieldwise.config import check_seed
from fieldwise.data.prepare.settings import SplitSettings
from fieldwise.data.read.row_numbers import naming_lines
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import ConfigError
from fieldwise.runs.raw_table import load_frame, preparation_of
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema

Detector = Callable[[AuditedTable], list[Finding]]
DETECTORS: tuple[Detector, ...] = (
    columns_alone,
    pure_values,
    copies_of_label,
    columns_that_add_most,
    own_labels,
    later_times,
    changed_copies,
    knows_later_labels,
    equal_rows,
    sessions_on_both_sides,
    identity_alone,
    split_against_time,
    columns_that_tell_the_part,
    learned_on_all_rows,
    context_of_drawn_negatives,
    contradicting_labels,
    groups_of_one_class,
    smallest_difference,
)
"""Functions from the audited rows to findings, the quick ones first."""


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
        ConfigError: a setting that a recipe has is given too.

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
    return audit_rows(of_schema(frame, schema, split, preparation=None, seed=seed))


def recipe_rows(recipe: Recipe, data_dir: Path) -> AuditedTable:
    """The rows of a recipe with its split, negatives and made columns, as a model trains on them."""
    frame = load_frame(recipe.data, data_dir, recipe.text_columns)
    preparation = preparation_of(recipe)
    with naming_lines(recipe.data.path, recipe.data.text()):
        return of_schema(
            frame, recipe.schema, recipe.split, preparation=preparation, seed=recipe.rows_seed
        )


def audit_rows(table: AuditedTable, detectors: Sequence[Detector] = DETECTORS) -> AuditReport:
    """The findings of detectors, the worst first."""
    findings: list[Finding] = []
    for detector in detectors:
        findings += detector(table)
    facts: dict[str, Any] = {
        "rows": len(table),
        "columns": len(table.columns),
        "label": table.label,
        "seed": table.seed,
    }
    if table.split is not None:
        facts["split"] = table.split.kind
    if len(table) > MOST_ROWS:
        facts["rows_sampled_for_columns"] = MOST_ROWS
    return AuditReport(findings=worst_first(_without_repeats(findings)), facts=facts)


def _without_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """The findings without values of one label in columns that are known to tell nearly all labels."""
    telling = {f.column for f in findings if f.severity == "high" and f.kind != PURE}
    return [f for f in findings if f.kind != PURE or f.column not in telling]
