"""Training on prepared rows: the shared functions of recipes and `Recommender`."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.warm_start import WarmStart, warm_start
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.all_rows import encoded_together
from fieldwise.data.prepare.prepared import Part
from fieldwise.models import ModelSettings
from fieldwise.models.build import build_network
from fieldwise.models.own import as_settings
from fieldwise.runs.defaults import Chosen, Facts, resolve, scaled_labels
from fieldwise.schema import Schema
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective
from fieldwise.training.progress import OutOfTime, Progress
from fieldwise.training.result import FitResult
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.waiting import rest_while_waiting

__all__ = ["FitSettings", "Fitted", "Refit", "fit_again", "fit_parts", "fit_with_refit"]


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
class Refit:
    """The second training of a network, on training and validation rows together (`training.refit`).

    Args:
        rows: number of rows.
        epochs: passes over them: as many as the first training took to its best evaluation.
        seconds: its duration.
    """

    rows: int
    epochs: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained network.

    Args:
        settings: complete settings.
        encoder: the encoder of its rows.
        network: with the best weights on the validation rows; after a second training, with that one's.
        result: of the training that the validation rows stopped.
        chosen: the settings chosen from the data.
        warm_start: the report of the warm start.
        refit: the second training, if there was one.
    """

    settings: FitSettings
    encoder: Encoder
    network: nn.Module
    result: FitResult
    chosen: tuple[Chosen, ...] = ()
    warm_start: WarmStart | None = None
    refit: Refit | None = None


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
    network, started = _built(settings, encoder)
    result = fit(
        network,
        train.table,
        valid.table,
        settings=settings.training,
        objective=Objective.of(*settings.schema.labels),
        seed=settings.seed,
        valid_group=valid.group,
        progress=progress,
    )
    return Fitted(settings=settings, encoder=encoder, network=network, result=result, chosen=chosen, warm_start=started)


def fit_with_refit(
    settings: FitSettings, encoder: Encoder, train: Part, valid: Part, progress: Progress | None = None
) -> Fitted:
    """`fit_parts`, followed by `fit_again` if `training.refit` is set."""
    fitted = fit_parts(settings, encoder, train, valid, progress)
    return fit_again(fitted, train, valid, progress) if fitted.settings.training.refit else fitted


def fit_again(fitted: Fitted, train: Part, valid: Part, progress: Progress | None = None) -> Fitted:
    """Train a network of the same settings from the start, on the training and validation rows together.

    Its encoder is fitted on both. It takes as many epochs as the first training to its best evaluation, with the same
    learning rates; nothing is evaluated. After Ctrl-C, or `OutOfTime` of the Progress, the first network is returned,
    and the result's `stopped` says so. A first training that was interrupted is returned as it is.

    Args:
        fitted: the first training.
        train: its training rows.
        valid: its validation rows.
        progress: notified of every step.

    Errors:
        DataError: a column has other types of values in the two parts.
        TrainingError: the loss is not finite.
    """
    if fitted.result.stopped == "interrupted":
        return fitted
    encoder, table = encoded_together(train, valid, fitted.settings.schema)
    network, _ = _built(fitted.settings, encoder)
    try:
        again = fit(
            network,
            table,
            fitted.result,
            settings=fitted.settings.training,
            objective=Objective.of(*fitted.settings.schema.labels),
            seed=fitted.settings.seed,
            progress=progress,
        )
    except (KeyboardInterrupt, OutOfTime) as e:
        stopped: Literal["interrupted", "time"] = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
        return dataclasses.replace(fitted, result=dataclasses.replace(fitted.result, stopped=stopped))
    refit = Refit(rows=len(table), epochs=again.best.epoch, seconds=round(again.seconds, 3))
    return dataclasses.replace(fitted, encoder=encoder, network=network, refit=refit)


def _built(settings: FitSettings, encoder: Encoder) -> tuple[nn.Module, WarmStart | None]:
    labels = settings.schema.labels
    network = build_network(settings.model, encoder.layout, settings.seed, labels=len(labels))
    started = None if settings.start is None else warm_start(network, encoder, settings.start, labels=labels)
    rest_while_waiting()
    return network, started
