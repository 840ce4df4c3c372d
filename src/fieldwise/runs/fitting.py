"""Training a recipe's model on its prepared rows."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.warm_start import WarmStart
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.runs.defaults import Chosen
from fieldwise.runs.fit_parts import FitInputs, Fitted, Refit, fit_again, fit_parts
from fieldwise.runs.fit_settings import FitSettings
from fieldwise.runs.identity import same_rows
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.training.callbacks import Callback
from fieldwise.training.result import FitResult
from fieldwise.training.unfinished import Unfinished

__all__ = ["FittedRecipe", "fit_recipe", "refit_recipe", "settled"]


@dataclass(frozen=True, kw_only=True)
class FittedRecipe:
    """A trained recipe; the test rows were not used.

    Args:
        recipe: the recipe with complete settings.
        encoder, network, result, warm_start, chosen, refit: see `Fitted`.
    """

    recipe: Recipe
    encoder: Encoder
    network: nn.Module
    result: FitResult
    warm_start: WarmStart | None = None
    chosen: tuple[Chosen, ...] = ()
    refit: Refit | None = None


def settled(recipe: Recipe, prepared: Prepared) -> tuple[Recipe, tuple[Chosen, ...]]:
    """The recipe with complete settings, and those of them that were chosen from the training rows."""
    found, chosen = _settings(recipe).settled(prepared.train)
    return _with(recipe, found), chosen


def fit_recipe(
    recipe: Recipe, prepared: Prepared, callbacks: Sequence[Callback] = (), unfinished: Unfinished | None = None
) -> FittedRecipe:
    """Train a recipe's model on its training rows with `fit_parts`.

    Errors:
        BundleError: the recipe's warm_start is not a valid bundle. ConfigError, TrainingError: see `fit_parts`.
    """
    start = _start(recipe)
    fitted = fit_parts(_settings(recipe, start), _inputs(prepared, callbacks, unfinished))
    started = fitted.warm_start
    if start is not None and started is not None:
        test, valid = (_kept(start, name, part, recipe.schema) for name, part in _held_out(prepared))
        started = dataclasses.replace(started, same_test_rows=test, same_valid_rows=valid)
    return FittedRecipe(
        recipe=_with(recipe, fitted.settings),
        encoder=fitted.encoder,
        network=fitted.network,
        result=fitted.result,
        warm_start=started,
        chosen=fitted.chosen,
    )


def refit_recipe(
    fitted: FittedRecipe, prepared: Prepared, callbacks: Sequence[Callback] = (), unfinished: Unfinished | None = None
) -> FittedRecipe:
    """Train a trained recipe's model again, on its training and validation rows together, with `fit_again`."""
    recipe = fitted.recipe
    first = Fitted(
        settings=_settings(recipe, _start(recipe)),
        encoder=fitted.encoder,
        network=fitted.network,
        result=fitted.result,
    )
    again = fit_again(first, _inputs(prepared, callbacks, unfinished))
    return dataclasses.replace(
        fitted, encoder=again.encoder, network=again.network, result=again.result, refit=again.refit
    )


def _start(recipe: Recipe) -> Bundle | None:
    return None if recipe.warm_start is None else Bundle.load(Path(recipe.warm_start))


def _inputs(prepared: Prepared, callbacks: Sequence[Callback] = (), unfinished: Unfinished | None = None) -> FitInputs:
    return FitInputs(
        encoder=prepared.encoder,
        train=prepared.train,
        valid=prepared.valid,
        callbacks=callbacks,
        unfinished=unfinished,
    )


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
    if name == "valid" and "refit" in former:
        return False
    if not same_rows(former.get(f"{name}_digest"), part.frame, schema):
        return False
    return "warm_start" not in former or former["warm_start"].get(f"same_{name}_rows") is True
