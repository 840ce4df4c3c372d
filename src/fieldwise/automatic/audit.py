"""The audit of columns: what they say about the label by themselves, from training rows alone."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import (
    as_list,
    as_number,
    as_text,
    field_numbers,
    vector_texts,
)
from fieldwise.data.prepare.settings import TargetEncoding
from fieldwise.data.prepare.target_encoding import add_target_encoding
from fieldwise.data.sampling import drawn_rows
from fieldwise.errors import ConfigError, SchemaError
from fieldwise.evaluation import auc
from fieldwise.schema import Field, Label, Schema
from fieldwise.schema.schema import first_field_by_column
from fieldwise.storage.scratch import NO_LIMIT

LEAST_LABEL_LIKE = 0.99
"""A column whose own AUC (regression: R squared) is at least this is label-like."""
LEAST_SUSPICIOUS = 0.95
LEAST_DISTINCT_SHARE_OF_IDS = 0.9
"""Different values of an id, as a share of the values present."""
LEAST_ROWS = 20
"""With fewer rows no column is called id-like."""
LEAST_OF_A_CLASS = 5
"""With fewer rows of a class no column is called label-like."""
MAX_ROWS = 100_000
QUANTILE_BINS = 50
ENCODING_FOLDS = 5

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
        value: AUC or R squared on training rows; None if it was not measured.
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

    To measure how well a column predicts the label, its values are replaced by their out-of-fold
    target encoding, and the AUC of the result is computed (R squared for a regression label). A
    numeric column is cut into quantile bins first, and its own order is evaluated too. At most
    100,000 sampled rows are used. Columns in `keep` remain fields whatever is found.

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
    measure = "AUC" if schema.label.task == "binary" else "R squared"
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
    """AUC or R squared of the column alone; None if there are too few rows."""
    is_binary = label.task == "binary"
    if is_binary and min(int((y > 0.5).sum()), int((y <= 0.5).sum())) < LEAST_OF_A_CLASS:
        return None
    if not is_binary and (len(y) < LEAST_ROWS or float(y.std()) == 0):
        return None

    number = as_number(column, column.name) if numeric else None
    if number is not None:
        present = max(len(number) - number.null_count(), 1)
        text = as_text((number.rank("average") * QUANTILE_BINS / present).ceil())
    encoded = _target_encoded(text, y, seed)
    if is_binary:
        scores = [auc(y, encoded)]
    else:
        errors = np.square(encoded - y).sum() / np.square(y - y.mean()).sum()
        scores = [1 - float(errors)]

    # The order of the numbers themselves.
    if number is not None and number.null_count() == 0:
        z = number.to_numpy()
        if is_binary:
            in_order = auc(y, z)
            scores.append(max(in_order, 1 - in_order))
        elif float(z.std()) > 0:
            scores.append(float(np.corrcoef(z, y)[0, 1]) ** 2)
    return max(scores)


def _target_encoded(text: pl.Series, y: np.ndarray, seed: int) -> np.ndarray:
    """The out-of-fold mean label of each row's value; a missing cell counts as a value."""
    frame = pl.DataFrame({"cell": text.fill_null("\x00")})
    settings = TargetEncoding(columns=("cell",), folds=ENCODING_FOLDS)
    frames: Mapping[str, pl.DataFrame] = add_target_encoding(
        {"train": frame}, {"train": y}, settings, seed=seed, budget=NO_LIMIT
    )
    means = frames["train"].get_column("cell_mean_label")
    return means.fill_null(float(y.mean())).to_numpy()
