"""The sections on a run's data, and on its recipe, software and machine."""

from typing import Any

import numpy as np
import polars as pl
import tomli_w

from fieldwise.config import flat
from fieldwise.data.encode.numbers import is_mark
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.prepare.ordering import times_of
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.prepare.settings import PARTS
from fieldwise.display import Table, counted, number
from fieldwise.errors import DataError
from fieldwise.models.mean_with_lr import mean_sentence
from fieldwise.models.serialise import model_name
from fieldwise.report.page import Block, Caution, Code, Section, count, percent
from fieldwise.report.reported_run import ReportedRun
from fieldwise.runs.rows_of_run import PART_WORDS
from fieldwise.schema import Schema


def data_section(run: ReportedRun) -> Section:
    """A section on split sizes, times, positive rates and fields."""
    blocks: list[Block] = [_parts_table(run.prepared, run.recipe.schema)]
    if not run.checked:
        blocks.append(
            Caution(
                "Not checked: whether these are the test rows of the training run, because the bundle has no digest "
                "of them."
            )
        )
    blocks.append(_fields_table(run.prepared))
    return Section("Data", blocks)


def _parts_table(prepared: Prepared, schema: Schema) -> Table:
    """Size, mean labels, groups and times of the training, validation and test rows."""
    rows = []
    for name in PARTS:
        part = getattr(prepared, name)
        cells = {"rows of": PART_WORDS[name], "rows": count(len(part.y))}

        y = np.asarray(part.y, dtype=np.float64)
        for label, mean in zip(schema.labels, y.mean(0), strict=True):
            measure = "positive rate" if label.task == "binary" else "mean"
            cells[f"{measure} of {label.name}"] = number(float(mean))

        grouping = schema.grouping
        if grouping is not None:
            distinct = ""
            if grouping in part.frame.columns:
                distinct = count(part.frame.get_column(grouping).n_unique())
            cells[f"distinct {grouping}"] = distinct

        if schema.time is not None:
            first, last = _first_and_last_time(part.frame, schema)
            cells[f"first {schema.time}"] = first
            cells[f"last {schema.time}"] = last
        rows.append(cells)
    return Table(
        list(rows[0]), [list(cells.values()) for cells in rows], note=_dropped_note(prepared)
    )


def _dropped_note(prepared: Prepared) -> str:
    """How many rows were dropped and how many negatives sampled."""
    by_label = prepared.counts.get("dropped_by_label", 0)
    by_split = prepared.counts.get("dropped_by_split", 0)
    drawn = prepared.counts.get("negatives_drawn", 0)
    without_value = prepared.counts.get("negatives_without_value", 0)
    sentences = []
    if not by_label and not by_split:
        sentences.append("No row was dropped.")
    if by_label:
        sentences.append(f"The label's rule dropped {counted(by_label, 'row')}.")
    if by_split:
        sentences.append(f"The split dropped {counted(by_split, 'row')}.")
    if drawn:
        sentences.append(f"Sampling added {counted(drawn, 'negative')}.")
    if without_value:
        sentences.append(
            f"In {count(without_value)} of them the item has no value before the time of the row."
        )
    return " ".join(sentences)


def _fields_table(prepared: Prepared) -> Table:
    """Kind, role and vocabulary of each field, and how many test values are not in it."""
    encoder = prepared.encoder
    unseen_shares = prepared.unseen.get("test", {})
    rows = []
    for field, fitted in encoder.fitted_fields:
        title = field.name
        if field.column != field.name:
            title = f"{field.name} (column {field.column})"
        known_values = ""
        if isinstance(fitted, Vocabulary):
            known_values = count(len(fitted.values))
        unseen = ""
        if field.name in unseen_shares:
            unseen = percent(unseen_shares[field.name])
        rows.append([title, field.kind, field.role, known_values, unseen])
    note = (
        "Values known: values of the training rows with their own embedding. Unseen: the share of the test rows' "
        "values that use the field's embedding for unknown values."
    )
    columns = ["field", "kind", "role", "values known", "unseen on test"]
    return Table(columns, rows, title="Fields", words=(1, 2), note=note)


def _first_and_last_time(frame: pl.DataFrame, schema: Schema) -> tuple[str, str]:
    """The earliest and the latest cell of the column of times; empty if there is none."""
    column = schema.time
    if column is None or column not in frame.columns:
        return "", ""
    present = frame.drop_nulls(column)
    if present.schema[column] == pl.String:
        present = present.filter(~is_mark(present.get_column(column), schema.missing))
    try:
        times = times_of(present, schema)
    except DataError:  # a random split does not need valid times
        return "", ""
    if times is None or not len(times):
        return "", ""
    cells = present.get_column(column)
    return str(cells[int(times.argmin())]), str(cells[int(times.argmax())])


UNRECORDED = "not recorded: trained by an older version"


def recipe_section(run: ReportedRun) -> Section:
    """A section on the recipe, the software versions and the machine."""
    settings = run.recipe.to_dict()
    always_shown = ("machine", "commit")
    facts = [
        [name, value or UNRECORDED]
        for name, value in _facts(run).items()
        if value or name in always_shown
    ]
    blocks: list[Block] = [
        Table(["fact", "value"], facts, words=(1,)),
        Table(
            ["setting", "value"],
            _settings_rows(run, settings),
            title="Settings of model, training and split",
            folded=True,
            words=(1,),
        ),
        Code("The whole recipe, as TOML", tomli_w.dumps(settings)),
    ]
    return Section("Recipe and machine", blocks)


def _facts(run: ReportedRun) -> dict[str, str]:
    """What is known about a training, by name; an unknown fact is empty."""
    record = run.record
    environment = run.origin.get("environment", {})

    versions = dict(run.origin.get("versions", {}))
    for name in ("fieldwise", "torch"):
        if name in environment:
            versions[name] = environment[name]

    parameters = ""
    if "parameters" in record:
        parameters = count(record["parameters"])
    seconds = ""
    if "seconds" in record:
        seconds = f"{record['seconds']:.1f}"
    seconds_per_epoch = ""
    if record.get("seconds_per_epoch") is not None:
        seconds_per_epoch = f"{record['seconds_per_epoch']:.1f}"

    return {
        "recipe": run.recipe.name,
        "benchmark": run.recipe.benchmark or "",
        "protocol": run.recipe.protocol or "",
        "run": str(run.folder),
        "model": model_name(run.recipe.model),
        "mean with LR": mean_sentence(record.get("network_share", 1.0)) or "",
        "parameters": parameters,
        "seconds in total": seconds,
        "seconds per epoch (median)": seconds_per_epoch,
        "made": str(run.origin.get("created", environment.get("date", ""))),
        **{name: str(environment.get(name, "")) for name in ("machine", "threads", "commit")},
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _settings_rows(run: ReportedRun, settings: dict[str, Any]) -> list[list[str]]:
    """The settings of model, training and split, and the seeds, a row each."""
    rows: list[list[str]] = []
    for part in ("model", "training", "split"):
        for name, value in flat(settings.get(part, {}), f"{part}.").items():
            if value != {}:
                rows.append([name, str(value)])
    rows.append(["seed", str(run.recipe.seed)])
    rows.append(["data_seed", str(run.recipe.rows_seed)])
    return rows
