"""The runs of a report: a bundle or a stored run with its rows prepared again, and the facts about it."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli_w

from fieldwise.bundle.bundle import MANIFEST, Bundle, bundle_origin
from fieldwise.config import flat
from fieldwise.data.encode.fitted_fields import Vocabulary
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.prepared import Prepared, encoded_by, group_codes
from fieldwise.data.prepare.settings import PARTS
from fieldwise.display import Table, number
from fieldwise.errors import DataError
from fieldwise.models.build import model_name
from fieldwise.report.sections import Block, Caution, Code, Scored, Section, count, percent
from fieldwise.runs.pipeline import recipe_of, rows_of_run, scored_rows_digest
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import read_record
from fieldwise.schema import Schema
from fieldwise.schema.label import Label

INSTEAD = "run the report with the data that it was trained on"


class ReportedRun:
    """A bundle, or a run stored by `compare`, which has only scores of its test rows.

    `score` sets, for its rows that were prepared again, `test` (scores by label, with the bundle's calibration), `raw`
    (without), `valid` (the same of the validation rows; empty without a bundle) and `checked` (whether the test rows
    are verified to be those of the run).
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Open a bundle or a stored run, without reading its rows."""
        self.folder, self.bundle = folder, None
        self.stored = None if (folder / MANIFEST).exists() else read_record(folder)
        if self.stored is None:
            self.bundle = Bundle.load(folder, device=device)
            self.recipe = recipe_of(self.bundle, folder, "a report needs a bundle of `fieldwise train`")
            about: Mapping[str, Any] = self.bundle.about
            self.record: Mapping[str, Any] = about.get("run", {})
            self.origin = bundle_origin(folder)
        else:
            about = self.record = self.stored.about
            self.origin = {}
            try:
                self.recipe = Recipe.from_dict({"defaults": "fixed", **about["settings"]}, str(about["recipe"]))
            except (LookupError, TypeError) as e:
                raise DataError(
                    f"the run {folder} is damaged: its record has no {e}; remove the folder and run again"
                ) from e
        self.origin["environment"] = about.get("environment", {})
        self.history = about.get("history", ())
        self.name = Path(self.recipe.name).stem if self.recipe.name.endswith(".toml") else self.recipe.name

    def score(self, prepared: Prepared) -> None:
        """Check that rows belong to the run, and score them."""
        recipe, bundle = self.recipe, self.bundle
        self.prepared, self.checked = prepared, True
        self.valid: dict[str, Scored] = {}
        if bundle is not None:
            _, self.checked = rows_of_run(bundle, recipe, prepared, "test", INSTEAD)
            self.raw = _scored(bundle, prepared, "test")
            if "refit" not in self.record:
                rows_of_run(bundle, recipe, prepared, "valid", INSTEAD)
                self.valid = _scored(bundle, prepared, "valid")
            maps = bundle.calibration
            self.test = {n: Scored(s.y, maps[n].logit(s.score)) if n in maps else s for n, s in self.raw.items()}
            return
        assert self.stored is not None, "a run is a bundle or a stored run"
        y, score = self.stored.test_rows
        same = self.stored["test_digest"] == scored_rows_digest(self.frame, recipe)
        if not same or not np.array_equal(prepared.test.main, y):
            raise DataError(
                f"the test rows must be those of the run {self.folder}, but the data of {recipe.name} have changed "
                f"since: {INSTEAD}"
            )
        self.test = self.raw = {recipe.schema.label.name: Scored(y, score)}

    @property
    def frame(self) -> pl.DataFrame:
        """The test rows before encoding."""
        return self.prepared.test.frame

    @cached_property
    def group(self) -> np.ndarray | None:
        """Groups of the test rows."""
        return group_codes(self.frame, self.recipe.schema)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels with scores, the main one first."""
        return tuple(label for label in self.recipe.schema.labels if label.name in self.test)


def _scored(bundle: Bundle, prepared: Prepared, part: str) -> dict[str, Scored]:
    rows = getattr(prepared, part)
    # The encoders differ after a second training, or where another version of fieldwise trained the bundle.
    table = encoded_by(bundle.encoder, rows, prepared.encoder)
    score = bundle.score_table(table).reshape(len(table), -1)
    y = np.asarray(rows.y, dtype=np.float64)
    return {label.name: Scored(y[:, k], label.predicted(score[:, k])) for k, label in enumerate(bundle.schema.labels)}


WORDS = {"train": "training", "valid": "validation", "test": "test"}


def data_section(run: ReportedRun) -> Section:
    """A section on split sizes, times, positive rates and fields."""
    schema, prepared = run.recipe.schema, run.prepared
    labels = schema.labels
    rows = []
    for name in PARTS:
        part = getattr(prepared, name)
        y = np.asarray(part.y, dtype=np.float64)
        cells = {"rows of": WORDS[name], "rows": count(len(part.y))}
        for label, mean in zip(labels, y.mean(0), strict=True):
            cells[f"{'positive rate' if label.task == 'binary' else 'mean'} of {label.name}"] = number(float(mean))
        if schema.grouping is not None:
            there = schema.grouping in part.frame.columns
            own = count(part.frame.get_column(schema.grouping).n_unique()) if there else ""
            cells[f"distinct {schema.grouping}"] = own
        if schema.time is not None:
            cells[f"first {schema.time}"], cells[f"last {schema.time}"] = _times(part.frame, schema)
        rows.append(cells)
    dropped, drawn = (prepared.counts.get(name, 0) for name in ("dropped_by_label", "negatives_drawn"))
    note = f"{count(dropped)} rows were dropped by the label's rule." if dropped else "No row was dropped."
    note += f" {count(drawn)} negatives were sampled." if drawn else ""
    blocks: list[Block] = [Table(list(rows[0]), [list(cells.values()) for cells in rows], note=note)]
    if not run.checked:
        why = "because the bundle has no digest of them"
        blocks.append(Caution(f"Not checked: whether these are the test rows of the training run, {why}."))
    encoder, unseen, fields = prepared.encoder, prepared.unseen.get("test", {}), []
    for field, fitted in zip(encoder.fields, encoder.fitted, strict=True):
        size = count(len(fitted.values)) if isinstance(fitted, Vocabulary) else ""
        share = percent(unseen[field.name]) if field.name in unseen else ""
        shown = field.name if field.column == field.name else f"{field.name} (column {field.column})"
        fields.append([shown, field.kind, field.role, size, share])
    note = (
        "Values known: values of the training rows with their own embedding. Unseen: the share of the test rows' "
        "values that use the field's embedding for unknown values."
    )
    columns = ["field", "kind", "role", "values known", "unseen on test"]
    return Section("Data", [*blocks, Table(columns, fields, title="Fields", words=(1, 2), note=note)])


def _times(frame: pl.DataFrame, schema: Schema) -> list[str]:
    column = schema.time
    if column is None or column not in frame.columns or frame.get_column(column).null_count() == frame.height:
        return ["", ""]
    present = frame.drop_nulls(column)
    try:
        times = order_values(present, column, "time", schema.time_format)
    except DataError:  # a random split does not need valid times
        return ["", ""]
    cells = present.get_column(column)
    return [str(cells[int(times.argmin())]), str(cells[int(times.argmax())])]


def recipe_section(run: ReportedRun) -> Section:
    """A section on the recipe, the software versions and the machine."""
    settings = run.recipe.to_dict()
    rows: list[list[str]] = []
    for part in ("model", "training", "split"):
        rows += [[name, str(value)] for name, value in flat(settings.get(part, {}), f"{part}.").items() if value != {}]
    rows += [["seed", str(run.recipe.seed)], ["data_seed", str(run.recipe.rows_seed)]]
    title = "Settings of model, training and split"
    record, environment = run.record, run.origin.get("environment", {})
    versions = run.origin.get("versions", {}) | {k: environment[k] for k in ("fieldwise", "torch") if k in environment}
    seconds = record.get("seconds_per_epoch")
    facts = {
        "recipe": run.recipe.name,
        "benchmark": run.recipe.benchmark or "",
        "protocol": run.recipe.protocol or "",
        "run": str(run.folder),
        "model": model_name(run.recipe.model),
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
    known = [[k, v or unknown] for k, v in facts.items() if v or k in ("machine", "commit")]
    blocks: list[Block] = [
        Table(["fact", "value"], known, words=(1,)),
        Table(["setting", "value"], rows, title=title, folded=True, words=(1,)),
        Code("The whole recipe, as TOML", tomli_w.dumps(settings)),
    ]
    return Section("Recipe and machine", blocks)
