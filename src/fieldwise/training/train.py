"""From a fresh network and encoded parts to a trained one, and what a run did as plain values."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fieldwise.config import parse, to_plain
from fieldwise.data.prepare.prepared import Part
from fieldwise.errors import BundleError
from fieldwise.schema.label import Label
from fieldwise.training.fit import FitResult, fit
from fieldwise.training.objective import Objective
from fieldwise.training.progress import Progress
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.waiting import rest_while_waiting

__all__ = ["result_from_plain", "result_to_plain", "train_network"]


def train_network(
    network: nn.Module,
    train: Part,
    valid: Part,
    *,
    labels: Sequence[Label],
    settings: TrainingSettings,
    seed: int,
    progress: Progress | None = None,
) -> FitResult:
    """Train a network in place; it holds the weights of its best evaluation on the validation rows.

    Ctrl-C ends training early, as in `fieldwise.training.fit.fit`. PyTorch's idle threads sleep from now on
    (`fieldwise.training.waiting`).
    """
    rest_while_waiting()
    return fit(
        network,
        train.table,
        valid.table,
        settings=settings,
        objective=Objective.of(*labels),
        seed=seed,
        valid_group=valid.group,
        progress=progress,
    )


def result_to_plain(result: FitResult) -> dict[str, Any]:
    """Plain values for JSON; what is not known is left out."""
    plain: dict[str, Any] = to_plain(result)
    return plain


def result_from_plain(data: Mapping[str, Any], where: str = "the bundle's result") -> FitResult:
    """The inverse of `result_to_plain`.

    Errors:
        BundleError: not such values; says what, below `where`.
    """
    return parse(FitResult, data, where, BundleError)
