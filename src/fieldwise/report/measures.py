"""The report's metrics with intervals, learning curves, ROC and precision-recall curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_curve

from fieldwise.evaluation import binary_metrics, mae, rmse, sigmoid
from fieldwise.evaluation.bootstrap import Estimate, MetricName, estimate, resampled, resampled_gauc
from fieldwise.evaluation.registry import METRICS, metric_names, shown_name
from fieldwise.evaluation.reliability import brier, wilson
from fieldwise.report.blocks import Block, Figure, Note, Section, Table, count, number
from fieldwise.report.line_chart import Axis, Line, line_chart
from fieldwise.report.runs import Scored

__all__ = ["curves_section", "learning_section", "metrics_section", "replicates_for"]

POINTS = 240  # points of a plotted curve
TABLED = 11
REPLICATES = 200, 1000
DRAWS = 50_000_000  # target number of rows in all replicates together
OF_ROWS = ("rows", "positive_rate")  # do not depend on the scores


def metrics_section(
    rows: Scored, group: np.ndarray | None, binary: bool, best: Mapping[str, float] | None, seed: int
) -> tuple[Section, list[tuple[str, str, str]]]:
    """All metrics of a label on the test rows, and the first ones as facts: name, value, interval."""
    metrics, left_out = _binary_rows(rows, group, seed) if binary else (_regression_rows(rows, seed), "")
    columns = ["metric", "test rows", "95 % interval"]
    if best is not None:
        columns.append("best possible")
    table = []
    for words, name, value, ends in metrics:
        cells = [words, value, _ends(ends)]
        if best is not None:
            cells.append(number(best[name]) if name in best and name not in OF_ROWS else "")
        table.append(cells)
    notes: list[Block] = [
        Table(
            columns=columns,
            rows=table,
            note=f"Intervals are for other rows from the same source: bootstrap, {replicates_for(rows.y):,} replicates "
            "over rows (for group AUC, over groups), and Wilson's for shares. They assume independent rows: if users "
            "have many similar rows, they are too narrow. They do not cover other seeds or splits: "
            f"`fieldwise compare` with several seeds does. {left_out}".rstrip(),
        )
    ]
    if best is not None:
        notes.append(Note(text="Best possible: metrics of the true probabilities, which are known for this log."))
    first = ("auc", "logloss") if binary else ("rmse", "mae")
    facts = [(w, value, _ends(ends)) for w, name, value, ends in metrics if name in first]
    return Section(title="Metrics", blocks=notes), facts


def _ends(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def replicates_for(y: np.ndarray) -> int:
    """The number of bootstrap replicates for these rows."""
    least, most = REPLICATES
    return max(least, min(most, DRAWS // len(y)))


def _drawn(rows: Scored, metric: MetricName, value: float, seed: int) -> Estimate:
    return estimate(
        [value],
        resampled(rows.y, rows.score[None], metric, replicates=replicates_for(rows.y), seed=seed)[:, 0],
        least=0.0,
    )


_Row = tuple[str, str, str, tuple[float, float] | None]


def _binary_rows(rows: Scored, group: np.ndarray | None, seed: int) -> tuple[list[_Row], str]:
    """The table's rows, and a sentence on rows that group AUC excludes."""
    y, z = rows.y, rows.score
    found = binary_metrics(y, z, group=group)
    positive, predicted = y == 1, z >= 0
    drawn: list[tuple[str, MetricName, float]] = [
        ("AUC", "auc", found["auc"]),
        ("average precision", "average_precision", float(average_precision_score(y, z))),
        ("logloss", "logloss", found["logloss"]),
        ("Brier score", "brier", brier(y, sigmoid(z))),
        ("expected calibration error", "ece", found["ece"]),
    ]
    out: list[_Row] = []
    for words, name, value in drawn:
        of = _drawn(rows, name, value, seed)
        out.append((words, name, number(value), (of.low, of.high)))
    if group is not None and "gauc" in found:
        of = estimate([found["gauc"]], resampled_gauc(y, z, group, replicates=replicates_for(y), seed=seed))
        words = f"group AUC ({count(found['gauc_groups'])} groups)"
        out.insert(1, (words, "gauc", number(found["gauc"]), (of.low, of.high)))
    out.append(("normalized entropy", "normalized_entropy", number(found["normalized_entropy"]), None))
    shares = {
        "accuracy": (positive == predicted, np.ones_like(positive)),
        "precision": (positive & predicted, predicted),
        "recall": (positive & predicted, positive),
    }
    for share, (right, of_rows) in shares.items():
        low, high = wilson(right.sum(), max(1, of_rows.sum()))
        ends = (float(low), float(high)) if of_rows.any() else None
        out.append((f"{share} at .5", share, number(found[share]), ends))
    out.append(("F1 at .5", "f1", number(found["f1"]), None))
    low, high = wilson(positive.sum(), len(y))
    out.append(("positive rate", "positive_rate", number(found["positive_rate"]), (float(low), float(high))))
    out.append(("mean prediction", "mean_prediction", number(found["mean_prediction"]), None))
    out.append(("rows", "rows", count(len(y)), None))
    if "gauc" not in found:
        return out, "" if group is None else "Group AUC is omitted: every group has only one class."
    skipped = count(found["gauc_skipped_groups"]), count(found["gauc_skipped_rows"])
    return out, f"Group AUC excludes {skipped[0]} groups of one class ({skipped[1]} rows)."


