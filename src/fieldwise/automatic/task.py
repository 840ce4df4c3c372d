"""The table as a learning task: its schema, the split of its rows, and the findings of the audit."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from fieldwise.automatic.settings import AutoSettings, Note
from fieldwise.config import to_plain
from fieldwise.data.encode.columns import as_list, as_number, as_text
from fieldwise.data.infer.schema import Inference, infer_schema, suggest_split
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.prepare.preparation import check_columns
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.prepare.row_fingerprints import repeat_sentences
from fieldwise.data.prepare.settings import ColumnSplit, TargetEncoding
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.prepare.target_encoding import add_target_encoding
from fieldwise.errors import ConfigError, SchemaError
from fieldwise.evaluation import auc
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Field, Label, Schema

LABEL_LIKE = 0.99  # a column whose own AUC (regression: R squared) is at least this is label-like
SUSPICIOUS = 0.95
ID_LIKE = 0.9  # minimum share of different values among the values present
FEWEST_ROWS = 20  # with fewer rows no column is called id-like
FEWEST_OF_A_CLASS = 5  # with fewer rows of a class no column is called label-like
MOST_ROWS = 100_000
BINS = 50
FOLDS = 5

Kind = Literal["constant", "id-like", "label-like", "suspicious"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding of the audit about one column."""

    column: str
    # id-like: nearly all values differ; label-like, suspicious: it predicts the label by itself
    kind: Kind
    sentence: str
    left_out: bool  # whether the fields of the column were removed from the schema
    value: float | None = None  # AUC or R squared on training rows; None if it was not measured


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
    strange = [column for column in keep if column not in schema.columns]
    if strange:
        raise ConfigError(
            f"keep must name a column that a field reads, found {strange[0]!r}: the fields read "
            f"{', '.join(schema.columns)}"
        )
    if train.height > MOST_ROWS:
        some = np.sort(np.random.default_rng(seed).choice(train.height, MOST_ROWS, replace=False))
        train = train[some]
        y = y[some]
    first = {f.column: f for f in reversed(schema.fields)}
    results = [
        _examine(train.get_column(c), y, first[c], schema, c in keep, seed) for c in schema.columns
    ]
    return [one for one in results if one is not None]


def without(schema: Schema, findings: Sequence[Finding]) -> Schema:
    """The schema without the fields of the columns left out; fields that shared their embeddings get their own."""
    gone = {result.column: result for result in findings if result.left_out}
    fields = [f for f in schema.fields if f.column not in gone]
    if not fields:
        why = "; ".join(result.sentence for result in gone.values())
        raise SchemaError(f"no column is left to learn from: {why}")
    names = {f.name for f in fields}
    remaining = []
    for f in fields:
        if f.shares is not None and f.shares not in names:
            f = dataclasses.replace(f, shares=None)
        remaining.append(f)
    return dataclasses.replace(schema, fields=tuple(remaining))


def _examine(
    column: pl.Series, y: np.ndarray, field: Field, schema: Schema, kept: bool, seed: int
) -> Finding | None:
    lists = as_list(column, field.separator) if field.cell == "list" else None
    text = as_text(column) if lists is None else lists.list.join("\x1f").replace("", None)
    present = len(text) - text.null_count()
    distinct = text.drop_nulls().n_unique()
    name = column.name
    what = f"column {column.name!r}"
    label = schema.label

    def found(
        kind: Kind, sentence: str, value: float | None = None, *, out: bool = True
    ) -> Finding:
        more = "; it is kept, as requested" if kept and out else ""
        return Finding(
            column=name, kind=kind, sentence=sentence + more, left_out=out and not kept, value=value
        )

    if text.n_unique() <= 1:
        return found(
            "constant",
            f"{what} is constant in the training rows, so there is nothing to learn from it",
        )
    numeric = field.cell == "number"
    if field.cell == "number" and column.dtype == pl.String:
        column = as_number(column, what, form=field.number_format, missing=schema.missing)
    value = _solo_score(column, text, y, label, numeric=numeric, seed=seed)
    measure = "AUC" if label.task == "binary" else "R squared"
    if value is not None and value >= LABEL_LIKE:
        return found(
            "label-like",
            f"{what} alone predicts the label nearly perfectly ({measure} {value:.4f} on training rows), which usually "
            "means that its values are known only after the outcome",
            value,
        )
    if field.cell == "category" and present >= FEWEST_ROWS and distinct >= ID_LIKE * present:
        return found(
            "id-like",
            f"{what} is an id: {distinct:,} different values in {present:,} training rows",
        )
    if numeric and present >= FEWEST_ROWS:
        number = as_number(column, name, missing=schema.missing).drop_nulls()
        low = float(number.min())  # type: ignore[arg-type]
        high = float(number.max())  # type: ignore[arg-type]
        # A random split leaves about four of five row numbers in the training rows.
        counts = high - low + 1 <= 2 * len(number) and bool((number % 1 == 0).all())
        if counts and number.n_unique() == len(number) and number.is_sorted():
            return found(
                "id-like", f"{what} is a row number, from {column.min()!r} to {column.max()!r}"
            )
    if value is not None and value >= SUSPICIOUS:
        sentence = (
            f"{what} alone predicts the label very well ({measure} {value:.4f} on training rows): it is kept, but if "
            "its values are known only after the outcome, remove it from the schema"
        )
        return found("suspicious", sentence, value, out=False)
    return None


