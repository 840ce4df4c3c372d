"""Training on prepared rows: the shared function of recipes and `Recommender`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.warm_start import WarmStart, warm_start
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.models import LR, ModelSettings
from fieldwise.models.build import build_network
from fieldwise.models.own import as_settings
from fieldwise.runs.defaults import Chosen, Facts, resolve, scaled_labels
from fieldwise.runs.identity import same_rows
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective
from fieldwise.training.progress import Progress
from fieldwise.training.result import FitResult
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.waiting import rest_while_waiting

__all__ = ["FitSettings", "Fitted", "FittedRecipe", "fit_parts", "fit_recipe", "lr_on_valid", "settled"]

LR_EPOCHS = 20


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings of a training run.

    Args:
        schema: schema of the rows, with the labels to learn.
        model: settings of the model, or the class of your own model.
        training: optimizer, penalty and stopping.
        defaults: `data`: settings of model and training that are not given are chosen from the training rows; `fixed`:
            they have the classes' defaults.
        seed: seed of initial weights, row order and dropout.
        start: a bundle for a warm start.
    """

    schema: Schema
    model: ModelSettings
    training: TrainingSettings
    defaults: Literal["data", "fixed"] = "data"
    seed: int = 0
    start: Bundle | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", as_settings(self.model))

    def settled(self, train: Part) -> tuple["FitSettings", tuple[Chosen, ...]]:
        """Complete settings, and those of them that were chosen from the training rows.

        Settings with `of_schema` take the fields of user and item ids from the schema.
        """
        model = self.model.of_schema(self.schema) if hasattr(self.model, "of_schema") else self.model
        if self.defaults == "fixed":
            return (self if model is self.model else dataclasses.replace(self, model=model)), ()
        facts = Facts.of(train.table, self.schema.labels)
        found = resolve(model, self.training, facts)
        before = {} if self.start is None else {one.name: one for one in self.start.schema.labels}
        schema, scales = scaled_labels(self.schema, facts, before)
        settings = dataclasses.replace(
            self, schema=schema, model=found.model, training=found.training, defaults="fixed"
        )
        return settings, (*found.chosen, *scales)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained network.

    Args:
        settings: complete settings.
        network: with the best weights on the validation rows.
        chosen: the settings chosen from the data.
        warm_start: the report of the warm start.
    """

    settings: FitSettings
    network: nn.Module
    result: FitResult
    chosen: tuple[Chosen, ...] = ()
    warm_start: WarmStart | None = None


def fit_parts(
    settings: FitSettings, encoder: Encoder, train: Part, valid: Part, progress: Progress | None = None
) -> Fitted:
    """Train on the training rows and restore the best weights on the validation rows.

    Ctrl-C ends training early, as in `fieldwise.training.fit.fit`. PyTorch's idle threads sleep from now on
    (`fieldwise.training.waiting`).

    Args:
        settings: settings of the run.
        encoder: fitted on the training rows.
        train: encoded training rows with targets.
        valid: encoded validation rows with targets.
        progress: notified of every step and evaluation.

    Errors:
        ConfigError: settings that do not fit the model or the task; a warm start without matching weights.
        TrainingError: the loss is not finite.
    """
    settings, chosen = settings.settled(train)
    labels = settings.schema.labels
    network = build_network(settings.model, encoder.layout, settings.seed, labels=len(labels))
    started = None if settings.start is None else warm_start(network, encoder, settings.start, labels=labels)
    rest_while_waiting()
    result = fit(
        network,
        train.table,
        valid.table,
        settings=settings.training,
        objective=Objective.of(*labels),
        seed=settings.seed,
        valid_group=valid.group,
        progress=progress,
    )
    return Fitted(settings=settings, network=network, result=result, chosen=chosen, warm_start=started)


@dataclass(frozen=True, kw_only=True)
class FittedRecipe:
    """A trained recipe; the test rows were not used.

    Args:
        recipe: the recipe with complete settings.
        chosen: the settings chosen from the data.
    """

    recipe: Recipe
    network: nn.Module
    result: FitResult
    warm_start: WarmStart | None = None
    chosen: tuple[Chosen, ...] = ()


def settled(recipe: Recipe, prepared: Prepared) -> tuple[Recipe, tuple[Chosen, ...]]:
    """The recipe with complete settings, and those of them that were chosen from the training rows."""
    found, chosen = _settings(recipe).settled(prepared.train)
    return _with(recipe, found), chosen


def fit_recipe(recipe: Recipe, prepared: Prepared, progress: Progress | None = None) -> FittedRecipe:
    """Train a recipe's model on its training rows with `fit_parts`.

    Errors:
        BundleError: the recipe's warm_start is not a valid bundle. ConfigError, TrainingError: see `fit_parts`.
    """
    start = None if recipe.warm_start is None else Bundle.load(Path(recipe.warm_start))
    fitted = fit_parts(_settings(recipe, start), prepared.encoder, prepared.train, prepared.valid, progress)
    started = fitted.warm_start
    if start is not None and started is not None:
        test, valid = (_kept(start, name, part, recipe.schema) for name, part in _held_out(prepared))
        started = dataclasses.replace(started, same_test_rows=test, same_valid_rows=valid)
    return FittedRecipe(
        recipe=_with(recipe, fitted.settings),
        network=fitted.network,
        result=fitted.result,
        warm_start=started,
        chosen=fitted.chosen,
    )


def lr_on_valid(recipe: Recipe, prepared: Prepared) -> Mapping[str, float]:
    """Validation metrics of logistic or linear regression with default settings, a baseline for a recipe.

    The test rows are not used.
    """
    plain = FitSettings(schema=recipe.schema, model=LR(), training=TrainingSettings(epochs=LR_EPOCHS), seed=recipe.seed)
    return fit_parts(plain, prepared.encoder, prepared.train, prepared.valid).result.best.metrics


def _settings(recipe: Recipe, start: Bundle | None = None) -> FitSettings:
    return FitSettings(
        schema=recipe.schema,
        model=recipe.model,
        training=recipe.training,
        defaults=recipe.defaults,
        seed=recipe.seed,
        start=start,
    )


def _with(recipe: Recipe, found: FitSettings) -> Recipe:
    if recipe.defaults == "fixed":
        return dataclasses.replace(recipe, model=found.model)
    return dataclasses.replace(
        recipe, schema=found.schema, model=found.model, training=found.training, defaults="fixed"
    )


def _held_out(prepared: Prepared) -> tuple[tuple[str, Part], ...]:
    return ("test", prepared.test), ("valid", prepared.valid)


def _kept(bundle: Bundle, name: str, part: Part, schema: Schema) -> bool:
    """Whether the run of a bundle, and those that it started from, held out these rows."""
    former = bundle.about.get("run", {})
    if not same_rows(former.get(f"{name}_digest"), part.frame, schema):
        return False
    return "warm_start" not in former or former["warm_start"].get(f"same_{name}_rows") is True
