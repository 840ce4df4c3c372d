"""The result of a training run: its evaluations, the best of them, and what ended it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fieldwise.config import parse, to_plain
from fieldwise.errors import BundleError

__all__ = ["Evaluation", "FitResult", "result_from_plain", "result_to_plain"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation on the validation rows, after `epoch` epochs (may be fractional).

    Args:
        learning_rate: learning rate of the steps before it.
        seconds: time since the run began.
        metrics: metrics of the validation rows.
        train_loss: mean over the steps since the last evaluation, without penalty and auxiliary losses; None without
            a step.
    """

    epoch: float
    learning_rate: float
    seconds: float
    metrics: dict[str, float]
    train_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The result of a training run; the network has the weights of `best`.

    Args:
        epochs: number of epochs begun.
        best: the evaluation whose weights were kept.
        history: all evaluations, in order.
        seconds: duration of the whole run, including evaluations.
        monitor: the metric for early stopping.
        stopped: what ended the run; `time` means that a callback raised `OutOfTime`, `converged` that there is an
            exact solution.
        seconds_per_epoch: median over whole epochs of the time in training steps, without evaluations; None without
            a whole epoch.
        priors: the share of each prior in the exact regression of `lbfgs` or `linear_start`.
        interactions: with `linear_start`, the share of the trained network in its mean with the regression.
    """

    epochs: int
    best: Evaluation
    history: tuple[Evaluation, ...]
    seconds: float
    monitor: str
    stopped: Literal["patience", "epochs", "interrupted", "time", "converged"]
    seconds_per_epoch: float | None = None
    priors: Mapping[str, float] = field(default_factory=dict)
    interactions: float | None = None

    def to_pandas(self) -> Any:
        """The evaluations as a pandas frame: epoch, learning_rate, seconds, train_loss, valid_METRIC, kept."""
        from fieldwise.notebook.frames import to_pandas, training_frame

        return to_pandas(training_frame(self))

    def plot(self, ax: Any = None) -> Any:
        """Plot the learning curves on Matplotlib axes (new ones if omitted) and return the axes."""
        from fieldwise.notebook.plots import plot_training

        return plot_training(self, ax)

    def _repr_html_(self) -> str:
        from fieldwise.notebook.html import training_html

        return training_html(self)


def result_to_plain(result: FitResult) -> dict[str, Any]:
    """A result as plain values for JSON, without unknown ones."""
    plain: dict[str, Any] = to_plain(result)
    return plain


def result_from_plain(data: Mapping[str, Any], where: str = "the bundle's result") -> FitResult:
    """The inverse of `result_to_plain`.

    Errors:
        BundleError: invalid values, named below `where`.
    """
    return parse(FitResult, data, where, BundleError)
