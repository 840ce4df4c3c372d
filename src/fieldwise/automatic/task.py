"""The table as a learning task: its schema, the split of its rows, and the findings of the audit."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.auditing.detectors import strong_findings
from fieldwise.auditing.fields import audit_fields, without
from fieldwise.auditing.finding import Finding
from fieldwise.auditing.table import AuditedTable, of_prepared
from fieldwise.automatic.settings import AutoSettings, Note
from fieldwise.config import to_plain
from fieldwise.data.infer.inference import Inference
from fieldwise.data.infer.schema import infer_schema
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.prepare.preparation import check_columns
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.prepare.repeated_rows import repeat_sentences
from fieldwise.data.prepare.settings import ColumnSplit
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.prepare.suggested_split import suggest_split
from fieldwise.evaluation.metrics import LOSSES
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.storage.scratch import NO_LIMIT

FEW_TEST_ROWS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class AutoTask:
    """A table with its schema, its split, and its encoded rows.

    Args:
        frame: the table.
        schema: of the columns that models read.
        notes: for each column that is not a field, the reason.
        findings: of the audit.
        prepared: the encoded rows.
        settings: a recipe's settings of data, schema, split and seed, as plain values.
        device: where networks are trained.
        inferred: what was inferred; None if a schema was given.
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
        return LOSSES[self.schema.label.task]

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
    frame, schema, inferred = _with_schema(frame, settings, note, read)
    seed = settings.seed
    split = settings.split
    why = "as requested"
    if split is None:
        split, why = suggest_split(frame, schema)
    labelled = read_label(frame, schema.label, missing=schema.missing, budget=NO_LIMIT)
    parts = split_table(labelled.frame, split, schema, seed=seed, y=labelled.main, budget=NO_LIMIT)
    sizes = ", ".join(f"{size:,} {name}" for name, size in parts.sizes.items())
    note(f"split into {sizes} rows: {why}")

    train = labelled.take(parts.train).of_one_class(schema, budget=NO_LIMIT)
    findings = audit_fields(train.frame, train.main, schema, seed)
    schema = without(schema, findings, settings.keep)
    reasons = _reasons(findings, inferred, schema, frame.columns)
    _report(findings, reasons, schema, note)

    plain = {
        "data": to_plain(source),
        "schema": schema.to_dict(),
        "split": to_plain(split),
        "seed": seed,
    }
    recipe = Recipe.from_dict({**plain, "model": {"name": "lr"}}, "auto")
    prepared = prepare_recipe(recipe, Path(), frame)
    if labelled.dropped:
        note(f"{labelled.dropped:,} of {frame.height:,} rows dropped by the label's rule")
    for sentence in repeat_sentences(prepared.counts):
        note(f"warning: {sentence}")
    _report_strong_findings(of_prepared(prepared, schema, split), findings, note)
    if len(parts.test) < FEW_TEST_ROWS:
        note(
            f"{len(parts.test):,} test rows are few: all test metrics are uncertain, as their intervals show"
        )
    return AutoTask(
        frame=frame,
        schema=schema,
        notes=reasons,
        findings=tuple(findings),
        prepared=prepared,
        settings=plain,
        device=settings.device,
        inferred=inferred,
    )


def _report_strong_findings(
    prepared: AuditedTable, findings: Collection[Finding], note: Note
) -> None:
    """Report what the quick detectors find in the prepared rows, on columns without a high finding so far."""
    reported = {finding.column for finding in findings if finding.severity == "high"}
    for strong in strong_findings(prepared):
        if strong.column not in reported:
            note(f"warning: {strong.sentence}; {strong.remedy}")


def _with_schema(
    frame: pl.DataFrame, settings: AutoSettings, note: Note, read: ReadTable | None
) -> tuple[pl.DataFrame, Schema, Inference | None]:
    """The table, its schema with the main label alone, and what that was inferred from, unless it was given."""
    inferred = None
    schema = settings.schema
    if schema is None:
        without_parts = frame
        if isinstance(settings.split, ColumnSplit):
            without_parts = frame.drop(settings.split.column, strict=False)
        inferred = infer_schema(without_parts, label=settings.label, positive=settings.positive)
        schema = inferred.schema

        # read again if there is text where numbers were taken from the file
        named = schema.text_columns
        if settings.split is not None:
            named += settings.split.text_columns
        texts = [column for column in dict.fromkeys(named) if column in frame.columns]
        if read is not None and any(frame.schema[column].is_numeric() for column in texts):
            frame = read(texts)

        label = schema.label.column
        note(f"label: column {label!r}, {inferred.column_notes[label].reason}")
        for column, doubt in inferred.grouped_doubts().items():
            note(f"CHECK column {column!r}: {doubt}")
    if schema.more_labels:
        names = ", ".join(repr(other.name) for other in schema.more_labels)
        note(f"only the main label is learned: {schema.label.name!r}, not {names}")
        schema = dataclasses.replace(schema, more_labels=())
    check_columns(frame.columns, schema)
    return frame, schema, inferred


def _reasons(
    findings: Collection[Finding],
    inferred: Inference | None,
    schema: Schema,
    columns: Collection[str],
) -> dict[str, str]:
    """For each column that is not a field the reason, from the audit or from the inferred schema."""
    read_columns = {*schema.columns, schema.label.column}
    reasons = {}
    for finding in findings:
        if finding.column is not None and finding.column not in read_columns:
            reasons[finding.column] = finding.sentence
    if inferred is None:
        return reasons
    for column in columns:
        if column in inferred.column_notes and column not in read_columns and column not in reasons:
            reasons[column] = inferred.column_notes[column].reason
    return reasons


def _report(
    findings: Collection[Finding], reasons: dict[str, str], schema: Schema, note: Note
) -> None:
    """Report the findings, the columns that are no fields, and the fields."""
    for finding in findings:
        if finding.column in schema.columns:
            note(f"warning: {finding.sentence}; it is kept: {finding.remedy}")
        elif finding.severity == "high":
            note(
                f"LEFT OUT: {finding.sentence}. If its values are known before the outcome, keep it: "
                f"--keep {finding.column}, or in Python keep=[{finding.column!r}]"
            )
        else:
            note(f"left out: {finding.sentence}")
    audited = {finding.column for finding in findings}
    for column, reason in reasons.items():
        if column not in audited and column != schema.time:
            note(f"not a field: column {column!r} ({reason})")
    names = ", ".join(field.name for field in schema.fields)
    note(f"learning from {len(schema.fields)} fields: {names}")
