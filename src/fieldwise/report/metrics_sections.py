"""The sections on a label's metrics: in plain words, with intervals, learning curves, ROC and precision-recall."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    precision_recall_curve,
    roc_curve,
)

from fieldwise.charts import Line, line_chart
from fieldwise.display import Table, number
from fieldwise.evaluation import binary_metrics, regression_metrics, sigmoid
from fieldwise.evaluation.bootstrap import MetricName, estimate, resampled, resampled_gauc
from fieldwise.evaluation.calibration import wilson
from fieldwise.evaluation.metrics import shown_name
from fieldwise.evaluation.ranking import roc_chart
from fieldwise.evaluation.words import INTERVALS, binary_words, regression_words
from fieldwise.report.calibration_section import picture
from fieldwise.report.page import (
    Block,
    Caution,
    Figure,
    Scored,
    Section,
    count,
    interval_text,
    percent,
)
from fieldwise.runs.leaderboard import replicates_for
from fieldwise.schema import Label
from fieldwise.training.history import STOPPED, learning_curves

METRICS_AT_HALF = ("precision", "recall", "accuracy")
"""Those with a threshold of .5."""
NAMES_IN_WORDS = {
    "ece": "calibration error",
    "mean_prediction": "mean prediction",
    **{name: f"{name} at .5" for name in METRICS_AT_HALF},
}


def words_section(rows: Scored, group: np.ndarray | None, label: Label) -> Section:
    """A sentence about each metric of a label on the test rows; for a binary label also a chart."""
    blocks: list[Block] = []
    if label.task == "binary":
        metrics = binary_metrics(rows.y, rows.score, group=group)
        sentences = binary_words(metrics, label)
        blocks.append(f"Predicted is the {label.meaning}; such rows are called positive.")
        if metrics["normalized_entropy"] >= 1:
            text = "These probabilities are worse than always predicting the share of positives: do not use them yet."
            blocks.append(Caution(text))
    else:
        metrics = regression_metrics(rows.y, rows.score)
        sentences = regression_words(metrics, label, spread=float(np.std(rows.y)))

    explained: dict[str, str] = {}
    for name, sentence in sentences.items():
        is_share = name == "mean_prediction" or name in METRICS_AT_HALF
        value = percent(metrics[name]) if is_share else number(metrics[name])
        explained[f"{NAMES_IN_WORDS.get(name, shown_name(name))}: {value}"] = sentence
    blocks += [explained, INTERVALS]

    if label.task == "binary":
        blocks.append(picture(rows.y, sigmoid(rows.score)))
    return Section("In plain words", blocks)


METRICS_IN_TABLE = {
    "auc": "AUC",
    "gauc": "group AUC",
    "average_precision": "average precision",
    "logloss": "logloss",
    "brier": "Brier score",
    "ece": "expected calibration error",
    "normalized_entropy": "normalized entropy",
    "accuracy": "accuracy at .5",
    "precision": "precision at .5",
    "recall": "recall at .5",
    "f1": "F1 at .5",
    "positive_rate": "positive rate",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "mean_target": "mean target",
    "mean_prediction": "mean prediction",
    "rows": "rows",
}
"""The title of each metric, in the table's order."""
METRICS_OF_ROWS = ("rows", "positive_rate")
"""Those that do not depend on the scores."""
RESAMPLED_BINARY: tuple[MetricName, ...] = ("auc", "average_precision", "logloss", "brier", "ece")
RESAMPLED_REGRESSION: tuple[MetricName, ...] = ("rmse", "mae")


