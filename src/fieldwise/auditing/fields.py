"""Columns that are no fields of a model: those that are constant, name single rows, or alone are the label."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from fieldwise.auditing.columns import columns_alone_quickly
from fieldwise.auditing.finding import Finding
from fieldwise.auditing.table import AuditedTable, by_schema
from fieldwise.errors import ConfigError, SchemaError
from fieldwise.schema import Schema
from fieldwise.schema.schema import first_field_by_column

LEAST_DISTINCT_SHARE_OF_IDS = 0.9
"""Different values of an id, as a share of the values present."""
LEAST_ROWS = 20
"""With fewer rows no column is called id-like."""
USELESS = ("constant", "id-like")


def audit_fields(train: pl.DataFrame, y: np.ndarray, schema: Schema, seed: int) -> list[Finding]:
    """The worst finding on each column that the schema's fields read, from training rows alone.

    >>> from fieldwise import Categorical, Label
    >>> frame = pl.DataFrame({"film": ["a", "b"] * 50, "country": ["fi"] * 100, "paid": [0, 1] * 50})
    >>> schema = Schema(fields=(Categorical("country"), Categorical("paid")), label=Label("liked"))
    >>> [(f.column, f.kind) for f in audit_fields(frame, np.array([0.0, 1.0] * 50), schema, 0)]
    [('country', 'constant'), ('paid', 'predicts-alone')]
    """
    table = replace(by_schema(train, np.arange(len(y)), y, schema), seed=seed)
    alone = {finding.column: finding for finding in columns_alone_quickly(table)}
    first_field = first_field_by_column(schema.fields)
    findings = []
    for column in table.columns:
        finding = alone.get(column)
        if finding is None or finding.severity != "high":
            finding = _useless(table, column, first_field[column].cell) or finding
        if finding is not None:
            findings.append(finding)
    return findings


def without(schema: Schema, findings: Sequence[Finding], keep: Collection[str] = ()) -> Schema:
    """The schema without the fields of useless columns and of those that are the label, but for columns to keep.

    Fields that shared their embeddings get their own.
    """
    for column in keep:
        if column not in schema.columns:
            raise ConfigError(
                f"keep must name a column that a field reads, found {column!r}: the fields read "
                f"{', '.join(schema.columns)}"
            )
    left_out = {}
    for finding in findings:
        is_bad = finding.kind in USELESS or finding.severity == "high"
        if is_bad and finding.column not in keep:
            left_out[finding.column] = finding
    fields = [field for field in schema.fields if field.column not in left_out]
    if not fields:
        why = "; ".join(finding.sentence for finding in left_out.values())
        raise SchemaError(f"no column is left to learn from: {why}")
    names = {field.name for field in fields}
    remaining = []
    for field in fields:
        if field.shares is not None and field.shares not in names:
            field = replace(field, shares=None)
        remaining.append(field)
    return replace(schema, fields=tuple(remaining))


def _useless(table: AuditedTable, column: str, cell: str) -> Finding | None:
    """That a column is constant, or a name of single rows; None if it is neither."""
    text = table.text(column)
    present = len(text) - text.null_count()
    distinct = text.n_unique()
    if distinct <= 1:
        what = f"column {column!r} is constant in the training rows, so there is nothing to learn from it"
        return Finding(
            kind="constant", severity="low", what=what, remedy="leave it out", column=column
        )
    what = ""
    if cell == "category" and distinct >= LEAST_DISTINCT_SHARE_OF_IDS * present:
        what = f"column {column!r} is an id: {distinct:,} different values in {present:,} training rows"
    if cell == "number" and _counts_rows(table.numbers(column)):
        what = f"column {column!r} is a row number"
    if not what or present < LEAST_ROWS:
        return None
    return Finding(kind="id-like", severity="low", what=what, remedy="leave it out", column=column)


def _counts_rows(numbers: pl.Series | None) -> bool:
    """Whether numbers count the rows."""
    if numbers is None:
        return False
    present = numbers.drop_nulls()
    # A random split leaves about four of five row numbers in the training rows.
    is_dense = np.ptp(present.to_numpy()) + 1 <= 2 * len(present)
    is_whole = bool((present % 1 == 0).all())
    return bool(is_dense and is_whole and present.is_sorted() and present.is_unique().all())
