"""Matplotlib plots (extra `plots`) of training, calibration, ranking, explanations and leaderboards."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fieldwise.errors import DataError, MissingExtraError
from fieldwise.evaluation import auc
from fieldwise.evaluation.reliability import Reliability
from fieldwise.explain.attention import darkest, is_uniform
from fieldwise.explain.explanation import Explanation
from fieldwise.models.afm import AFMNetwork
from fieldwise.runs.leaderboard import Board
from fieldwise.runs.plots import draw_board
from fieldwise.training.result import FitResult

__all__ = [
    "axes",
    "plot_attention",
    "plot_calibration",
    "plot_explanation",
    "plot_leaderboard",
    "plot_roc",
    "plot_training",
]

SHOWN = 20  # maximum number of fields


def axes(ax: Any = None) -> Any:
    """The axes given, or those of a new figure of `matplotlib.pyplot`.

    Errors:
        MissingExtraError: Matplotlib is missing.
    """
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtraError("a plot needs Matplotlib: pip install 'fieldwise[plots]'") from None
    return pyplot.subplots(layout="constrained")[1]


def plot_training(result: FitResult, ax: Any = None) -> Any:
    """Plot the monitored validation metric by epoch, with the best evaluation marked, and the losses on one scale.

    The training loss and a validation logloss share an axis; another monitored metric has its own.
    """
    ax = axes(ax)
    epochs = [e.epoch for e in result.history]
    monitored = [e.metrics[result.monitor] for e in result.history]
    ax.plot(epochs, monitored, "o-", color="C0", markersize=3, label=f"valid {result.monitor}")
    ax.plot([result.best.epoch], [result.best.metrics[result.monitor]], "o", color="C1", label="kept")
    ax.set_xlabel("epoch")
    ax.set_ylabel(f"valid {result.monitor}")
    lines = ax.get_lines()
    losses = [(e.epoch, e.train_loss) for e in result.history if e.train_loss is not None]
    if losses:
        same = result.monitor in ("loss", "logloss")
        beside = ax if same else ax.twinx()
        lines += beside.plot(*zip(*losses, strict=True), "--", color="0.5", label="train loss")
        if not same and "logloss" in result.best.metrics:
            valid = [e.metrics["logloss"] for e in result.history]
            lines += beside.plot(epochs, valid, ":", color="C2", label="valid logloss")
        beside.set_ylabel("loss")
    ax.legend(handles=lines, loc="best")
    return ax


def plot_calibration(found: Reliability, ax: Any = None) -> Any:
    """Plot a reliability diagram: shares of positives by predicted probability, with 95 % intervals."""
    ax = axes(ax)
    edge = float(max(found.predicted.max(), found.high.max()))
    ax.plot([0, edge], [0, edge], "--", color="0.6", label="as predicted")
    reach = np.stack([found.observed - found.low, found.high - found.observed]).clip(min=0)
    ax.errorbar(found.predicted, found.observed, yerr=reach, fmt="o-", markersize=3, label=f"error {found.error:.4f}")
    ax.set_xlabel("predicted probability")
    ax.set_ylabel("share of positive rows")
    ax.legend(loc="best")
    return ax


def plot_roc(y: ArrayLike, score: ArrayLike, ax: Any = None) -> Any:
    """Plot the ROC curve: true positive rate by false positive rate."""
    from sklearn.metrics import roc_curve

    area = auc(y, score)  # raises clear errors
    wrong, right, _ = roc_curve(np.asarray(y), np.asarray(score))
    ax = axes(ax)
    ax.plot(wrong, right, label=f"AUC {area:.4f}")
    ax.plot([0, 1], [0, 1], "--", color="0.6", label="random")
    ax.set_xlabel("share of negative rows")
    ax.set_ylabel("share of positive rows")
    ax.legend(loc="lower right")
    return ax


def plot_explanation(explanation: Explanation, row: int | None = None, ax: Any = None) -> Any:
    """Plot contributions of one row's fields, or mean absolute contributions of all rows, the largest on top."""
    subject = explanation.subject
    if row is None and len(explanation.contributions) == 1:
        row = 0
    if row is None:
        found = np.abs(explanation.contributions).mean(0)
        names, label = list(subject.fields), f"mean absolute contribution, {len(explanation.contributions):,} rows"
    else:
        plain = explanation.row(row)
        value = {f["field"]: f["value"] for f in plain["fields"]}
        found = explanation.contributions[row]
        names = [f"{name} = {value[name]}" for name in subject.fields]
        label = f"contribution to the score of {plain['score']:.3g} (base {plain['base']:.3g})"
    order = np.argsort(np.abs(found), kind="stable")[-SHOWN:]
    ax = axes(ax)
    ax.barh(range(len(order)), found[order], color=np.where(found[order] < 0, "C3", "C0"))
    ax.set_yticks(range(len(order)), [_short(names[f]) for f in order])
    ax.set_xlabel(label)
    return ax


def plot_attention(explanation: Explanation, row: int | None = None, ax: Any = None) -> Any:
    """Plot attention between fields: AFM's pair weights, or AutoInt's, averaged over layers and heads.

    Errors:
        DataError: the model has no attention over fields.
    """
    subject = explanation.subject
    weights = subject.terms.shown.get("attention")
    if weights is None:
        name = type(subject.network).__name__.removesuffix("Network")
        raise DataError(f"only AFM and AutoInt have attention over fields, found {name}: plot the explanation itself")
    explanation.row(0 if row is None else row)  # raises an error with the valid rows
    mean = weights.mean(0) if row is None else weights[row]
    if isinstance(subject.network, AFMNetwork):
        square = np.full((len(subject.fields), len(subject.fields)), np.nan)
        for weight, (i, j) in zip(mean, subject.pairs, strict=True):
            square[i, j] = square[j, i] = weight
    else:
        square = mean.reshape(-1, *mean.shape[-2:]).mean(0)
    ax = axes(ax)
    equal = 1 / (len(subject.pairs) if isinstance(subject.network, AFMNetwork) else len(subject.fields))
    known = square[~np.isnan(square)]
    image = ax.imshow(square, vmin=0, vmax=darkest(known, equal), cmap="viridis")
    if is_uniform(known, equal):
        ax.set_title("attention is uniform: it shows no field")
    ax.set_xticks(range(len(subject.fields)), [_short(name) for name in subject.fields], rotation=90)
    ax.set_yticks(range(len(subject.fields)), [_short(name) for name in subject.fields])
    ax.figure.colorbar(image, ax=ax, label="attention")
    return ax


def plot_leaderboard(board: Board, ax: Any = None) -> Any:
    """Plot each recipe's mean with its 95 % interval and its seeds as dashes, the best on top."""
    ax = axes(ax)
    draw_board(board, ax)
    return ax


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
