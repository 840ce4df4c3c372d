"""What a bundle says about its training: plain values in its manifest, for people, reports and checks."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fieldwise.config import LOCAL, parse, to_plain
from fieldwise.errors import BundleError

__all__ = ["About", "CalibrationFacts", "RecipeFacts"]


@dataclass(frozen=True, kw_only=True)
class RecipeFacts:
    """The recipe that a bundle was trained by: its name, and its complete settings as plain values."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CalibrationFacts:
    """How a bundle's calibration was fitted.

    Args:
        method: `platt` or `isotonic`.
        fitted_on: what the rows are called that it was fitted on.
        rows: the number of those rows.
        figures: metrics `before` and `after`, by what the measured rows are called and by label.
    """

    method: str
    fitted_on: str
    rows: int
    figures: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class About:
    """What a bundle says about its training; None is a fact that it does not keep.

    Args:
        recipe: the recipe, if a recipe was trained.
        run: what came out of a recipe's training (`TrainingResult.facts`), and the digests of its
            validation and test rows.
        history: the evaluations of a recipe's training.
        environment: machine and versions of a recipe's training.
        estimator: the parameters of a `Recommender`, if one was fitted.
        defaults: settings that the estimator chose from the data.
        result: the history of the estimator's training.
        counts: numbers of the estimator's rows.
        classes: the classes of each label.
        train_rows: fingerprints of the training rows (`fieldwise.bundle.trained_rows`).
        refit: the estimator's second training.
        warm_start: the report of the estimator's warm start.
        calibration: how the calibration was fitted.
        further: other plain values, by key: a user's, or those of another version.
    """

    recipe: RecipeFacts | None = None
    run: Mapping[str, Any] | None = None
    history: tuple[Mapping[str, Any], ...] | None = None
    environment: Mapping[str, Any] | None = None
    estimator: Mapping[str, Any] | None = None
    defaults: tuple[Mapping[str, Any], ...] | None = None
    result: Mapping[str, Any] | None = None
    counts: Mapping[str, int] | None = None
    classes: tuple[Mapping[str, Any], ...] | None = None
    train_rows: Mapping[str, Any] | None = None
    refit: Mapping[str, Any] | None = None
    warm_start: Mapping[str, Any] | None = None
    calibration: CalibrationFacts | None = None
    further: Mapping[str, Any] = field(default_factory=dict, metadata=LOCAL)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], where: str) -> "About":
        """The facts of a manifest; a BundleError that begins with `where` if one has another form."""
        names = {f.name for f in dataclasses.fields(cls)}
        known = {name: value for name, value in plain.items() if name in names}
        further = {name: value for name, value in plain.items() if name not in names}
        return parse(cls, {**known, "further": further}, where, BundleError)

    def to_plain(self) -> dict[str, Any]:
        """The inverse of `from_plain`."""
        return {**to_plain(self), **to_plain(self.further)}

    @property
    def recipe_settings(self) -> Mapping[str, Any]:
        """The settings of the recipe; empty without one."""
        return {} if self.recipe is None else self.recipe.settings

    @property
    def training_settings(self) -> Mapping[str, Any]:
        """The settings of the training as plain values; empty if none are kept."""
        training: Mapping[str, Any] = (self.estimator or self.recipe_settings).get("training", {})
        return training

    @property
    def run_facts(self) -> Mapping[str, Any]:
        """`run`; empty without one."""
        return {} if self.run is None else self.run

    @property
    def is_refit(self) -> bool:
        """Whether a recipe's network was trained again on its validation rows too."""
        return "refit" in self.run_facts

    @property
    def valid_metrics(self) -> Mapping[str, float]:
        """Metrics of the validation rows, at the best evaluation; empty if none are kept."""
        if self.result is not None:
            metrics = self.result.get("best", {}).get("metrics", {})
        else:
            metrics = self.run_facts.get("valid", {})
        return dict(metrics)

    @property
    def test_metrics(self) -> Mapping[str, float]:
        """Metrics of the test rows; empty if none are kept."""
        return dict(self.run_facts.get("test", {}))

    def row_digest(self, part: str) -> str | None:
        """The digest of the `valid` or `test` rows of a recipe's training."""
        return self.run_facts.get(f"{part}_digest")

    def held_out(self, part: str, digest: str) -> bool:
        """Whether a recipe's training, and those that it started from, held out the rows of this digest."""
        was_trained_on = part == "valid" and self.is_refit
        if was_trained_on or self.row_digest(part) != digest:
            return False
        if "warm_start" not in self.run_facts:
            return True
        return self.run_facts["warm_start"].get(f"same_{part}_rows") is True
