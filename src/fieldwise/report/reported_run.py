"""A run of a report: a bundle or a stored run, with the scores of its rows, prepared again."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import MANIFEST, Bundle, bundle_origin
from fieldwise.data.prepare.prepared import Prepared, group_codes
from fieldwise.errors import DataError
from fieldwise.report.page import Scored
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.records import RunRecord, read_record
from fieldwise.runs.row_digests import scored_rows_digest
from fieldwise.runs.rows_of_run import recipe_of, rows_of_run
from fieldwise.schema import Label
from fieldwise.storage.scratch import NO_LIMIT

REMEDY = "run the report with the data that it was trained on"


class ReportedRun:
    """A bundle, or a run stored by `compare`, which has only scores of its test rows.

    `score` sets, for its rows that were prepared again, `test` (scores by label, with the bundle's
    calibration), `raw` (without), `valid` (the same of the validation rows; empty without a bundle)
    and `checked` (whether the test rows are verified to be those of the run).
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Open a bundle or a stored run, without reading its rows."""
        self.folder = folder
        self.bundle: Bundle | None = None
        self.stored: RunRecord | None = None
        self.record: Mapping[str, Any]
        self.history: Sequence[Mapping[str, Any]]
        if not (folder / MANIFEST).exists():
            self.stored = read_record(folder)
        if self.stored is not None:
            self.record = self.stored.about
            self.recipe = _stored_recipe(self.record, folder)
            self.history = self.record.get("history", ())
            self.origin = {"environment": self.record.get("environment", {})}
        else:
            # It says so if the folder holds no bundle either.
            self.bundle = Bundle.load(folder, device=device)
            self.recipe = recipe_of(
                self.bundle, folder, "a report needs a bundle of `fieldwise train`"
            )
            about = self.bundle.about
            self.record = about.run_facts
            self.history = about.history or ()
            self.origin = {**bundle_origin(folder), "environment": about.environment or {}}
        self.name = self.recipe.title

    def score(self, prepared: Prepared) -> None:
        """Check that rows belong to the run, and score them."""
        self.prepared = prepared
        self.checked = True
        self.valid: dict[str, Scored] = {}
        if self.bundle is not None:
            self._score_by_bundle(self.bundle)
        else:
            assert self.stored is not None, "a run is a bundle or a stored run"
            self._take_stored_scores(self.stored)

    def _score_by_bundle(self, bundle: Bundle) -> None:
        _, self.checked = rows_of_run(bundle, self.recipe, self.prepared, "test", REMEDY)
        self.raw = _scored(bundle, self.prepared, "test")
        if "refit" not in self.record:
            rows_of_run(bundle, self.recipe, self.prepared, "valid", REMEDY)
            self.valid = _scored(bundle, self.prepared, "valid")

        self.test = dict(self.raw)
        for name, rows in self.raw.items():
            if name in bundle.calibration:
                self.test[name] = rows._replace(score=bundle.calibration[name].logit(rows.score))

    def _take_stored_scores(self, stored: RunRecord) -> None:
        y, score, _ = stored.test_rows
        is_same_digest = stored["test_digest"] == scored_rows_digest(self.frame, self.recipe)
        if not is_same_digest or not np.array_equal(self.prepared.test.main, y):
            raise DataError(
                f"the test rows must be those of the run {self.folder}, but the data of {self.recipe.name} have "
                f"changed since: {REMEDY}"
            )
        label = self.recipe.schema.label
        weight = label.log_weights(y, self.prepared.test.table.weight)
        self.raw = {label.name: Scored(y, score, weight)}
        self.test = self.raw

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


def _stored_recipe(about: Mapping[str, Any], folder: Path) -> Recipe:
    """The recipe in the record of a stored run."""
    try:
        settings = {"defaults": "fixed", **about["settings"]}
        return Recipe.from_dict(settings, str(about["recipe"]))
    except (LookupError, TypeError) as e:
        raise DataError(
            f"the run {folder} is damaged: its record has no {e}; remove the folder and run again"
        ) from e


def _scored(bundle: Bundle, prepared: Prepared, part: str) -> dict[str, Scored]:
    """The targets and uncalibrated scores of each label on a part's rows."""
    rows = getattr(prepared, part)
    # The encoders differ after a second training, or where another version of fieldwise trained the
    # bundle.
    score = bundle.part_scores(rows, prepared.encoder)
    y = np.asarray(rows.y, dtype=np.float64)

    by_label = {}
    for k, label in enumerate(bundle.schema.labels):
        weight = label.log_weights(y[:, k], rows.table.weight)
        by_label[label.name] = Scored(y[:, k], score[:, k], weight)
    return by_label
