"""Explanations of metrics for readers who do not know them: sentences, and a chart of the probabilities."""

import numpy as np

from fieldwise.evaluation import binary_metrics, mae, rmse, sigmoid
from fieldwise.evaluation.reliability import Reliability, reliability
from fieldwise.evaluation.words import INTERVALS, binary_words, regression_words
from fieldwise.report.blocks import Block, Figure, Note, Section, Table, Words, count, number, percent
from fieldwise.report.charts import Pair, paired_bars
from fieldwise.report.runs import Scored
from fieldwise.schema.label import Label

__all__ = ["picture", "words_section"]

TENTHS = 10
FEW_BINS = 4  # with fewer non-empty bins of 10 %, bins of equal count are used
ENDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
NAMES = {
    "auc": "AUC",
    "gauc": "group AUC",
    "logloss": "logloss",
    "ece": "calibration error",
    "mean_prediction": "mean prediction",
    "precision": "precision at .5",
    "recall": "recall at .5",
    "accuracy": "accuracy at .5",
    "rmse": "RMSE",
    "mae": "MAE",
}
SHARES = ("mean_prediction", "precision", "recall", "accuracy")


def words_section(rows: Scored, group: np.ndarray | None, label: Label) -> Section:
    """A sentence about each metric of a label on the test rows; for a binary label also a chart."""
    blocks: list[Block] = []
    if label.task == "binary":
        metrics = binary_metrics(rows.y, rows.score, group=group)
        said = binary_words(metrics, label)
        blocks.append(Note(text=f"Predicted is the {label.meaning}; such rows are called positive."))
        if metrics["normalized_entropy"] >= 1:
            text = "These probabilities are worse than always predicting the share of positives: do not use them yet."
            blocks.append(Note(text=text, warns=True))
    else:
        metrics = {"rmse": rmse(rows.y, rows.score), "mae": mae(rows.y, rows.score)}
        said = regression_words(metrics, label, spread=float(np.std(rows.y)))
    figures = {name: percent(metrics[name]) if name in SHARES else number(metrics[name]) for name in said}
    blocks.append(Words(rows=[(f"{NAMES[name]}: {figures[name]}", words) for name, words in said.items()]))
    blocks.append(Note(text=INTERVALS))
    if label.task == "binary":
        blocks.append(picture(rows.y, sigmoid(rows.score)))
    return Section(title="In plain words", blocks=blocks)


def picture(y: np.ndarray, p: np.ndarray) -> Figure:
    """A chart of predicted and observed shares, for rows with similar predictions."""
    bins, how = reliability(y, p, bins=TENTHS, binning="width"), "Rows are grouped in steps of 10 %"
    if len(bins.rows) < FEW_BINS:
        bins, how = reliability(y, p, bins=TENTHS), "Rows are grouped by prediction, equally many each"
    highest = max(float(bins.predicted.max()), float(bins.high.max()))
    most = next(end for end in ENDS if highest <= end or end == 1.0)
    digits = 0 if most > 0.2 else 1 if most > 0.02 else 2
    found = list(zip(bins.predicted, bins.observed, bins.low, bins.high, bins.rows, strict=True))
    pairs = [
        Pair(name=_share(a, digits), first=a, second=b, low=c, high=d, words=f"{_share(b, digits)} of {count(n)}")
        for a, b, c, d, n in found
    ]
    table = Table(
        columns=["predicted, mean", "positive", "95 % interval", "rows"],
        rows=[[percent(a), percent(b), f"{percent(c)} to {percent(d)}", count(n)] for a, b, c, d, n in found],
    )
    title = "Predicted and observed"
    names = "mean prediction", "observed share of positives"
    drawing = paired_bars(pairs, names, title=f"{title}: shares by prediction", most=most)
    note = (
        f"{_sentence(bins, digits)} {how}. Two bars of equal length mean a correct prediction; if the upper one is "
        "longer, "
        "the model predicts too much, if it is shorter, too little. The thin line is the 95 % interval of the lower "
        "bar, which is wider with fewer rows."
    )
    return Figure(title=title, drawing=drawing, table=table, note=note)


def _share(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f} %"


def _sentence(bins: Reliability, digits: int) -> str:
    """A sentence about the bin with the most rows, if possible not the first or last."""
    inner = (bins.predicted >= 0.2) & (bins.predicted <= 0.8)
    one = int(np.argmax(np.where(inner | ~inner.any(), bins.rows, 0)))
    said, true = _share(bins.predicted[one], digits), _share(bins.observed[one], digits)
    within = bins.low[one] <= bins.predicted[one] <= bins.high[one]
    chance = "which chance explains" if within else "which chance does not explain"
    return f"Of the {count(bins.rows[one])} rows predicted at about {said}, {true} were positive, {chance}."
