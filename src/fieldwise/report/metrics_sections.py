"""The sections on a label's metrics: in plain words, with intervals, learning curves, ROC and precision-recall."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import precision_recall_curve, roc_curve

from fieldwise.charts import Axis, Line, line_chart
from fieldwise.display import Table, number
from fieldwise.evaluation import binary_metrics, regression_metrics
from fieldwise.evaluation.bootstrap import estimate, resampled, resampled_groups
from fieldwise.evaluation.metrics import (
    Aspect,
    Metric,
    metrics_of,
    scored_rows,
    shown_name,
    values_of,
)
from fieldwise.evaluation.ranking import roc_chart
from fieldwise.evaluation.slices import share_interval
from fieldwise.evaluation.words import INTERVALS, binary_words, regression_words
from fieldwise.report.calibration_section import picture
from fieldwise.report.page import (
    Block,
    Caution,
    Figure,
    Section,
    count,
    interval_text,
    percent,
)
from fieldwise.runs.leaderboard import replicates_for
from fieldwise.runs.records import LabelScores
from fieldwise.schema import Label
from fieldwise.schema.label import Task
from fieldwise.training.history import STOPPED, learning_curves

METRICS_AT_HALF = ("precision", "recall", "accuracy")
"""Those with a threshold of .5."""
NAMES_IN_WORDS = {
    "ece": "calibration error",
    "mean_prediction": "mean prediction",
}


def words_section(
    rows: LabelScores, group: np.ndarray | None, label: Label, meaning: str | None = None
) -> Section:
    """A sentence about each metric of a label on the test rows; for a binary label also a chart.

    `meaning` is that of a prediction, if it is another than the label's.
    """
    blocks: list[Block] = []
    if label.task == "binary":
        metrics = binary_metrics(rows.y, rows.score, group=group, weight=rows.weight)
        sentences = binary_words(metrics, label)
        blocks.append(
            f"Predicted is the {meaning or label.meaning}; such rows are called positive."
        )
        if metrics["normalized_entropy"] >= 1:
            text = "These probabilities are worse than always predicting the share of positives: do not use them yet."
            blocks.append(Caution(text))
    else:
        metrics = regression_metrics(rows.y, rows.score, weight=rows.weight)
        sentences = regression_words(metrics, label, spread=_spread(rows))

    explained: dict[str, str] = {}
    for name, sentence in sentences.items():
        is_share = name == "mean_prediction" or name in METRICS_AT_HALF
        value = percent(metrics[name]) if is_share else number(metrics[name])
        explained[f"{NAMES_IN_WORDS.get(name, shown_name(name))}: {value}"] = sentence
    blocks += [explained, INTERVALS]

    if label.task == "binary":
        blocks.append(picture(rows))
    return Section("In plain words", blocks)


ASPECTS_IN_TABLE: tuple[Aspect, ...] = ("ranking", "probability", "constant", "decision", "error")
FACTS_OF_ROWS = {
    "positive_rate": "positive rate",
    "mean_target": "mean target",
    "mean_prediction": "mean prediction",
    "rows": "rows",
}
"""The title of each figure of the rows, in the order in which they follow the metrics in the table."""
KEY_FIGURES = 2
"""The number of a task's metrics that stand at the head of a run, the first ones."""


def metrics_section(
    rows: LabelScores,
    group: np.ndarray | None,
    binary: bool,
    best: Mapping[str, float] | None,
    seed: int,
) -> tuple[Section, list[tuple[str, str, str]]]:
    """All metrics of a label on the test rows, and the first ones as facts: name, value, interval."""
    task: Task = "binary" if binary else "regression"
    metrics = metrics_of(task)
    values = _values(rows, group, task)
    intervals = _intervals_of_shares(rows) if binary else {}
    replicates = replicates_for(len(rows.y))
    for metric in metrics:
        if metric.interval and metric.name in values:
            draws = _replicates(metric, rows, group, replicates, seed)
            result = estimate([values[metric.name]], draws, least=metric.least, most=metric.most)
            intervals[metric.name] = interval_text(result)

    cells = _metric_cells(metrics, values, intervals)
    facts = [cells[metric.name] for metric in metrics[:KEY_FIGURES] if metric.name in cells]
    table = []
    for name, row in cells.items():
        if best is None:
            table.append([*row])
        else:
            is_of_scores = name in best and name not in ("rows", "positive_rate")
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


