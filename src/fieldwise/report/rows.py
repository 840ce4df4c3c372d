"""The report's facts about a run: rows, fields, recipe and machine."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.encode.fitted import Vocabulary
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.settings import PARTS
from fieldwise.errors import DataError
from fieldwise.report.blocks import Block, Code, Note, Section, Table, count, number, percent
from fieldwise.report.runs import ReportedRun
from fieldwise.schema import Schema

__all__ = ["data_section", "recipe_section"]

WORDS = {"train": "training", "valid": "validation", "test": "test"}


def data_section(run: ReportedRun) -> Section:
    """A section on split sizes, times, positive rates and fields."""
    schema, prepared = run.recipe.schema, run.prepared
    labels = schema.labels
    columns = ["rows of", "rows"]
    columns += [f"{'positive rate' if label.task == 'binary' else 'mean'} of {label.name}" for label in labels]
    columns += [] if schema.grouping is None else [f"distinct {schema.grouping}"]
    columns += [] if schema.time is None else [f"first {schema.time}", f"last {schema.time}"]
    rows = []
    for name in PARTS:
        part = getattr(prepared, name)
        y = np.asarray(part.y, dtype=np.float64)
        cells = [WORDS[name], count(len(part.y)), *(number(float(y[:, k].mean())) for k in range(len(labels)))]
        if schema.grouping is not None:
            there = schema.grouping in part.frame.columns
            cells.append(count(part.frame.get_column(schema.grouping).n_unique()) if there else "")
        if schema.time is not None:
            cells += _times(part.frame, schema)
        rows.append(cells)
    counts = prepared.counts
    notes = []
    dropped = counts.get("dropped_by_label", 0)
    notes.append(f"{count(dropped)} rows were dropped by the label's rule." if dropped else "No row was dropped.")
    if counts.get("negatives_drawn"):
        notes.append(f"{count(counts['negatives_drawn'])} negatives were sampled.")
    blocks: list[Block] = [Table(columns=columns, rows=rows, note=" ".join(notes))]
    if not run.checked:
        blocks.append(
            Note(
                text="Not checked: whether these are the test rows of the training run, because the bundle has no "
                "digest of them.",
                warns=True,
            )
        )
    blocks.append(_fields(run))
    return Section(title="Data", blocks=blocks)


def _times(frame: pl.DataFrame, schema: Schema) -> list[str]:
    column = schema.time
    if column is None or column not in frame.columns or frame.get_column(column).null_count() == frame.height:
        return ["", ""]
    present = frame.drop_nulls(column)
    try:
        moments = order_values(present, column, "time", schema.time_format)
    except DataError:  # a random split does not need valid times
        return ["", ""]
    cells = present.get_column(column)
    return [str(cells[int(moments.argmin())]), str(cells[int(moments.argmax())])]


def _fields(run: ReportedRun) -> Table:
    encoder, unseen = run.prepared.encoder, run.prepared.unseen.get("test", {})
    rows = []
    for field, fitted in zip(encoder.fields, encoder.fitted, strict=True):
        size = count(len(fitted.values)) if isinstance(fitted, Vocabulary) else ""
        share = percent(unseen[field.name]) if field.name in unseen else ""
        name = field.name if field.column == field.name else f"{field.name} (column {field.column})"
        rows.append([name, field.kind, field.role, size, share])
    return Table(
        title="Fields",
        columns=["field", "kind", "role", "values known", "unseen on test"],
        rows=rows,
        words=(1, 2),
        note="Values known: values of the training rows with their own embedding. Unseen: the share of the test "
        "rows' values that use the field's embedding for unknown values.",
    )


def recipe_section(run: ReportedRun) -> Section:
    """A section on the recipe, the software versions and the machine."""
    settings = run.recipe.to_dict()
    rows: list[list[str]] = []
    for part in ("model", "training", "split"):
        rows += [[f"{part}.{name}", value] for name, value in _flat(settings.get(part, {})).items()]
    rows += [["seed", str(run.recipe.seed)], ["data_seed", str(run.recipe.rows_seed)]]
    blocks: list[Block] = [Table(columns=["fact", "value"], rows=_facts(run), words=(1,))]
    blocks.append(
        Table(
            title="Settings of model, training and split",
            folded=True,
            columns=["setting", "value"],
            rows=rows,
            words=(1,),
        )
    )
    blocks.append(Code(title="The whole recipe, as TOML", text=_toml(settings)))
    return Section(title="Recipe and machine", blocks=blocks)


def _facts(run: ReportedRun) -> list[list[str]]:
    record, environment = run.record, run.origin.get("environment", {})
    versions = {**run.origin.get("versions", {})}
    versions |= {k: environment[k] for k in ("fieldwise", "torch") if k in environment}
    seconds = record.get("seconds_per_epoch")
    facts = {
        "recipe": run.recipe.name,
        "benchmark": run.recipe.benchmark or "",
        "protocol": run.recipe.protocol or "",
        "run": str(run.folder),
        "model": str(record.get("model", {}).get("name", "")),
        "parameters": count(record["parameters"]) if "parameters" in record else "",
        "seconds in total": f"{record['seconds']:.1f}" if "seconds" in record else "",
        "seconds per epoch (median)": "" if seconds is None else f"{seconds:.1f}",
        "made": str(run.origin.get("created", environment.get("date", ""))),
        "machine": str(environment.get("machine", "")),
        "threads": str(environment.get("threads", "")),
        "commit": str(environment.get("commit", "")),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    unknown = "not recorded: trained by an older version"
    return [[k, v or unknown] for k, v in facts.items() if v or k in ("machine", "commit")]


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = str(value)
    return found


def _toml(settings: Mapping[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(settings)
