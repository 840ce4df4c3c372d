"""The table as a task: what its columns mean, how its rows are divided, and what was found on the way."""

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.automatic.audit import Finding, audit, without
from fieldwise.automatic.settings import AutoSettings
from fieldwise.config import to_plain
from fieldwise.data.infer.schema import Inference, infer_schema
from fieldwise.data.infer.split import suggest_split
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.prepare.prepared import Prepared, check_columns
from fieldwise.data.prepare.repeats import repeat_sentences
from fieldwise.data.prepare.split_kind import SplitColumns
from fieldwise.data.prepare.split_settings import ColumnSplit, SplitSettings
from fieldwise.data.prepare.splits import split_table
from fieldwise.data.read.tables import as_table
from fieldwise.runs.data import load_frame, prepare_recipe
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema

__all__ = ["IN_MEMORY", "Problem", "pose", "read_source"]

IN_MEMORY = "table-in-memory"  # instead of a path, where a table was given and nothing of it is written
FEW_TEST_ROWS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """What is to be learned from which rows.

    Args:
        frame: the whole table.
        schema: of what is learned from.
        notes: by column, why those of the table that are no field are none.
        findings: of the audit.
        split: how the rows are divided.
        prepared: the rows, encoded.
        settings: of a recipe: data, schema, split and seed.
        inferred: the schema as it was inferred; None where one was given.
    """

    frame: pl.DataFrame
    schema: Schema
    notes: dict[str, str]
    findings: tuple[Finding, ...]
    split: SplitSettings
    prepared: Prepared
    settings: dict[str, Any]
    inferred: Inference | None

    @property
    def metric(self) -> str:
        """What models are chosen by, on validation rows; lower is better."""
        return "logloss" if self.schema.label.task == "binary" else "rmse"

    def recipe(self, model: dict[str, Any], name: str) -> Recipe:
        """A recipe of these rows with a model's settings, all else by default."""
        return Recipe.from_dict({**self.settings, "model": model}, name)


def read_source(data: Any) -> tuple[pl.DataFrame, DataSettings]:
    """The table, and where a recipe finds it.

    Errors:
        DataError: as of `as_table`.
    """
    if isinstance(data, (str, Path)):
        data = DataSettings(path=str(data))
    if isinstance(data, DataSettings):
        frame = load_frame(data, Path())
        place = None if data.path is None else str(Path(data.path).resolve())
        return frame, dataclasses.replace(data, path=place)
    return as_table(data), DataSettings(path=IN_MEMORY)


def pose(frame: pl.DataFrame, source: DataSettings, settings: AutoSettings, note: Callable[[str], None]) -> Problem:
    """Infer the schema, divide the rows, audit the training rows, leave out what is to be left out, encode.

    Args:
        frame: the table.
        source: where recipes find it.
        settings: label, schema, split, columns to keep and seed.
        note: receives a sentence on each finding.

    Errors:
        SchemaError, DataError: the table does not fit, or nothing is left to learn from.
        ConfigError: a column to keep that no field reads.
    """
    seed = settings.seed
    schema, inferred = _schema(frame, settings, note)
    split, why = (settings.split, "as asked for") if settings.split is not None else suggest_split(frame, schema)
    rows = read_label(frame, schema.label)
    parts = split_table(rows.frame, split, SplitColumns.of(schema), seed=seed, y=rows.main)
    sizes = ", ".join(f"{count:,} {name}" for name, count in parts.sizes.items())
    note(f"rows are divided into {sizes} rows: {why}")
    findings = audit(rows.frame[parts.train], rows.main[parts.train], schema, keep=settings.keep, seed=seed)
    schema = without(schema, findings)
    notes = _say(findings, inferred, schema, frame.columns, note)
    plain = {"data": to_plain(source), "schema": schema.to_dict(), "split": to_plain(split), "seed": seed}
    recipe = Recipe.from_dict({**plain, "model": {"name": "lr"}}, "auto")
    prepared = prepare_recipe(recipe, Path(), frame)
    if rows.dropped:
        note(f"{rows.dropped:,} of {frame.height:,} rows dropped by the label's rule")
    for sentence in repeat_sentences(prepared.counts):
        note(f"careful: {sentence}")
    if len(parts.test) < FEW_TEST_ROWS:
        note(f"{len(parts.test):,} test rows are few: every figure of them is unsure, as the intervals show")
    return Problem(
        frame=frame,
        schema=schema,
        notes=notes,
        findings=tuple(findings),
        split=split,
        prepared=prepared,
        settings=plain,
        inferred=inferred,
    )


def _schema(
    frame: pl.DataFrame, settings: AutoSettings, note: Callable[[str], None]
) -> tuple[Schema, Inference | None]:
    """The schema with one label, and how it was inferred where none was given."""
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
        note(f"of several labels the main one alone is learned: {schema.label.name!r}, not {names}")
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
    """Tell what was found and what is no field; returns the reasons of the latter by column."""
    read = {*schema.columns, schema.label.column}
    known = {} if inferred is None else inferred.notes
    reasons = {found.column: found.sentence for found in findings if found.left_out}
    reasons |= {c: _after_colon(known[c]) for c in columns if c in known and c not in read and c not in reasons}
    for found in findings:
        if found.kind == "label-like" and found.left_out:
            note(
                f"LEFT OUT: {found.sentence}. Models would learn the answer from it. Is it known beforehand? Keep it "
                f"with --keep {found.column}"
            )
        else:
            note(f"left out: {found.sentence}" if found.left_out else f"careful: {found.sentence}")
    audited = {found.column for found in findings}
    for column, reason in reasons.items():
        if column not in audited and column != schema.time:
            note(f"no field: column {column!r} ({reason})")
    used = ", ".join(f.name for f in schema.fields)
    note(f"learning from {len(schema.fields)} fields: {used}")
    return reasons


def _after_colon(text: str) -> str:
    """A note of the inferred schema without its first word."""
    head, colon, rest = text.partition(": ")
    return rest if colon and " " not in head else text
