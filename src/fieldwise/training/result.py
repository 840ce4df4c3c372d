"""What a training run did: its evaluations, the best of them, and what ended it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fieldwise.config import parse, to_plain
from fieldwise.errors import BundleError

__all__ = ["Evaluation", "FitResult", "result_from_plain", "result_to_plain"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation of the validation rows, after `epoch` epochs (with a fraction).

    Args:
        learning_rate: of the steps before it.
        seconds: since the run began.
        metrics: of the validation rows.
        train_loss: mean over the steps since the last evaluation, penalty and auxiliary losses left out; None without a
            step.
    """

    epoch: float
    learning_rate: float
    seconds: float
    metrics: dict[str, float]
    train_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What a training run did; the network holds the weights of `best`.

    Args:
        epochs: epochs begun.
        best: the evaluation whose weights were kept.
        history: all evaluations, in order.
        seconds: of the whole run, evaluations included.
        monitor: the metric that decided.
        stopped: what ended the run; `time` is the end of the time that its Progress had for it.
        seconds_per_epoch: median over whole epochs of the time spent in training steps, evaluations left out; None
            without a whole epoch.
    """

    epochs: int
    best: Evaluation
    history: tuple[Evaluation, ...]
    seconds: float
    monitor: str
    stopped: Literal["patience", "epochs", "interrupted", "time"]
    seconds_per_epoch: float | None = None

    def to_pandas(self) -> Any:
        """The evaluations as a pandas frame: epoch, learning_rate, seconds, train_loss, valid_METRIC, kept."""
        from fieldwise.notebook.frames import to_pandas, training_frame

        return to_pandas(training_frame(self))

    def plot(self, ax: Any = None) -> Any:
        """The learning curves on Matplotlib's axes, which come back; new ones where left out."""
        from fieldwise.notebook.plots import plot_training

        return plot_training(self, ax)

    def _repr_html_(self) -> str:
        from fieldwise.notebook.html import training_html

        return training_html(self)


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
