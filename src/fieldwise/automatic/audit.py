"""The audit of columns: what they say about the label by themselves, from training rows alone."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from fieldwise.auditing.association import Scorer, Target, random_folds
from fieldwise.auditing.readings import readings_of
from fieldwise.data.encode.columns import (
    as_list,
    as_number,
    as_text,
    field_numbers,
    vector_texts,
)
from fieldwise.data.sampling import drawn_rows
from fieldwise.errors import ConfigError, SchemaError
from fieldwise.schema import Field, Label, Schema
from fieldwise.schema.schema import first_field_by_column

LEAST_LABEL_LIKE = 0.99
"""A column whose own AUC (of a label of numbers .5 + rho/2) is at least this is label-like."""
LEAST_SUSPICIOUS = 0.95
LEAST_DISTINCT_SHARE_OF_IDS = 0.9
"""Different values of an id, as a share of the values present."""
LEAST_ROWS = 20
"""With fewer rows no column is called id-like."""
LEAST_OF_A_CLASS = 5
"""With fewer rows of a class no column is called label-like."""
MAX_ROWS = 100_000

FindingKind = Literal["constant", "id-like", "label-like", "suspicious"]
"""id-like: nearly all values differ; label-like, suspicious: it predicts the label by itself."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding of the audit about one column.

    Args:
        column: its name.
        kind: what was found.
        sentence: the finding in words.
        left_out: whether the fields of the column were removed from the schema.
        value: AUC or .5 + rho/2 on training rows; None if it was not measured.
    """

    column: str
    kind: FindingKind
    sentence: str
    left_out: bool
    value: float | None = None


def audit(
    train: pl.DataFrame, y: np.ndarray, schema: Schema, *, keep: Collection[str] = (), seed: int = 0
) -> list[Finding]:
    """Findings about the columns that the schema's fields read, from training rows alone.

    How well a column predicts the label is measured as `fieldwise audit` does: the highest AUC of
    its ways of reading, out of fold (of a label of numbers .5 + rho/2, with Spearman's rho). At
    most 100,000 sampled rows are used. Columns in `keep` remain fields whatever is found.

    >>> from fieldwise import Categorical
    >>> frame = pl.DataFrame({"film": ["a", "b"] * 50, "country": ["fi"] * 100, "paid": [0, 1] * 50})
    >>> schema = Schema(fields=(Categorical("country"), Categorical("paid")), label=Label("liked"))
    >>> [(result.column, result.kind) for result in audit(frame, np.array([0.0, 1.0] * 50), schema)]
    [('country', 'constant'), ('paid', 'label-like')]
    """
    unknown = [column for column in keep if column not in schema.columns]
    if unknown:
        raise ConfigError(
            f"keep must name a column that a field reads, found {unknown[0]!r}: the fields read "
            f"{', '.join(schema.columns)}"
        )
    if train.height > MAX_ROWS:
        sample = drawn_rows(train.height, MAX_ROWS, seed)
        train = train[sample]
        y = y[sample]

    first_field = first_field_by_column(schema.fields)
    findings = []
    for name in schema.columns:
        column = train.get_column(name)
        finding = _examine(column, y, first_field[name], schema, seed)
        if finding is None:
            continue
        if finding.left_out and name in keep:
            sentence = f"{finding.sentence}; it is kept, as requested"
            finding = dataclasses.replace(finding, sentence=sentence, left_out=False)
        findings.append(finding)
    return findings


def without(schema: Schema, findings: Sequence[Finding]) -> Schema:
    """The schema without the fields of the columns left out; fields that shared their embeddings get their own."""
    left_out = {finding.column: finding for finding in findings if finding.left_out}
    fields = [field for field in schema.fields if field.column not in left_out]
    if not fields:
        why = "; ".join(finding.sentence for finding in left_out.values())
        raise SchemaError(f"no column is left to learn from: {why}")

    names = {field.name for field in fields}
    remaining = []
    for field in fields:
        if field.shares is not None and field.shares not in names:
            field = dataclasses.replace(field, shares=None)
        remaining.append(field)
    return dataclasses.replace(schema, fields=tuple(remaining))


def _examine(
    column: pl.Series, y: np.ndarray, field: Field, schema: Schema, seed: int
) -> Finding | None:
    """What is found about a column, in the order of how bad it is."""
    title = f"column {column.name!r}"
    if field.cell == "list":
        lists = as_list(column, field.separator)
        text = lists.list.join("\x1f").replace("", None)
    elif field.cell == "vector":
        text = vector_texts(column)
    else:
        text = as_text(column)
    if text.n_unique() <= 1:
        return Finding(
            column=column.name,
            kind="constant",
            sentence=f"{title} is constant in the training rows, so there is nothing to learn from it",
            left_out=True,
        )

    is_number = field.cell == "number"
    if field.cell == "number" and column.dtype == pl.String:
        column = field_numbers(field, column, schema.missing)
    value = _solo_score(column, text, y, schema.label, numeric=is_number, seed=seed)
    measure = "AUC" if schema.label.task == "binary" else ".5 + rho/2"
    if value is not None and value >= LEAST_LABEL_LIKE:
        return Finding(
            column=column.name,
            kind="label-like",
            sentence=f"{title} alone predicts the label nearly perfectly ({measure} {value:.4f} on training rows), "
            "which usually means that its values are known only after the outcome",
            left_out=True,
            value=value,
        )
    id_sentence = None
    if field.cell == "category":
        id_sentence = _category_id_sentence(title, text)
    elif is_number:
        id_sentence = _row_number_sentence(title, column, len(text) - text.null_count(), schema)
    if id_sentence is not None:
        return Finding(column=column.name, kind="id-like", sentence=id_sentence, left_out=True)
    if value is not None and value >= LEAST_SUSPICIOUS:
        return Finding(
            column=column.name,
            kind="suspicious",
            sentence=f"{title} alone predicts the label very well ({measure} {value:.4f} on training rows): it is "
            "kept, but if its values are known only after the outcome, remove it from the schema",
            left_out=False,
            value=value,
        )
    return None


def _category_id_sentence(title: str, text: pl.Series) -> str | None:
    """That nearly all values of a column differ; None if they do not."""
    present = len(text) - text.null_count()
    distinct = text.drop_nulls().n_unique()
    if present < LEAST_ROWS or distinct < LEAST_DISTINCT_SHARE_OF_IDS * present:
        return None
    return f"{title} is an id: {distinct:,} different values in {present:,} training rows"


def _row_number_sentence(title: str, column: pl.Series, present: int, schema: Schema) -> str | None:
    """That a column of numbers counts the rows; None if it does not."""
    if present < LEAST_ROWS:
        return None
    number = as_number(column, column.name, missing=schema.missing).drop_nulls()
    low = float(number.min())  # type: ignore[arg-type]
    high = float(number.max())  # type: ignore[arg-type]
    # A random split leaves about four of five row numbers in the training rows.
    is_dense = high - low + 1 <= 2 * len(number)
    is_whole = bool((number % 1 == 0).all())
    if not is_dense or not is_whole:
        return None
    if number.n_unique() != len(number) or not number.is_sorted():
        return None
    return f"{title} is a row number, from {column.min()!r} to {column.max()!r}"


def _solo_score(
    column: pl.Series, text: pl.Series, y: np.ndarray, label: Label, *, numeric: bool, seed: int
) -> float | None:
    """AUC or .5 + rho/2 of the column alone; None if there are too few rows."""
    is_binary = label.task == "binary"
    if is_binary and min(int((y > 0.5).sum()), int((y <= 0.5).sum())) < LEAST_OF_A_CLASS:
        return None
    if not is_binary and (len(y) < LEAST_ROWS or float(y.std()) == 0):
        return None

    numbers = as_number(column, column.name) if numeric else None
    folds = random_folds(len(y), seed)
    target = Target(y, binary=is_binary)
    separations = [
        Scorer(reading, folds).separation(target.values, target)
        for reading in readings_of(column.name, text, numbers)
    ]
    return max(separations, default=0.5)
