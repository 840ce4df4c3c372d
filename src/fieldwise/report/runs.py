"""Reading runs for a report: a bundle, or a run stored by `compare`, with its rows prepared again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.files import MANIFEST, bundle_origin
from fieldwise.data.prepare.all_rows import encoded_by
from fieldwise.data.prepare.prepared import Prepared, group_codes
from fieldwise.errors import DataError, FieldwiseError
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.identity import scored_rows_digest
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import Record, read_record
from fieldwise.runs.rows import recipe_of, rows_of_run
from fieldwise.schema.label import Label
from fieldwise.storage.cache import Cache

__all__ = ["Opened", "ReportedRun", "Scored", "open_run", "prepared_of", "rows_of"]

INSTEAD = "run the report with the data that it was trained on"


@dataclass(frozen=True, eq=False)
class Scored:
    """A label's targets and scores [N]: logits, or for a regression predictions within the label's range."""

    y: np.ndarray
    score: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """A run on disk."""

    folder: Path
    recipe: Recipe
    record: Mapping[str, Any]
    bundle: Bundle | None
    kept: Record | None


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportedRun:
    """A run with everything that a report shows.

    Args:
        name: its name in headings, unique in the report.
        folder: its folder.
        recipe: its recipe.
        record: the result of `Run.record`: parameters, epochs, seconds, counts.
        origin: when and with what it was made: `created`, `versions`, `environment`, as far as known.
        history: the evaluations during training, in order; empty if they were not recorded.
        bundle: its bundle; None for a run stored by `compare`, which only has scores of its test rows.
        prepared: its rows.
        test: scores on the test rows by label, with the bundle's calibration.
        raw: the same without calibration.
        valid: scores on the validation rows by label, without calibration; empty without a bundle.
        group: groups of the test rows.
        checked: whether the test rows are verified to be those of the run.
    """

    name: str
    folder: Path
    recipe: Recipe
    record: Mapping[str, Any]
    origin: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    bundle: Bundle | None
    prepared: Prepared
    test: Mapping[str, Scored]
    raw: Mapping[str, Scored]
    valid: Mapping[str, Scored]
    group: np.ndarray | None
    checked: bool

    @property
    def frame(self) -> pl.DataFrame:
        """The test rows before encoding."""
        return self.prepared.test.frame

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels with scores, the main one first."""
        return tuple(label for label in self.recipe.schema.labels if label.name in self.test)


def open_run(folder: Path, device: str = "cpu") -> Opened:
    """Open a bundle or a stored run, without reading its rows.

    Errors:
        BundleError: neither, a damaged bundle, or one without a recipe. DataError: a damaged stored run.
    """
    if not (folder / MANIFEST).exists() and (record := read_record(folder)) is not None:
        try:
            recipe = Recipe.from_dict({"defaults": "fixed", **record.about["settings"]}, str(record.about["recipe"]))
        except (LookupError, TypeError) as e:
            raise DataError(
                f"the run {folder} is damaged: its record has no {e}; remove the folder and run again"
            ) from e
        return Opened(folder=folder, recipe=recipe, record=record.about, bundle=None, kept=record)
    bundle = Bundle.load(folder, device=device)
    recipe = recipe_of(bundle, folder, "a report needs a bundle of `fieldwise train`")
    return Opened(folder=folder, recipe=recipe, record=bundle.about.get("run", {}), bundle=bundle, kept=None)


def prepared_of(opened: Opened, data_dir: Path, cache: Cache | None = None) -> Prepared:
    """The rows of a run, prepared again.

    Args:
        opened: the run.
        data_dir: the folder of public data sets.
        cache: cache of prepared data.

    Errors:
        ConfigError, DataError, SchemaError: the data are missing, or no longer fit the recipe.
    """
    try:
        return prepare_recipe(opened.recipe, data_dir, cache=cache)
    except FieldwiseError as e:
        raise type(e)(f"the rows of the run {opened.folder} cannot be prepared again: {e}") from None


def rows_of(opened: Opened, name: str, prepared: Prepared) -> ReportedRun:
    """Check that rows belong to a run, and score them.

    Args:
        opened: the run.
        name: its name in headings.
        prepared: the rows from `prepared_of`.

    Errors:
        DataError: the data have changed since, or have no test rows.
    """
    recipe, bundle, kept = opened.recipe, opened.bundle, opened.kept
    origin: dict[str, Any] = {"environment": opened.record.get("environment", {})}
    history = opened.record.get("history", ())
    valid: dict[str, Scored] = {}
    if bundle is not None:
        frame, checked = rows_of_run(bundle, recipe, prepared, "test", INSTEAD)
        raw = _scored(bundle, prepared, "test")
        if "refit" not in opened.record:
            rows_of_run(bundle, recipe, prepared, "valid", INSTEAD)
            valid = _scored(bundle, prepared, "valid")
        maps = bundle.calibration
        test = {n: Scored(s.y, maps[n].logit(s.score)) if n in maps else s for n, s in raw.items()}
        origin = {"environment": bundle.about.get("environment", {}), **bundle_origin(opened.folder)}
        history = bundle.about.get("history", ())
    else:
        assert kept is not None, "a run is a bundle or a stored run"
        frame, checked = prepared.test.frame, True
        y, score = kept.test_rows
        if kept.facts.test_digest != scored_rows_digest(frame, recipe) or not np.array_equal(prepared.test.main, y):
            raise DataError(
                f"the test rows must be those of the run {opened.folder}, but the data of {recipe.name} have changed "
                f"since: {INSTEAD}"
            )
        test = raw = {recipe.schema.label.name: Scored(y, score)}
    return ReportedRun(
        name=name,
        folder=opened.folder,
        recipe=recipe,
        record=opened.record,
        origin=origin,
        history=history,
        bundle=bundle,
        prepared=prepared,
        test=test,
        raw=raw,
        valid=valid,
        group=group_codes(frame, recipe.schema),
        checked=checked,
    )


def _scored(bundle: Bundle, prepared: Prepared, part: str) -> dict[str, Scored]:
    rows = getattr(prepared, part)
    # The encoders differ after a second training, or where another version of fieldwise trained the bundle.
    table = encoded_by(bundle.encoder, rows, prepared.encoder)
    score = bundle.score_table(table).reshape(len(table), -1)
    y = np.asarray(rows.y, dtype=np.float64)
    found = {}
    for k, label in enumerate(bundle.schema.labels):
        found[label.name] = Scored(y[:, k], label.predicted(score[:, k]))
    return found
