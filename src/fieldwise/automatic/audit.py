"""Audit of a table's columns: finds constant columns, row identifiers, and columns that give the label away."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_list, as_number, as_text
from fieldwise.data.prepare.derived import add_target_encoding
from fieldwise.data.prepare.settings import TargetEncoding
from fieldwise.errors import ConfigError, SchemaError
from fieldwise.evaluation import auc
from fieldwise.schema import Field, Label, Schema
from fieldwise.schema.fields import unshared

__all__ = ["LABEL_LIKE", "Finding", "audit", "without"]

LABEL_LIKE = 0.99  # a column whose own AUC (regression: R squared) is at least this is label-like
SUSPICIOUS = 0.95
ID_LIKE = 0.9  # minimum share of different values among the values present
FEWEST_ROWS = 20  # with fewer rows no column is called id-like
FEWEST_OF_A_CLASS = 5  # with fewer rows of a class no column is called label-like
MOST_ROWS = 100_000
BINS, FOLDS = 50, 5

Kind = Literal["constant", "id-like", "label-like", "suspicious"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding of the audit about one column.

    Args:
        column: name of the column.
        kind: `constant`, `id-like` (nearly every row has a different value), `label-like` (predicts the label nearly
            perfectly by itself) or `suspicious` (predicts it very well, which may be legitimate).
        sentence: the finding as a sentence.
        left_out: whether the fields of the column were removed from the schema.
        value: AUC or R squared on training rows; None if it was not measured.
    """

    column: str
    kind: Kind
    sentence: str
    left_out: bool
    value: float | None = None


def audit(
    train: pl.DataFrame, y: np.ndarray, schema: Schema, *, keep: Collection[str] = (), seed: int = 0
) -> list[Finding]:
    """Findings about the columns that the schema's fields read, from training rows alone.

    To measure how well a column predicts the label, its values are replaced by their out-of-fold target encoding, and
    the AUC of the result is computed (R squared for a regression label). A numeric column is cut into quantile bins
    first, and its own order is evaluated too. At most 100,000 sampled rows are used. Columns in
    `keep` remain fields whatever is found.

    Errors:
        ConfigError: no field reads a column in `keep`.

    >>> from fieldwise import Categorical
    >>> frame = pl.DataFrame({"film": ["a", "b"] * 50, "country": ["fi"] * 100, "paid": [0, 1] * 50})
    >>> schema = Schema(fields=(Categorical("country"), Categorical("paid")), label=Label("liked"))
    >>> [(found.column, found.kind) for found in audit(frame, np.array([0.0, 1.0] * 50), schema)]
    [('country', 'constant'), ('paid', 'label-like')]
    """
    strange = [column for column in keep if column not in schema.columns]
    if strange:
        raise ConfigError(
            f"keep must name a column that a field reads, found {strange[0]!r}: the fields read "
            f"{', '.join(schema.columns)}"
        )
    if train.height > MOST_ROWS:
        some = np.sort(np.random.default_rng(seed).choice(train.height, MOST_ROWS, replace=False))
        train, y = train[some], y[some]
    first = {f.column: f for f in reversed(schema.fields)}
    found = [_examine(train.get_column(c), y, first[c], schema.label, c in keep, seed) for c in schema.columns]
    return [one for one in found if one is not None]


def without(schema: Schema, findings: Sequence[Finding]) -> Schema:
    """The schema without the fields of the columns left out; fields that shared their embeddings get their own.

    Errors:
        SchemaError: no field is left.
    """
    gone = {found.column: found for found in findings if found.left_out}
    fields = [f for f in schema.fields if f.column not in gone]
    if not fields:
        why = "; ".join(found.sentence for found in gone.values())
        raise SchemaError(f"no column is left to learn from: {why}")
    names = {f.name for f in fields}
    alone = [unshared(f) if f.shares not in names else f for f in fields]
    return dataclasses.replace(schema, fields=tuple(alone))