def metrics_section(
    rows: Scored,
    group: np.ndarray | None,
    binary: bool,
    best: Mapping[str, float] | None,
    seed: int,
) -> tuple[Section, list[tuple[str, str, str]]]:
    """All metrics of a label on the test rows, and the first ones as facts: name, value, interval."""
    if binary:
        values, intervals = _binary_values(rows, group, seed)
        resampled_names = RESAMPLED_BINARY
        names_of_facts = ("auc", "logloss")
    else:
        values = _regression_values(rows)
        intervals = {}
        resampled_names = RESAMPLED_REGRESSION
        names_of_facts = ("rmse", "mae")

    replicates = replicates_for(len(rows.y))
    for metric in resampled_names:
        draws = resampled(rows.y, rows.score[None], metric, replicates=replicates, seed=seed)
        intervals[metric] = interval_text(estimate([values[metric]], draws[:, 0], least=0.0))

    cells = _metric_cells(values, intervals)
    facts = [cells[name] for name in names_of_facts if name in cells]
    table = []
    for name, row in cells.items():
        if best is None:
            table.append([*row])
        else:
            is_of_scores = name in best and name not in METRICS_OF_ROWS
            table.append([*row, number(best[name]) if is_of_scores else ""])

    note = (
        f"Intervals are for other rows from the same source: bootstrap, {replicates:,} replicates over rows (for group "
        "AUC, over groups), and Wilson's for shares. They assume independent rows: if users have many similar rows, "
        "they are too narrow. They do not cover other seeds or splits: `fieldwise compare` with several seeds does. "
    )
    if binary and group is not None:
        note += _groups_note(values)
    columns = ["metric", "test rows", "95 % interval"]
    if best is not None:
        columns.append("best possible")
    blocks: list[Block] = [Table(columns, table, note=note.rstrip())]
    if best is not None:
        blocks.append(
            "Best possible: metrics of the true probabilities, which are known for this log."
        )
    return Section("Metrics", blocks), facts


def _metric_cells(
    values: Mapping[str, float], intervals: Mapping[str, str]
) -> dict[str, tuple[str, str, str]]:
    """The title, value and interval of each metric, by its name, in the table's order."""
    cells = {}
    for name, title in METRICS_IN_TABLE.items():
        if name not in values:
            continue
        if name == "gauc":
            title += f" ({count(values['gauc_groups'])} groups)"
        value = count(values[name]) if name == "rows" else number(values[name])
        cells[name] = (title, value, intervals.get(name, ""))
    return cells


def _groups_note(values: Mapping[str, float]) -> str:
    """Which groups are not part of group AUC."""
    if "gauc" not in values:
        return "Group AUC is omitted: every group has only one class."
    groups = count(values["gauc_skipped_groups"])
    rows = count(values["gauc_skipped_rows"])
    return f"Group AUC excludes {groups} groups of one class ({rows} rows)."


def _regression_values(rows: Scored) -> dict[str, float]:
    """The metrics of a regression label."""
    values = regression_metrics(*rows)
    values["mean_target"] = float(rows.y.mean())
    values["mean_prediction"] = float(rows.score.mean())
    variance = float(np.var(rows.y))
    if variance > 0:
        values["r2"] = 1 - float(np.mean((rows.y - rows.score) ** 2)) / variance
    return values


def _binary_values(
    rows: Scored, group: np.ndarray | None, seed: int
) -> tuple[dict[str, float], dict[str, str]]:
    """The metrics, and the intervals of group AUC and of shares."""
    y = rows.y
    z = rows.score
    values = binary_metrics(y, z, group=group)
    values["average_precision"] = float(average_precision_score(y, z))
    values["brier"] = float(brier_score_loss(y, sigmoid(z)))

    intervals = {}
    if group is not None and "gauc" in values:
        draws = resampled_gauc(y, z, group, replicates=replicates_for(len(y)), seed=seed)
        intervals["gauc"] = interval_text(estimate([values["gauc"]], draws))

    is_positive = y == 1
    is_predicted = z >= 0
    every_row = np.ones(len(y), bool)
    shares = {
        "accuracy": (is_positive == is_predicted, every_row),
        "precision": (is_positive & is_predicted, is_predicted),
        "recall": (is_positive & is_predicted, is_positive),
        "positive_rate": (is_positive, every_row),
    }
    for name, (is_counted, is_in_share) in shares.items():
        if is_in_share.any():
            low, high = wilson(is_counted.sum(), is_in_share.sum())
            intervals[name] = f"{number(float(low))} to {number(float(high))}"
    return values, intervals


