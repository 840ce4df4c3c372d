"""The history of a training: its evaluations, the best of them, and what ended it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fieldwise.charts import Axis, Chart, Line, line_chart, stacked
from fieldwise.config import parse, to_plain
from fieldwise.display import SHOWN_ROWS, Table, counted, pandas_frame
from fieldwise.errors import BundleError
from fieldwise.evaluation.metrics import METRICS, Aspect, main_metrics, shown_name

Stopped = Literal["patience", "epochs", "interrupted", "time", "converged"]
"""What ended a training: `time` that a callback raised `OutOfTime`, `converged` that there is an exact solution."""
STOPPED: Mapping[str, str] = {
    "patience": "no improvement since",
    "epochs": "all epochs completed",
    "interrupted": "interrupted",
    "time": "time limit reached",
    "converged": "solved exactly",
}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation on the validation rows, after `epoch` epochs (may be fractional).

    Args:
        learning_rate: learning rate of the steps before it.
        seconds: time since the run began.
        metrics: metrics of the validation rows.
        train_loss: mean over the steps since the last evaluation, without penalty and auxiliary
            losses; None without a step.
    """

    epoch: float
    learning_rate: float
    seconds: float
    metrics: dict[str, float]
    train_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """The evaluations of a training, and what ended it; the network has the weights of `best`.

    Args:
        epochs: number of epochs begun.
        best: the evaluation whose weights were kept.
        evaluations: all evaluations, in order.
        seconds: duration of the whole run, including evaluations.
        monitor: the metric for early stopping.
        stopped: what ended the run.
        seconds_per_epoch: median over whole epochs of the time in training steps, without
            evaluations; None without a whole epoch.
        priors: the share of each prior in the exact regression of `lbfgs`, `start_from_lr` or
            `mean_with_lr`.
        network_share: with `mean_with_lr`, the share of the trained network in its mean with LR: 1
            without a change.
        lr: the training of that LR, if it was trained by steps (`l2_of_lr`).
        rows: number of training rows.
        unit: what an epoch is called: of trees, each is one.
    """

    epochs: int
    best: Evaluation
    evaluations: tuple[Evaluation, ...]
    seconds: float
    monitor: str
    stopped: Stopped
    seconds_per_epoch: float | None = None
    priors: Mapping[str, float] = field(default_factory=dict)
    network_share: float | None = None
    lr: "History | None" = None
    rows: int = 0
    unit: str = "epoch"

    def to_pandas(self) -> Any:
        """The evaluations as a pandas frame: epoch, learning_rate, seconds, train_loss, valid_METRIC, kept."""
        rows = list[dict[str, Any]]()
        for e in self.evaluations:
            row: dict[str, Any] = {
                "epoch": e.epoch,
                "learning_rate": e.learning_rate,
                "seconds": e.seconds,
                "train_loss": e.train_loss,
            }
            for name, value in e.metrics.items():
                row[f"valid_{name}"] = float(value)
            row["kept"] = e.epoch == self.best.epoch
            rows.append(row)
        return pandas_frame(rows, {"train_loss": float})

    def plot(self) -> Chart:
        """A chart of losses and metrics by epoch; a dashed line marks the epoch that was kept."""
        curves = learning_curves(to_plain(self.evaluations), self.best.epoch)
        charts = [chart for chart, _ in curves.values()]
        title = f"Learning curves; the dashed line marks the best valid {self.monitor}"
        return stacked(charts, title)

    def to_plain(self) -> dict[str, Any]:
        """The history as plain values for JSON, without unknown ones; the evaluations are named `history`."""
        plain: dict[str, Any] = to_plain(self)
        plain["history"] = plain.pop("evaluations")
        return plain

    @classmethod
    def from_plain(cls, data: Mapping[str, Any], where: str) -> "History":
        """The inverse of `to_plain`; invalid values are a BundleError that names them below `where`."""
        named = dict(data)
        if "history" in named:
            named["evaluations"] = named.pop("history")
        return parse(cls, named, where, BundleError)

    def _repr_html_(self) -> str:
        """The evaluations, with the best one marked."""
        known = set(self.best.metrics).intersection(*(e.metrics for e in self.evaluations))
        names = [name for name in dict.fromkeys((self.monitor, *main_metrics())) if name in known]
        rows = list[list[Any]]()
        for e in self.evaluations[-SHOWN_ROWS:]:
            metrics = [e.metrics[name] for name in names]
            is_best = e.epoch == self.best.epoch
            rows.append([e.epoch, e.train_loss, *metrics, e.learning_rate, is_best])
        metric_columns = [f"valid {name}" for name in names]
        table = Table(
            title=f"Training, by valid {self.monitor}",
            columns=["epoch", "train loss", *metric_columns, "learning rate", "kept"],
            rows=rows,
            note="; ".join(self._notes(num_hidden=len(self.evaluations) - len(rows))),
        )
        return table._repr_html_()

    def _notes(self, num_hidden: int) -> list[str]:
        """What a table of the evaluations says below them."""
        ending = f"stopped by {self.stopped} after {counted(self.epochs, self.unit)}"
        if self.stopped == "converged":
            ending = f"solved exactly with {counted(self.epochs, 'prior')}"
        notes = [f"{ending}, {self.seconds:.1f} s"]
        if self.network_share not in (None, 1.0):
            value = self.best.metrics[self.monitor]
            share = f"{self.network_share:.0%}: {self.monitor} {value:.4g}"
            notes.append(f"kept as a mean with LR, in which it has {share}")
        if num_hidden:
            notes.append(f"{num_hidden} earlier evaluations are not shown")
        return notes


def learning_curves(
    history: Sequence[Mapping[str, Any]], best_epoch: float | None
) -> dict[str, tuple[Chart, dict[str, list[float | None]]]]:
    """Charts of losses and metrics by epoch, with their numbers by name, by title; the kept epoch is marked."""
    epochs = [float(e["epoch"]) for e in history]
    span = (0.0, 1.0)
    if epochs and max(epochs) > 0:
        span = (0.0, max(epochs) * 1.03)

    charts: dict[str, tuple[Chart, dict[str, list[float | None]]]] = {}
    for aspect in get_args(Aspect):
        names = _watched_metrics(aspect, history[0]["metrics"])
        if not names:
            continue
        title = " and ".join(map(shown_name, names))
        curves = {
            f"validation {shown_name(name)}": [e["metrics"].get(name) for e in history]
            for name in names
        }
        losses = [e.get("train_loss") for e in history]
        if aspect == "probability" and any(loss is not None for loss in losses):
            title = "loss"
            curves = {"training loss": losses, **curves}
        lines = _lines(epochs, curves)
        if not lines:
            continue
        chart = line_chart(
            lines,
            Axis(label="epoch", span=span, mark=best_epoch),
            Axis(label=title),
            title=f"{title} by epoch",
        )
        charts[title] = (chart, curves)
    return charts


def _watched_metrics(aspect: Aspect, recorded: Collection[str]) -> list[str]:
    """The recorded metrics of an aspect that early stopping may use."""
    return [
        metric.name
        for metric in METRICS.values()
        if metric.aspect == aspect and metric.watched and metric.name in recorded
    ]


def _lines(epochs: Sequence[float], curves: Mapping[str, list[float | None]]) -> list[Line]:
    """A line for each curve with a known value, in its colour."""
    lines = list[Line]()
    for colour, (name, values) in enumerate(curves.items()):
        known = [(e, float(v)) for e, v in zip(epochs, values, strict=True) if v is not None]
        if known:
            x, y = zip(*known, strict=True)
            lines.append(Line(name=name, x=x, y=y, colour=colour, points=True))
    return lines
