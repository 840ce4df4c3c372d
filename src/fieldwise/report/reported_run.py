"""A run of a report: a bundle or a stored run as it is loaded, and with the scores of its rows, prepared again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import MANIFEST, Bundle, bundle_origin
from fieldwise.data.prepare.prepared import Prepared, group_codes
from fieldwise.errors import DataError
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import LabelScores, RunRecord, read_record
from fieldwise.runs.row_digests import scored_rows_digest
from fieldwise.runs.rows_of_run import recipe_of, rows_of_run
from fieldwise.schema import Label
from fieldwise.storage.scratch import NO_LIMIT

REMEDY = "run the report with the data that it was trained on"


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedRun:
    """A bundle, or a run stored by `compare`, which has only scores of its test rows.

    Args:
        record: facts and figures of the run.
        history: its evaluations.
        origin: the environment and the versions that it was made with.
        bundle: None of a stored run.
        stored: None of a bundle.
    """

    folder: Path
    recipe: Recipe
    record: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    origin: Mapping[str, Any]
    bundle: Bundle | None = None
    stored: RunRecord | None = None


def load_run(folder: Path, device: str = "cpu") -> LoadedRun:
    """Load a bundle or a stored run, without its rows."""
    stored = None
    if not (folder / MANIFEST).exists():
        stored = read_record(folder)
    if stored is not None:
        record = stored.about
        return LoadedRun(
            folder=folder,
            recipe=_stored_recipe(record, folder),
            record=record,
            history=record.get("history", ()),
            origin={"environment": record.get("environment", {})},
            stored=stored,
        )
    # It says so if the folder holds no bundle either.
    bundle = Bundle.load(folder, device=device)
    about = bundle.about
    return LoadedRun(
        folder=folder,
        recipe=recipe_of(bundle, folder, "a report needs a bundle of `fieldwise train`"),
        record=about.run_facts,
        history=about.history or (),
        origin={**bundle_origin(folder), "environment": about.environment or {}},
        bundle=bundle,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportedRun:
    """A run with its rows, prepared again, and their scores.

    Args:
        name: its name in the report.
        folder, recipe, record, history, origin, bundle: as of `LoadedRun`.
        prepared: the rows.
        test: the test rows' scores by label, with the bundle's calibration.
        raw: these without calibration.
        valid: the validation rows' scores without calibration; empty of a stored run, and after a
            second training.
        checked: whether the test rows are verified to be those of the run.
    """

    name: str
    folder: Path
    recipe: Recipe
    record: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    origin: Mapping[str, Any]
    bundle: Bundle | None
    prepared: Prepared
    test: Mapping[str, LabelScores]
    raw: Mapping[str, LabelScores]
    valid: Mapping[str, LabelScores]
    checked: bool

    @property
    def frame(self) -> pl.DataFrame:
        """The test rows before encoding."""
        return self.prepared.test.frame

    @cached_property
    def group(self) -> np.ndarray | None:
        """Groups of the test rows."""
        return group_codes(self.frame, self.recipe.schema, budget=NO_LIMIT)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels with scores, the main one first."""
        return tuple(label for label in self.recipe.schema.labels if label.name in self.test)


def score_run(run: LoadedRun, prepared: Prepared, *, name: str) -> ReportedRun:
    """Check that rows are those of a run, and score them."""
    is_checked = True
    valid: Mapping[str, LabelScores] = {}
    if run.bundle is not None:
        _, is_checked = rows_of_run(run.bundle, run.recipe, prepared, "test", REMEDY)
        raw = _scored(run.bundle, prepared, "test")
        test = _calibrated(run.bundle, raw)
        if "refit" not in run.record:
            rows_of_run(run.bundle, run.recipe, prepared, "valid", REMEDY)
            valid = _scored(run.bundle, prepared, "valid")
    else:
        assert run.stored is not None, "a run is a bundle or a stored run"
        raw = _stored_scores(run, run.stored, prepared)
        test = raw
    return ReportedRun(
        name=name,
        folder=run.folder,
        recipe=run.recipe,
        record=run.record,
        history=run.history,
        origin=run.origin,
        bundle=run.bundle,
        prepared=prepared,
        test=test,
        raw=raw,
        valid=valid,
        checked=is_checked,
    )


def _calibrated(bundle: Bundle, raw: Mapping[str, LabelScores]) -> dict[str, LabelScores]:
    """Scores by label, of those labels that the bundle calibrates with its calibration."""
    by_label = dict(raw)
    for name, rows in raw.items():
        if name in bundle.calibration:
            by_label[name] = rows._replace(score=bundle.calibration[name].logit(rows.score))
    return by_label


def _stored_scores(run: LoadedRun, stored: RunRecord, prepared: Prepared) -> dict[str, LabelScores]:
    """The scores of the main label that a stored run has; a DataError if its test rows were others."""
    y, score, _ = stored.test_rows
    rows = prepared.test
    is_same_digest = stored["test_digest"] == scored_rows_digest(rows.frame, run.recipe)
    if not is_same_digest or not np.array_equal(rows.main, y):
        raise DataError(
            f"the test rows must be those of the run {run.folder}, but the data of {run.recipe.name} have "
            f"changed since: {REMEDY}"
        )
    label = run.recipe.schema.label
    weight = label.log_weights(y, rows.table.weight)
    return {label.name: LabelScores(y, score, weight)}


def _stored_recipe(about: Mapping[str, Any], folder: Path) -> Recipe:
    """The recipe in the record of a stored run."""
    try:
        settings = {"defaults": "fixed", **about["settings"]}
        return Recipe.from_dict(settings, str(about["recipe"]))
    except (LookupError, TypeError) as e:
        raise DataError(
            f"the run {folder} is damaged: its record has no {e}; remove the folder and run again"
        ) from e


def _scored(bundle: Bundle, prepared: Prepared, part: str) -> dict[str, LabelScores]:
    """The targets and uncalibrated scores of each label on a part's rows."""
    rows = getattr(prepared, part)
    # The encoders differ after a second training, or where another version of fieldwise trained the
    # bundle.
    score = bundle.part_scores(rows, prepared.encoder)
    y = np.asarray(rows.y, dtype=np.float64)

    by_label = {}
    for k, label in enumerate(bundle.schema.labels):
        weight = label.log_weights(y[:, k], rows.table.weight)
        by_label[label.name] = LabelScores(y[:, k], score[:, k], weight)
    return by_label