def _regression_rows(rows: Scored, seed: int) -> list[_Row]:
    out: list[_Row] = []
    drawn: list[tuple[str, MetricName, float]] = [
        ("RMSE", "rmse", rmse(rows.y, rows.score)),
        ("MAE", "mae", mae(rows.y, rows.score)),
    ]
    for words, name, value in drawn:
        of = _drawn(rows, name, value, seed)
        out.append((words, name, number(value), (of.low, of.high)))
    spread = float(np.var(rows.y))
    if spread > 0:
        out.append(("R²", "r2", number(1 - float(np.mean((rows.y - rows.score) ** 2)) / spread), None))
    out.append(("mean target", "mean_target", number(float(rows.y.mean())), None))
    out.append(("mean prediction", "mean_prediction", number(float(rows.score.mean())), None))
    out.append(("rows", "rows", count(len(rows.y)), None))
    return out


def learning_section(
    history: Sequence[Mapping[str, Any]], best_epoch: float | None, stopped: str, monitor: str
) -> Section:
    """Learning curves: losses and metrics of the training and validation rows by epoch."""
    if not history:
        note = "This run was stored without its evaluations during training: run it again to record them."
        return Section(title="Training", blocks=[Note(text=note)])
    epochs = [float(e["epoch"]) for e in history]
    blocks: list[Block] = []
    losses = [e.get("train_loss") for e in history]
    names = [name for name in metric_names(history[0]["metrics"]) if METRICS[name].watched]

    def rows_of(columns: Mapping[str, Sequence[Any]]) -> Table:
        cells = [
            [f"{epoch:.4g}", *("" if c[k] is None else number(float(c[k])) for c in columns.values())]
            for k, epoch in enumerate(epochs)
        ]
        return Table(columns=["epoch", *columns], rows=cells)

    groups = [["logloss", "loss"], ["auc", "gauc"], ["rmse", "mae"]]
    for group in groups:
        shown: dict[str, Sequence[Any]] = {
            f"validation {shown_name(n)}": [e["metrics"].get(n) for e in history] for n in group if n in names
        }
        if not shown:
            continue
        title = " and ".join(shown_name(n) for n in group if n in names)
        if "logloss" in group and any(loss is not None for loss in losses):
            shown = {"training loss": losses, **shown}
            title = "loss"
        lines = []
        for colour, (name, values) in enumerate(shown.items()):
            known = [(e, float(v)) for e, v in zip(epochs, values, strict=True) if v is not None]
            lines.append(Line(name=name, x=[e for e, _ in known], y=[v for _, v in known], colour=colour, points=True))
        axis = Axis("epoch", span=_epochs(epochs), mark=best_epoch)
        drawing = line_chart(lines, axis, Axis(title), title=f"{title} by epoch")
        blocks.append(Figure(title=title[0].upper() + title[1:], drawing=drawing, table=rows_of(shown)))
    ended = {
        "patience": "no further improvement",
        "epochs": "all epochs completed",
        "interrupted": "interrupted",
        "time": "time limit reached",
        "converged": "solved exactly",
    }
    if best_epoch is not None:
        text = (
            f"The dashed line marks epoch {best_epoch:.4g}, whose weights were kept: the best "
            f"{shown_name(monitor)} on the validation rows. Training ended after epoch {epochs[-1]:.4g}: "
            f"{ended.get(stopped, stopped)}. The training loss is the mean over the steps of an epoch, including "
            "dropout, so it is not directly comparable with the validation loss."
        )
        blocks.append(Note(text=text))
    return Section(title="Training", blocks=blocks)