def learning_section(
    history: Sequence[Mapping[str, Any]], best_epoch: float | None, stopped: str, monitor: str
) -> Section:
    """Learning curves: losses and metrics of the training and validation rows by epoch."""
    if not history:
        note = "This run was stored without its evaluations during training: run it again to record them."
        return Section("Training", [note])

    epochs = [float(evaluation["epoch"]) for evaluation in history]
    blocks: list[Block] = []
    for title, (drawing, curves) in learning_curves(history, best_epoch).items():
        rows = []
        for epoch, *values in zip(epochs, *curves.values(), strict=True):
            cells = ["" if value is None else number(float(value)) for value in values]
            rows.append([f"{epoch:.4g}", *cells])
        table = Table(["epoch", *curves], rows)
        blocks.append(Figure(title[0].upper() + title[1:], drawing, table))

    if best_epoch is not None:
        text = (
            f"The dashed line marks epoch {best_epoch:.4g}, whose weights were kept: the best "
            f"{shown_name(monitor)} on the validation rows. Training ended after epoch {epochs[-1]:.4g}: "
            f"{STOPPED.get(stopped, stopped)}. The training loss is the mean over the steps of an epoch, including "
            "dropout, so it is not directly comparable with the validation loss."
        )
        blocks.append(text)
    return Section("Training", blocks)


POINTS_OF_CURVE_TABLE = 11
"""From 0 to 1 in steps of .1."""


def curves_section(runs: Mapping[str, Scored]) -> Section:
    """ROC and precision-recall curves of one label, for runs on the same test rows."""
    roc_curves = {}
    precision_lines = []
    true_rates = []  # of each run, at the points of the table
    precisions = []
    points = np.linspace(0, 1, POINTS_OF_CURVE_TABLE)
    positive_rate = 0.0
    for colour, (name, rows) in enumerate(runs.items()):
        positive_rate = float(rows.y.mean())
        title = name if len(runs) > 1 else ""

        false_rate, true_rate, _ = roc_curve(rows.y, rows.score)
        roc_curves[title] = false_rate, true_rate
        true_rates.append(np.interp(points, false_rate, true_rate))

        precision, recall, _ = precision_recall_curve(rows.y, rows.score)
        # from the highest score down, without the artificial end
        precision = precision[-2::-1]
        recall = recall[-2::-1]
        precision_lines.append(Line(name=title, x=recall, y=precision, colour=colour))
        index = np.searchsorted(recall, points[1:], side="left").clip(max=len(recall) - 1)
        precisions.append(precision[index])

    names = list(runs)
    roc_columns = names if len(runs) > 1 else ["true positive rate"]
    precision_columns = names if len(runs) > 1 else ["precision"]
    roc = Figure(
        "ROC curve",
        roc_chart(roc_curves),
        _curve_table(["false positive rate", *roc_columns], points, true_rates),
        note="The dashed line is the curve of random scores.",
    )
    precision_chart = line_chart(
        precision_lines,
        "recall",
        "precision",
        title="Precision by recall",
        x_span=(0, 1),
        y_span=(0, 1),
        y_mark=positive_rate,
    )
    precision_recall = Figure(
        "Precision and recall",
        precision_chart,
        _curve_table(["recall", *precision_columns], points[1:], precisions),
        note=f"The dashed line is the positive rate, {number(positive_rate)}: the precision of random scores.",
    )
    return Section("ROC and precision-recall", [roc, precision_recall])


def _curve_table(columns: Sequence[str], points: np.ndarray, curves: Sequence[np.ndarray]) -> Table:
    """The height of each curve at some points."""
    rows = []
    for point, *values in zip(points, *curves, strict=True):
        rows.append([f"{point:.1f}", *(number(float(value)) for value in values)])
    return Table(columns, rows)