def _solo_score(
    column: pl.Series, text: pl.Series, y: np.ndarray, label: Label, *, numeric: bool, seed: int
) -> float | None:
    """AUC or R squared of the column alone; None if there are too few rows."""
    binary = label.task == "binary"
    if binary and min(int((y > 0.5).sum()), int((y <= 0.5).sum())) < FEWEST_OF_A_CLASS:
        return None
    if not binary and (len(y) < FEWEST_ROWS or float(y.std()) == 0):
        return None
    number = as_number(column, column.name) if numeric else None
    if number is not None:
        bins = (number.rank("average") * BINS / max(len(number) - number.null_count(), 1)).ceil()
        text = as_text(bins)
    # a missing cell counts as a value of its own
    frame = pl.DataFrame({"cell": text.fill_null("\x00")})
    settings = TargetEncoding(columns=("cell",), folds=FOLDS)
    frames: Mapping[str, pl.DataFrame] = add_target_encoding(
        {"train": frame}, {"train": y}, settings, seed=seed
    )
    predicted = frames["train"].get_column("cell_mean_label").fill_null(float(y.mean())).to_numpy()
    errors = np.square(predicted - y).sum() / np.square(y - y.mean()).sum()
    values = [auc(y, predicted) if binary else 1 - float(errors)]
    if number is not None and number.null_count() == 0:
        z = number.to_numpy()
        if binary:
            in_order = auc(y, z)
            values.append(max(in_order, 1 - in_order))
        elif float(z.std()) > 0:
            values.append(float(np.corrcoef(z, y)[0, 1]) ** 2)
    return max(values)


FEW_TEST_ROWS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class AutoTask:
    """A table with its schema, its split, and its encoded rows."""

    frame: pl.DataFrame
    schema: Schema  # of the columns that models read
    notes: dict[str, str]  # for each column that is not a field, the reason
    findings: tuple[Finding, ...]
    prepared: Prepared
    settings: dict[str, Any]  # a recipe's settings of data, schema, split and seed, as plain values
    device: str  # where networks are trained
    inferred: Inference | None  # None if a schema was given

    @property
    def metric(self) -> str:
        """The metric by which models are chosen on validation rows; lower is better."""
        return "logloss" if self.schema.label.task == "binary" else "rmse"

    def recipe(self, model: dict[str, Any], name: str) -> Recipe:
        """A recipe for these rows with a model's settings; everything else has its default."""
        return Recipe.from_dict({**self.settings, "model": model}, name).on(self.device)


ReadTable = Callable[[Sequence[str]], pl.DataFrame]
"""Reads the table, with these columns as text (`Schema.text_columns`)."""


