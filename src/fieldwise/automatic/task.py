"""The table as a learning task: its schema, the split of its rows, and the findings of the audit."""

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.automatic.audit import Finding, audit, without
from fieldwise.automatic.settings import AutoSettings
from fieldwise.config import to_plain
from fieldwise.data.infer.schema import Inference, infer_schema, suggest_split
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.prepare.prepared import Prepared, check_columns
from fieldwise.data.prepare.row_fingerprints import repeat_sentences
from fieldwise.data.prepare.settings import ColumnSplit
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.read.tables import as_table
from fieldwise.runs.data import load_frame, prepare_recipe
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import IN_MEMORY, Recipe
from fieldwise.schema import Schema

__all__ = ["AutoTask", "build_task", "read_source"]

FEW_TEST_ROWS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class AutoTask:
    """A table with its schema, its split, and its encoded rows.

    Args:
        frame: the whole table.
        schema: the schema of the columns that models read.
        notes: for each column that is not a field, the reason.
        findings: findings of the audit.
        prepared: the encoded rows.
        settings: a recipe's settings of data, schema, split and seed, as plain values.
        device: where networks are trained.
        inferred: the inferred schema; None if a schema was given.
    """

    frame: pl.DataFrame
    schema: Schema
    notes: dict[str, str]
    findings: tuple[Finding, ...]
    prepared: Prepared
    settings: dict[str, Any]
    device: str
    inferred: Inference | None

    @property
    def metric(self) -> str:
        """The metric by which models are chosen on validation rows; lower is better."""
        return "logloss" if self.schema.label.task == "binary" else "rmse"

    def recipe(self, model: dict[str, Any], name: str) -> Recipe:
        """A recipe for these rows with a model's settings; everything else has its default."""
        return Recipe.from_dict({**self.settings, "model": model}, name).on(self.device)


def read_source(data: Any) -> tuple[pl.DataFrame, DataSettings]:
    """The table, and the data settings by which a recipe reads it.

    Errors:
        DataError: the same as for `as_table`.
    """
    if isinstance(data, (str, Path)):
        data = DataSettings(path=str(data))
    if isinstance(data, DataSettings):
        frame = load_frame(data, Path())
        place = None if data.path is None else str(Path(data.path).resolve())
        return frame, dataclasses.replace(data, path=place)
    return as_table(data), DataSettings(path=IN_MEMORY)


def build_task(
    frame: pl.DataFrame, source: DataSettings, settings: AutoSettings, note: Callable[[str], None]
) -> AutoTask:
    """The learning task of a table: infers the schema, splits the rows, audits the training rows, and encodes all.

    Errors:
        SchemaError, DataError: the table does not fit the schema, or the audit leaves no column to learn from.
        ConfigError: no field reads a column to keep.
    """
    seed = settings.seed
    schema, inferred = _schema(frame, settings, note)
    split, why = (settings.split, "as requested") if settings.split is not None else suggest_split(frame, schema)
    rows = read_label(frame, schema.label)
    parts = split_table(rows.frame, split, schema, seed=seed, y=rows.main)
    sizes = ", ".join(f"{count:,} {name}" for name, count in parts.sizes.items())
    note(f"split into {sizes} rows: {why}")
    findings = audit(rows.frame[parts.train], rows.main[parts.train], schema, keep=settings.keep, seed=seed)
    schema = without(schema, findings)
    notes = _say(findings, inferred, schema, frame.columns, note)
    plain = {"data": to_plain(source), "schema": schema.to_dict(), "split": to_plain(split), "seed": seed}
    recipe = Recipe.from_dict({**plain, "model": {"name": "lr"}}, "auto")
    prepared = prepare_recipe(recipe, Path(), frame)
    if rows.dropped:
        note(f"{rows.dropped:,} of {frame.height:,} rows dropped by the label's rule")
    for sentence in repeat_sentences(prepared.counts):
        note(f"warning: {sentence}")
    if len(parts.test) < FEW_TEST_ROWS:
        note(f"{len(parts.test):,} test rows are few: all test metrics are uncertain, as their intervals show")
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


def _schema(
    frame: pl.DataFrame, settings: AutoSettings, note: Callable[[str], None]
) -> tuple[Schema, Inference | None]:
    """The schema with its main label only, and the inference result if no schema was given."""
    schema, inferred = settings.schema, None
    if schema is None:
        names_parts = [settings.split.column] if isinstance(settings.split, ColumnSplit) else []
        inferred = infer_schema(frame.drop(names_parts, strict=False), label=settings.label, positive=settings.positive)
        schema = inferred.schema
        note(f"label: column {schema.label.column!r}, {_after_colon(inferred.notes[schema.label.column])}")
        for column, doubt in inferred.doubts.items():
            note(f"CHECK column {column!r}: {doubt}")
    if schema.more_labels:
        names = ", ".join(repr(other.name) for other in schema.more_labels)
        note(f"only the main label is learned: {schema.label.name!r}, not {names}")
        schema = dataclasses.replace(schema, more_labels=())
    check_columns(frame.columns, schema)
    return schema, inferred


def _say(
    findings: Collection[Finding],
    inferred: Inference | None,
    schema: Schema,
    columns: Collection[str],
    note: Callable[[str], None],
) -> dict[str, str]:
    """Report the findings; returns for each column that is not a field the reason."""
    read = {*schema.columns, schema.label.column}
    known = {} if inferred is None else inferred.notes
    reasons = {found.column: found.sentence for found in findings if found.left_out}
    reasons |= {c: _after_colon(known[c]) for c in columns if c in known and c not in read and c not in reasons}
    for found in findings:
        if found.kind == "label-like" and found.left_out:
            note(f"LEFT OUT: {found.sentence}. If its values are known before the outcome, give {found.column} as keep")
        else:
            note(f"left out: {found.sentence}" if found.left_out else f"warning: {found.sentence}")
    audited = {found.column for found in findings}
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
