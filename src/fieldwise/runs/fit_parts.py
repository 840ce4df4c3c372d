"""Training on prepared rows: the shared functions of recipes and `Recommender`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from torch import nn

from fieldwise.bundle.warm_start import WarmStart, warm_start
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.all_rows import encoded_together
from fieldwise.data.prepare.prepared import Part
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError
from fieldwise.models.build import build_network, model_to_dict
from fieldwise.runs.defaults import Chosen
from fieldwise.runs.environment import commit
from fieldwise.runs.fit_settings import FitSettings
from fieldwise.runs.unfinished import first_checkpoints, run_facts, second_checkpoints
from fieldwise.training.callbacks import Callback, OutOfTime
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective
from fieldwise.training.optimizer_kinds import LBFGS
from fieldwise.training.result import FitResult
from fieldwise.training.unfinished import Unfinished
from fieldwise.training.waiting import rest_while_waiting

__all__ = ["FitInputs", "Fitted", "Refit", "fit_again", "fit_parts", "fit_with_refit"]


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
        result: of the training with early stopping on validation rows.
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


@dataclass(frozen=True, kw_only=True)
class FitInputs:
    """What training takes besides its settings: rows, callbacks, and where checkpoints go.

    Args:
        encoder: fitted on the training rows.
        train: encoded training rows with targets.
        valid: encoded validation rows with targets.
        callbacks: called at the start, after every step and evaluation, and at the end.
        unfinished: where checkpoints are written, and from where the same run resumes if it was killed; the second
            training has its own checkpoints there.
    """

    encoder: Encoder
    train: Part
    valid: Part
    callbacks: Sequence[Callback] = ()
    unfinished: Unfinished | None = None


def fit_parts(settings: FitSettings, inputs: FitInputs) -> Fitted:
    """Train on the training rows and restore the best weights on the validation rows.

    Ctrl-C ends training early, as in `fieldwise.training.fit.fit`. PyTorch's idle threads sleep from now on
    (`fieldwise.training.waiting`).

    Errors:
        ConfigError: settings that do not fit the model or the task; a warm start without matching weights; other
            settings or rows than those of the unfinished run.
        TrainingError: the loss is not finite.
    """
    train, valid, unfinished = inputs.train, inputs.valid, inputs.unfinished
    settings, chosen = settings.settled(train)
    if settings.start is not None and (settings.training.linear_start or settings.training.optimizer == LBFGS):
        raise ConfigError(
            "a warm start keeps its bundle's first-order weights, which linear_start and optimizer = 'lbfgs' solve "
            "anew: leave out warm_start or that setting"
        )
    about = _agreed(cache(partial(run_facts, settings, train, valid)))
    network, started = _built(settings, inputs.encoder)
    result = fit(
        network,
        train.table,
        valid.table,
        settings=settings.training,
        objective=Objective.of(*settings.schema.labels),
        seed=settings.seed,
        valid_group=valid.group,
        callbacks=inputs.callbacks,
        about=_about(settings),
        checkpoints=None if unfinished is None or not _keeps() else first_checkpoints(unfinished, settings, about),
    )
    return Fitted(
        settings=settings, encoder=inputs.encoder, network=network, result=result, chosen=chosen, warm_start=started
    )


def fit_with_refit(settings: FitSettings, inputs: FitInputs) -> Fitted:
    """`fit_parts`, followed by `fit_again` if `training.refit` is set."""
    fitted = fit_parts(settings, inputs)
    return fit_again(fitted, inputs) if fitted.settings.training.refit else fitted


def fit_again(fitted: Fitted, inputs: FitInputs) -> Fitted:
    """Train a network of the same settings from the start, on the training and validation rows together.

    Its encoder is fitted on both. It takes as many epochs as the first training to its best evaluation, with the same
    learning rates; nothing is evaluated. After Ctrl-C, or `OutOfTime` of a callback, the first network is returned,
    and the result's `stopped` says so. A first training that was interrupted is returned as it is.

    Args:
        fitted: the first training.
        inputs: those of the first training.

    Errors:
        DataError: a column has other types of values in the two parts.
        TrainingError: the loss is not finite.
    """
    if fitted.result.stopped == "interrupted":
        return fitted
    train, valid, unfinished = inputs.train, inputs.valid, inputs.unfinished
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
            callbacks=inputs.callbacks,
            about=_about(fitted.settings),
            checkpoints=None
            if unfinished is None or not _keeps()
            else second_checkpoints(
                unfinished, fitted.settings, partial(run_facts, fitted.settings, train, valid, fitted.result)
            ),
        )
    except (KeyboardInterrupt, OutOfTime) as e:
        stopped: Literal["interrupted", "time"] = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
        return dataclasses.replace(fitted, result=dataclasses.replace(fitted.result, stopped=stopped))
    refit = Refit(rows=len(table), epochs=again.best.epoch, seconds=round(again.seconds, 3))
    return dataclasses.replace(fitted, encoder=encoder, network=network, refit=refit)


def _keeps() -> bool:
    """Whether this process writes checkpoints: of several, process 0 does."""
    group = current_group()
    return group is None or group.is_main_process


def _about(settings: FitSettings) -> dict[str, Any]:
    """What callbacks are told of the settings beside those of the training."""
    return {"model": model_to_dict(settings.model)}


def _agreed(about: Callable[[], Mapping[str, Any]]) -> Callable[[], Mapping[str, Any]]:
    """The facts of a run, after processes that share it have compared theirs."""
    if (group := current_group()) is not None:
        group.check_same_on_all_ranks({**about(), "commit": commit()})
    return about


def _built(settings: FitSettings, encoder: Encoder) -> tuple[nn.Module, WarmStart | None]:
    labels = settings.schema.labels
    network = build_network(settings.model, encoder.layout, settings.seed, labels=len(labels))
    started = None if settings.start is None else warm_start(network, encoder, settings.start, labels=labels)
    rest_while_waiting()
    return network, started