def _epochs(epochs: Sequence[float]) -> tuple[float, float]:
    return (0.0, max(epochs) * 1.03 if max(epochs) > 0 else 1.0)


def curves_section(runs: Mapping[str, Scored]) -> Section:
    """ROC and precision-recall curves of one label, for runs on the same test rows."""
    roc: list[Line] = []
    pr: list[Line] = []
    roc_rows, pr_rows = {}, {}
    grid = np.linspace(0, 1, TABLED)
    rate = 0.0
    for colour, (name, rows) in enumerate(runs.items()):
        y, z = rows.y, rows.score
        rate = float(y.mean())
        false, true, _ = roc_curve(y, z)
        precision, recall, _ = precision_recall_curve(y, z)
        precision, recall = precision[-2::-1], recall[-2::-1]  # from the highest score down, without the artificial end
        shown = name if len(runs) > 1 else ""
        for lines, points in ((roc, _thinned(false, true)), (pr, _thinned(recall, precision))):
            lines.append(Line(name=shown, x=points[0], y=points[1], colour=colour))
        roc_rows[name] = [number(float(v)) for v in np.interp(grid, false, true)]
        at = np.searchsorted(recall, grid[1:], side="left").clip(max=len(recall) - 1)
        pr_rows[name] = [number(float(v)) for v in precision[at]]
    names = list(runs)
    figures = [
        Figure(
            title="ROC curve",
            drawing=line_chart(
                roc,
                Axis("false positive rate", span=(0, 1)),
                Axis("true positive rate", span=(0, 1)),
                title="ROC curve: true positive rate by false positive rate",
                diagonal=True,
            ),
            table=Table(
                columns=["false positive rate", *(names if len(names) > 1 else ["true positive rate"])],
                rows=[[f"{g:.1f}", *(roc_rows[n][k] for n in names)] for k, g in enumerate(grid)],
            ),
            note="The dashed line is the curve of random scores.",
        ),
        Figure(
            title="Precision and recall",
            drawing=line_chart(
                pr,
                Axis("recall", span=(0, 1)),
                Axis("precision", span=(0, 1), mark=rate),
                title="Precision by recall",
            ),
            table=Table(
                columns=["recall", *(names if len(names) > 1 else ["precision"])],
                rows=[[f"{g:.1f}", *(pr_rows[n][k] for n in names)] for k, g in enumerate(grid[1:])],
            ),
            note=f"The dashed line is the positive rate, {number(rate)}: the precision of random scores.",
        ),
    ]
    return Section(title="ROC and precision-recall", blocks=figures)


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A subset of a curve's points for drawing, evenly spaced along the curve."""
    if len(x) <= POINTS:
        return x, y
    way = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    some = np.unique(np.searchsorted(way, np.linspace(0, way[-1], POINTS)).clip(max=len(x) - 1))
    return x[some], y[some]
