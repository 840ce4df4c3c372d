"""Checkpoints of a run, with the settings, digests of rows, and versions that a resuming run must share."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Part
from fieldwise.models.build import model_to_dict
from fieldwise.models.own import source_digest
from fieldwise.ops.devices import open_device
from fieldwise.runs.fit_settings import FitSettings
from fieldwise.runs.identity import rows_digest
from fieldwise.training.checkpoint import Checkpoints
from fieldwise.training.result import FitResult
from fieldwise.training.unfinished import Unfinished
from fieldwise.version import __version__

__all__ = ["first_checkpoints", "run_facts", "second_checkpoints"]


def first_checkpoints(
    unfinished: Unfinished, settings: FitSettings, about: Callable[[], Mapping[str, Any]]
) -> Checkpoints:
    """The checkpoints of the first training, which has early stopping on validation rows.

    Args:
        unfinished: the folder.
        settings: complete settings.
        about: gives `run_facts`.
    """
    return Checkpoints(
        place=unfinished,
        name="first",
        minutes=settings.training.checkpoint_minutes,
        about=about,
        always=settings.training.refit,  # the second training begins with the first one's result
    )


def second_checkpoints(
    unfinished: Unfinished, settings: FitSettings, about: Callable[[], Mapping[str, Any]]
) -> Checkpoints:
    """The checkpoints of the second training, on training and validation rows."""
    return Checkpoints(
        place=unfinished,
        name="second",
        minutes=settings.training.checkpoint_minutes,
        about=about,
    )


def run_facts(settings: FitSettings, train: Part, valid: Part, first: FitResult | None = None) -> dict[str, Any]:
    """What processes that resume a training, or share it, must have in common: settings, rows and versions.

    Args:
        settings: complete settings.
        train: the training rows.
        valid: the validation rows.
        first: the first training's result, for the second.
    """
    training: dict[str, Any] = to_plain(settings.training)
    del training["checkpoint_minutes"]
    if (device := open_device(settings.training.device)).type != "cpu":
        training["device"] = device.type  # another one rounds otherwise
    about: dict[str, Any] = {
        "schema": to_plain(settings.schema),
        "model": model_to_dict(settings.model),
        "training": training,
        "seed": settings.seed,
        "training rows": _rows(train, settings),
        "validation rows": _rows(valid, settings),
        "versions": {"fieldwise": __version__, "torch": torch.__version__},
    }
    if (code := source_digest(settings.model)) is not None:
        about["code of the model"] = code
    if settings.start is not None:
        about["warm_start"] = settings.start.digest
    if first is not None:
        about["first training"] = [[e.epoch, e.learning_rate] for e in first.history]
    return about


def _rows(part: Part, settings: FitSettings) -> str:
    """The digest of a part's rows, and of their weights if there are."""
    found = rows_digest(part.frame, settings.schema)
    weight = part.table.weight
    return found if weight is None else f"{found} {hashlib.sha256(np.ascontiguousarray(weight).data).hexdigest()}"