def build_task(
    frame: pl.DataFrame,
    source: DataSettings,
    settings: AutoSettings,
    note: Note,
    read: ReadTable | None = None,
) -> AutoTask:
    """The learning task of a table: infers the schema, splits the rows, audits the training rows, and encodes all.

    A file's table is read again (`read`) if an inferred schema has text where numbers were taken
    from the file.
    """
    seed = settings.seed
    schema = settings.schema
    inferred = None
    if schema is None:
        names_parts = [settings.split.column] if isinstance(settings.split, ColumnSplit) else []
        inferred = infer_schema(
            frame.drop(names_parts, strict=False), label=settings.label, positive=settings.positive
        )
        schema = inferred.schema
        named = schema.text_columns
        if settings.split is not None:
            named += settings.split.text_columns
        texts = [column for column in dict.fromkeys(named) if column in frame.columns]
        if read is not None and any(frame.schema[column].is_numeric() for column in texts):
            frame = read(texts)
        note(
            f"label: column {schema.label.column!r}, {_after_colon(inferred.notes[schema.label.column])}"
        )
        for column, doubt in inferred.grouped_doubts().items():
            note(f"CHECK column {column!r}: {doubt}")
    if schema.more_labels:
        names = ", ".join(repr(other.name) for other in schema.more_labels)
        note(f"only the main label is learned: {schema.label.name!r}, not {names}")
        schema = dataclasses.replace(schema, more_labels=())
    check_columns(frame.columns, schema)
    split, why = (
        (settings.split, "as requested")
        if settings.split is not None
        else suggest_split(frame, schema)
    )
    rows = read_label(frame, schema.label, missing=schema.missing)
    parts = split_table(rows.frame, split, schema, seed=seed, y=rows.main)
    sizes = ", ".join(f"{count:,} {name}" for name, count in parts.sizes.items())
    note(f"split into {sizes} rows: {why}")
    findings = audit(
        rows.frame[parts.train], rows.main[parts.train], schema, keep=settings.keep, seed=seed
    )
    schema = without(schema, findings)
    notes = _say(findings, inferred, schema, frame.columns, note)
    plain = {
        "data": to_plain(source),
        "schema": schema.to_dict(),
        "split": to_plain(split),
        "seed": seed,
    }
    recipe = Recipe.from_dict({**plain, "model": {"name": "lr"}}, "auto")
    prepared = prepare_recipe(recipe, Path(), frame)
    if rows.dropped:
        note(f"{rows.dropped:,} of {frame.height:,} rows dropped by the label's rule")
    for sentence in repeat_sentences(prepared.counts):
        note(f"warning: {sentence}")
    if len(parts.test) < FEW_TEST_ROWS:
        note(
            f"{len(parts.test):,} test rows are few: all test metrics are uncertain, as their intervals show"
        )
    return AutoTask(
        frame=frame,
        schema=schema,
        notes=notes,
        findings=tuple(findings),
        prepared=prepared,
        settings=plain,
        device=settings.device,
        inferred=inferred,
    )


def _say(
    findings: Collection[Finding],
    inferred: Inference | None,
    schema: Schema,
    columns: Collection[str],
    note: Note,
) -> dict[str, str]:
    """Report the findings; returns for each column that is not a field the reason."""
    read = {*schema.columns, schema.label.column}
    known = {} if inferred is None else inferred.notes
    reasons = {result.column: result.sentence for result in findings if result.left_out}
    reasons |= {
        c: _after_colon(known[c])
        for c in columns
        if c in known and c not in read and c not in reasons
    }
    for result in findings:
        if result.kind == "label-like" and result.left_out:
            note(
                f"LEFT OUT: {result.sentence}. If its values are known before the outcome, keep it: "
                f"--keep {result.column}, or in Python keep=[{result.column!r}]"
            )
        else:
            note(
                f"left out: {result.sentence}" if result.left_out else f"warning: {result.sentence}"
            )
    audited = {result.column for result in findings}
    for column, reason in reasons.items():
        if column not in audited and column != schema.time:
            note(f"not a field: column {column!r} ({reason})")
    used = ", ".join(f.name for f in schema.fields)
    note(f"learning from {len(schema.fields)} fields: {used}")
    return reasons


def _after_colon(text: str) -> str:
    """A note of the inferred schema without its first word and the colon after it."""
    head, colon, rest = text.partition(": ")
    return rest if colon and " " not in head else text
