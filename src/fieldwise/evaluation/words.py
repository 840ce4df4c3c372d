"""Sentences on metrics: plain explanations, and remarks on values that are bad, meaningless or mostly noise."""

from collections.abc import Mapping, Sequence

import numpy as np

from fieldwise.evaluation.ranking import auc_standard_error
from fieldwise.schema import Label

WIDE_HALF_INTERVAL = 0.05
"""Of an AUC's 95 % interval: above it a remark is made."""

INTERVALS = (
    "An interval shows the effect of chance: with other test rows from the same source the figure would differ, and "
    "95 of 100 such intervals contain the true value."
)


def of_100(share: float) -> str:
    """A share as a number out of 100, with a decimal only close to 0 or 100."""
    close = 0 < share < 0.01 or 0.99 < share < 1
    return f"{100 * share:.1f}" if close else f"{100 * share:.0f}"


def binary_words(metrics: Mapping[str, float], label: Label) -> dict[str, str]:
    """A sentence about each of the metrics of a binary label, by name, all or some of those of `binary_metrics`.

    >>> result = binary_words({"auc": 0.8412, "positive_rate": 0.58}, Label("rating", positive_above=3))
    >>> result["auc"][:93]
    'Of a row with a rating above 3 and one without, sampled at random, the model scores the first'
    """
    sentences: dict[str, str] = {}
    rate = metrics.get("positive_rate")
    if "auc" in metrics:
        sentences["auc"] = _auc_sentence(metrics["auc"], label)
    if "gauc" in metrics:
        sentences["gauc"] = (
            f"The same if both rows belong to one group, such as a user: {of_100(metrics['gauc'])} times of 100."
        )
    if {"logloss", "normalized_entropy"} <= metrics.keys():
        loss = metrics["logloss"]
        sentences["logloss"] = _logloss_sentence(loss, metrics["normalized_entropy"], rate)
    if "ece" in metrics:
        sentences["ece"] = (
            "Among rows with similar predictions, the share of positives differs from the prediction by "
            f"{100 * metrics['ece']:.1f} percentage points on average; 0 is best."
        )
    if "mean_prediction" in metrics and rate is not None:
        sentences["mean_prediction"] = (
            f"Over all rows the model expects {of_100(metrics['mean_prediction'])} of 100 to be positive; "
            f"{of_100(rate)} of 100 are."
        )
    sentences |= _threshold_sentences(metrics, rate)
    return sentences


def _auc_sentence(auc: float, label: Label) -> str:
    rule = label.rule or "a positive label"
    pair = f"a row with {rule} and one without"
    if label.rule_is_clause:
        pair = f"a row where {rule} and one where not"
    return (
        f"Of {pair}, sampled at random, the model scores the first higher {of_100(auc)} times of 100; "
        "guessing does 50 times."
    )


def _logloss_sentence(loss: float, entropy: float, rate: float | None) -> str:
    """The logloss, compared with that of a constant prediction, `loss / entropy`."""
    if not entropy > 0:
        return f"The penalty for wrong probabilities: {loss:.3f}, 0 at best."
    percent = 100 * abs(1 - entropy)
    comparison = f"{percent:.0f} % more, so the model is worse than no model"
    if percent < 0.5:
        comparison = "the same, so the model is no better"
    elif entropy < 1:
        comparison = f"{percent:.0f} % less"
    share = "" if rate is None else f" ({of_100(rate)} of 100)"
    return (
        f"The penalty for wrong probabilities: {loss:.3f}. Always predicting the share of positives{share} "
        f"costs {loss / entropy:.3f}; the model costs {comparison}."
    )


def _threshold_sentences(metrics: Mapping[str, float], rate: float | None) -> dict[str, str]:
    """A sentence about each of precision, recall and accuracy, of a threshold of 50 %."""
    sentences: dict[str, str] = {}
    if metrics.get("precision") == 0 and metrics.get("recall") == 0:
        rare = ""
        if rate is not None:
            rare = f", as is usual where {of_100(rate)} of 100 rows are positive"
        none_found = (
            f"With a threshold of 50 %, no row that it predicts positive is, or it predicts none{rare}: rank "
            "by the score, or use another threshold."
        )
        sentences["precision"] = none_found
        sentences["recall"] = none_found
    elif {"precision", "recall"} <= metrics.keys():
        sentences["precision"] = (
            f"Of the rows that it predicts at 50 % or more, {of_100(metrics['precision'])} of 100 are positive."
        )
        sentences["recall"] = (
            f"Of the positive rows it predicts {of_100(metrics['recall'])} of 100 at 50 % or more."
        )
    if "accuracy" in metrics and rate is not None:
        sentences["accuracy"] = (
            f"With a threshold of 50 % it is right for {of_100(metrics['accuracy'])} of 100 rows; always predicting "
            f"the more frequent class is right for {of_100(max(rate, 1 - rate))}."
        )
    return sentences


def regression_words(
    metrics: Mapping[str, float], label: Label, *, spread: float | None = None
) -> dict[str, str]:
    """A sentence about each of `rmse` and `mae`; `spread` is the RMSE of always predicting the targets' mean.

    >>> regression_words({"mae": 0.71}, Label("rating", task="regression", range=(1, 5)))["mae"]
    'On average a prediction is 0.71 off, of “rating” from 1 to 5.'
    """
    target = f"“{label.column}”"
    if label.range is not None:
        low, high = label.range
        target += f" from {low:g} to {high:g}"

    sentences: dict[str, str] = {}
    if "mae" in metrics:
        sentences["mae"] = f"On average a prediction is {metrics['mae']:.3g} off, of {target}."
    if "rmse" in metrics:
        rmse = metrics["rmse"]
        words = f"A typical error, large ones counted more, is {rmse:.3g}, of {target}"
        if spread is not None and spread > 0:
            comparison = "larger, so the model is worse than no model"
            if rmse < spread:
                comparison = "smaller"
            percent = 100 * abs(1 - rmse / spread)
            words += f"; always predicting the mean has {spread:.3g}, the model's is {percent:.0f} % {comparison}"
        sentences["rmse"] = f"{words}."
    return sentences