def _examine(column: pl.Series, y: np.ndarray, field: Field, label: Label, kept: bool, seed: int) -> Finding | None:
    text = _as_text(column, field)
    present, distinct = len(text) - text.null_count(), text.drop_nulls().n_unique()
    name, what = column.name, f"column {column.name!r}"

    def found(kind: Kind, sentence: str, value: float | None = None, *, out: bool = True) -> Finding:
        more = "; it is kept, as requested" if kept and out else ""
        return Finding(column=name, kind=kind, sentence=sentence + more, left_out=out and not kept, value=value)

    if text.n_unique() <= 1:
        return found("constant", f"{what} is constant in the training rows, so there is nothing to learn from it")
    numeric = field.cell == "number"
    if field.cell == "number" and column.dtype == pl.String:
        column = as_number(column, what, form=field.number_format)
    value = _tells(column, text, y, label, numeric=numeric, seed=seed)
    measure = "AUC" if label.task == "binary" else "R squared"
    if value is not None and value >= LABEL_LIKE:
        return found(
            "label-like",
            f"{what} alone predicts the label nearly perfectly ({measure} {value:.4f} on training rows), which usually "
            "means that its values are known only after the outcome",
            value,
        )
    if field.cell == "category" and present >= FEWEST_ROWS and distinct >= ID_LIKE * present:
        return found("id-like", f"{what} is an id: {distinct:,} different values in {present:,} training rows")
    if numeric and present >= FEWEST_ROWS and _counts_rows(column):
        return found("id-like", f"{what} is a row number, from {column.min()!r} to {column.max()!r}")
    if value is not None and value >= SUSPICIOUS:
        sentence = (
            f"{what} alone predicts the label very well ({measure} {value:.4f} on training rows): it is kept, but if "
            "its values are known only after the outcome, remove it from the schema"
        )
        return found("suspicious", sentence, value, out=False)
    return None


def _as_text(column: pl.Series, field: Field) -> pl.Series:
    if field.cell == "list":
        return as_list(column, field.separator).list.join("\x1f").replace("", None)
    return as_text(column)


def _counts_rows(column: pl.Series) -> bool:
    """Whether a column holds ascending, distinct integers with few gaps, as a row number does."""
    number = as_number(column, column.name).drop_nulls()
    whole = bool((number % 1 == 0).all())
    low, high = float(number.min()), float(number.max())  # type: ignore[arg-type]
    # A random split leaves about four of five row numbers in the training rows.
    return whole and number.n_unique() == len(number) and high - low + 1 <= 2 * len(number) and number.is_sorted()


def _tells(
    column: pl.Series, text: pl.Series, y: np.ndarray, label: Label, *, numeric: bool, seed: int
) -> float | None:
    """AUC or R squared of the column alone; None if there are too few rows."""
    binary = label.task == "binary"
    if binary and min(int((y > 0.5).sum()), int((y <= 0.5).sum())) < FEWEST_OF_A_CLASS:
        return None
    if not binary and (len(y) < FEWEST_ROWS or float(y.std()) == 0):
        return None
    if not numeric:
        return _judged(y, _out_of_fold(text, y, seed), binary)
    number = as_number(column, column.name)
    bins = (number.rank("average") * BINS / max(len(number) - number.null_count(), 1)).ceil()
    values = [_judged(y, _out_of_fold(as_text(bins), y, seed), binary)]
    if number.null_count() == 0:
        z = number.to_numpy()
        if binary:
            in_order = auc(y, z)
            values.append(max(in_order, 1 - in_order))
        elif float(z.std()) > 0:
            values.append(float(np.corrcoef(z, y)[0, 1]) ** 2)
    return max(values)


def _out_of_fold(text: pl.Series, y: np.ndarray, seed: int) -> np.ndarray:
    """Out-of-fold target encoding of a column, [N]; a missing cell counts as a value of its own."""
    frame = pl.DataFrame({"cell": text.fill_null("\x00")})
    settings = TargetEncoding(columns=("cell",), folds=FOLDS)
    frames: Mapping[str, pl.DataFrame] = add_target_encoding({"train": frame}, {"train": y}, settings, seed=seed)
    return frames["train"].get_column("cell_mean_label").fill_null(float(y.mean())).to_numpy()


def _judged(y: np.ndarray, predicted: np.ndarray, binary: bool) -> float:
    if binary:
        return auc(y, predicted)
    return 1 - float(np.square(predicted - y).sum() / np.square(y - y.mean()).sum())
