"""From prepared rows to a trained network: the one way, which recipes and `Recommender` go."""

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
    """What decides a training run besides its rows.

    Args:
        schema: of the rows; its labels are learned.
        model: settings of the model, or the class of one of one's own.
        training: of optimizer, penalty and stopping.
        defaults: `data`: settings of model and training that are not given follow from the training rows; `fixed`:
            they are what the classes say.
        seed: of initial weights, row order and dropout.
        start: a bundle whose network the new one starts from, as far as parts fit by name.
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
        """The same with every setting as a number, and those of them that follow from the training rows.

        Settings with `of_schema` take from the schema which fields name users and items.
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
        settings: every one as a number.
        network: with the weights that were best on the validation rows.
        chosen: the settings that followed from the data.
        warm_start: what the network took from `settings.start`.
    """

    settings: FitSettings
    network: nn.Module
    result: FitResult
    chosen: tuple[Chosen, ...] = ()
    warm_start: WarmStart | None = None


def fit_parts(
    settings: FitSettings, encoder: Encoder, train: Part, valid: Part, progress: Progress | None = None
) -> Fitted:
    """Train on the training rows and restore the weights that were best on the validation rows.

    Ctrl-C ends training early, as in `fieldwise.training.fit.fit`. PyTorch's idle threads sleep from now on
    (`fieldwise.training.waiting`).

    Args:
        settings: what is not given of them follows from the training rows, where its `defaults` say so.
        encoder: fitted on the training rows.
        train: encoded, with targets.
        valid: encoded likewise.
        progress: hears of every step and evaluation.

    Errors:
        ConfigError: settings that do not fit the model or the task; nothing of the bundle to start from fits.
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
    """A trained recipe; the test rows were not looked at.

    Args:
        recipe: with every setting as a number.
        chosen: those of them that followed from the data.
    """

    recipe: Recipe
    network: nn.Module
    result: FitResult
    warm_start: WarmStart | None = None
    chosen: tuple[Chosen, ...] = ()


def settled(recipe: Recipe, prepared: Prepared) -> tuple[Recipe, tuple[Chosen, ...]]:
    """The recipe with every setting of model and training as a number, and those that follow from the training rows."""
    found, chosen = _settings(recipe).settled(prepared.train)
    return _with(recipe, found), chosen


def fit_recipe(recipe: Recipe, prepared: Prepared, progress: Progress | None = None) -> FittedRecipe:
    """Train a recipe's model on its training rows, as `fit_parts` does.

    Errors:
        BundleError: the recipe's warm_start is no bundle that can be read. ConfigError, TrainingError: see `fit_parts`.
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
    """Metrics of a logistic, or linear, regression by its default settings on a recipe's validation rows.

    What a model of fields and their interactions should surpass; the test rows are not looked at.
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
    """Whether the run of a bundle, and what that one started from, kept these rows aside."""
    former = bundle.about.get("run", {})
    if not same_rows(former.get(f"{name}_digest"), part.frame, schema):
        return False
    return "warm_start" not in former or former["warm_start"].get(f"same_{name}_rows") is True