def _values(rows: LabelScores, group: np.ndarray | None, task: Task) -> dict[str, float]:
    """All metrics of a label, and the figures of its rows."""
    if task == "binary":
        values = binary_metrics(rows.y, rows.score, group=group, weight=rows.weight)
    else:
        values = regression_metrics(rows.y, rows.score, group=group, weight=rows.weight)
        values["mean_target"] = float(np.average(rows.y, weights=rows.weight))
        values["mean_prediction"] = float(np.average(rows.score, weights=rows.weight))
    checked_rows = scored_rows(rows.y, rows.score, task, group=group, weight=rows.weight)
    others = [metric for metric in metrics_of(task) if not metric.evaluated]
    return values | values_of(others, checked_rows)


def _replicates(
    metric: Metric, rows: LabelScores, group: np.ndarray | None, replicates: int, seed: int
) -> np.ndarray:
    """Bootstrap replicates of a metric, over rows or over groups, [R]."""
    if metric.group_values is None:
        draws = resampled(
            rows.y,
            rows.score[None],
            metric.name,
            weight=rows.weight,
            replicates=replicates,
            seed=seed,
        )
        return draws[:, 0]
    assert group is not None
    values, weights = metric.group_values(rows.y, rows.score, group, rows.weight)
    return resampled_groups(values, weights, replicates=replicates, seed=seed)


def _metric_cells(
    metrics: Sequence[Metric], values: Mapping[str, float], intervals: Mapping[str, str]
) -> dict[str, tuple[str, str, str]]:
    """The title, value and interval of each metric and figure of the rows, by its name, in the table's order."""
    titles = {}
    for metric in sorted(metrics, key=lambda metric: ASPECTS_IN_TABLE.index(metric.aspect)):
        titles[metric.name] = metric.long_title or metric.title
    titles |= FACTS_OF_ROWS

    cells = {}
    for name, title in titles.items():
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


def _intervals_of_shares(rows: LabelScores) -> dict[str, str]:
    """Wilson's intervals of the metrics and figures of a binary label that are shares of rows."""
    is_positive = rows.y == 1
    is_predicted = rows.score >= 0
    every_row = np.ones(len(rows.y), bool)
    shares = {
        "accuracy": (is_positive == is_predicted, every_row),
        "precision": (is_positive & is_predicted, is_predicted),
        "recall": (is_positive & is_predicted, is_positive),
        "positive_rate": (is_positive, every_row),
    }
    intervals = {}
    for name, (is_counted, is_in_share) in shares.items():
        if is_in_share.any():
            weight = None if rows.weight is None else rows.weight[is_in_share]
            share = share_interval(is_counted[is_in_share], weight)
            intervals[name] = f"{number(share.low)} to {number(share.high)}"
    return intervals


def _spread(rows: LabelScores) -> float:
    """The RMSE of always predicting the mean of the targets, by the rows' weights."""
    mean = np.average(rows.y, weights=rows.weight)
    return float(np.sqrt(np.average((rows.y - mean) ** 2, weights=rows.weight)))


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


def curves_section(runs: Mapping[str, LabelScores]) -> Section:
    """ROC and precision-recall curves of one label, for runs on the same test rows."""
    roc_curves = {}
    precision_lines = []
    true_rates = []  # of each run, at the points of the table
    precisions = []
    points = np.linspace(0, 1, POINTS_OF_CURVE_TABLE)
    positive_rate = 0.0
    for colour, (name, rows) in enumerate(runs.items()):
        positive_rate = float(np.average(rows.y, weights=rows.weight))
        title = name if len(runs) > 1 else ""

        false_rate, true_rate, _ = roc_curve(rows.y, rows.score, sample_weight=rows.weight)
        roc_curves[title] = false_rate, true_rate
        true_rates.append(np.interp(points, false_rate, true_rate))

        precision, recall, _ = precision_recall_curve(rows.y, rows.score, sample_weight=rows.weight)
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
        Axis(label="recall", span=(0, 1)),
        Axis(label="precision", span=(0, 1), mark=positive_rate),
        title="Precision by recall",
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