def remarks(metrics: Mapping[str, float], rows: str = "these rows") -> list[str]:
    """Warning sentences on the metrics of `rows`, of a binary label or of several labels; often none.

    >>> remarks({"logloss": 0.9, "normalized_entropy": 1.3, "positive_rate": 0.5}, "test rows")
    ['On test rows the logloss 0.9000 is worse than 0.6923, that of always predicting the share of positives (50.0 %).']
    """
    losses = [name for name in metrics if name.endswith("logloss")]
    prefixes = dict.fromkeys(name.removesuffix("logloss") for name in losses)
    sentences = []
    for prefix in prefixes:
        of_label = {
            name.removeprefix(prefix): value
            for name, value in metrics.items()
            if name.startswith(prefix)
        }
        if "rows" in metrics:
            of_label["rows"] = metrics["rows"]
        subject = f"{rows}, label {prefix.removesuffix('.')!r}," if prefix else rows
        sentences += [f"On {subject} {sentence}." for sentence in _sentences(of_label)]
    return sentences


def remarks_on_means(runs: Sequence[Mapping[str, float]], rows: str) -> list[str]:
    """`remarks` on the mean logloss and AUC of several runs, for tables that show only these."""
    shown = ("auc", "logloss", "normalized_entropy", "positive_rate", "mean_prediction")
    names = [name for name in runs[0] if name in shown]
    return remarks({name: float(np.mean([run[name] for run in runs])) for name in names}, rows)


MAX_DIGITS = 12
"""Of a logloss that is compared with another, which needs more than four digits to differ."""


def _sentences(metrics: Mapping[str, float]) -> list[str]:
    """Remarks on one label's metrics."""
    rate = metrics.get("positive_rate")
    if rate is None:
        return []
    if rate in (0, 1):
        which = "positive" if rate else "negative"
        return [
            f"all labels are {which}: AUC and other metrics that compare two classes are undefined"
        ]
    sentences = []
    if metrics.get("normalized_entropy", 0.0) > 1:
        sentences.append(_worse_than_constant(metrics, rate))
    if {"accuracy", "precision", "recall"} <= metrics.keys():
        sentences += _one_predicted_class(metrics, rate)
    if "auc" in metrics and "rows" in metrics:
        positives = metrics.get("positive_rows", round(metrics["rows"] * rate))
        sentences += _uncertain_auc(metrics["auc"], round(metrics["rows"]), round(positives))
    return sentences


def _worse_than_constant(metrics: Mapping[str, float], rate: float) -> str:
    """That the logloss is above that of the share of positives, with as many digits as show it."""
    loss = metrics["logloss"]
    constant_loss = loss / metrics["normalized_entropy"]
    digits = 4
    while digits < MAX_DIGITS and f"{loss:.{digits}f}" == f"{constant_loss:.{digits}f}":
        digits += 1
    text = (
        f"the logloss {loss:.{digits}f} is worse than {constant_loss:.{digits}f}, that of always predicting the share "
        f"of positives ({100 * rate:.1f} %)"
    )
    mean = metrics.get("mean_prediction")
    if mean is not None and abs(mean - rate) > 0.1 * min(rate, 1 - rate):
        text += f"; the mean prediction is {100 * mean:.1f} %"
    auc = metrics.get("auc")
    if auc is not None and auc > 0.5 + WIDE_HALF_INTERVAL:
        text += f"; the ranking is useful (AUC {auc:.4f}), the probabilities need `fieldwise evaluate --calibrate`"
    return text


def _one_predicted_class(metrics: Mapping[str, float], rate: float) -> list[str]:
    """That all rows are predicted alike at .5: accuracy is then the share of one class."""

    def is_accuracy(share: float) -> bool:
        return bool(np.isclose(metrics["accuracy"], share, rtol=0, atol=1e-9))

    usual = f"as is usual where {100 * rate:.1f} % are positive: use AUC and logloss"
    sentences = []
    if metrics["recall"] == 0 and is_accuracy(1 - rate):
        sentences.append(
            f"precision, recall and f1 are 0 because no row has a probability of 0.5 or more, {usual}, or a lower "
            "threshold"
        )
    if metrics["recall"] == 1 and is_accuracy(rate):
        sentences.append(
            f"recall is 1 because every row has a probability of 0.5 or more, {usual}, or a higher threshold"
        )
    return sentences


def _uncertain_auc(auc: float, rows: int, positives: int) -> list[str]:
    """That the AUC's interval is wide, or all of it below .5."""
    negatives = rows - positives
    half_interval = 1.96 * auc_standard_error(auc, positives, negatives)
    sentences = []
    if half_interval > WIDE_HALF_INTERVAL:
        few, which = min((positives, "positive"), (negatives, "negative"))
        sentences.append(
            f"{few:,} of {rows:,} labels are {which}, so few that other rows would give an AUC up to "
            f"{half_interval:.2f} higher or lower (95 % interval)"
        )
    if auc + half_interval < 0.5:
        sentences.append("the AUC is below 0.5, so the ranking is reversed: check the label's rule")
    return sentences
