"""Explanations of metrics, one plain sentence each, for readers who do not know their names."""

from collections.abc import Mapping

from fieldwise.schema.label import Label

__all__ = ["INTERVALS", "binary_words", "of_100", "regression_words"]

INTERVALS = (
    "An interval shows the effect of chance: with other test rows from the same source the figure would differ, and "
    "95 of 100 such intervals contain the true value."
)


def of_100(share: float) -> str:
    """A share as a number out of 100, with a decimal only close to 0 or 100.

    >>> of_100(0.8412), of_100(0.004), of_100(0.9991), of_100(1.0)
    ('84', '0.4', '99.9', '100')
    """
    close = 0 < share < 0.01 or 0.99 < share < 1
    return f"{100 * share:.1f}" if close else f"{100 * share:.0f}"


def binary_words(metrics: Mapping[str, float], label: Label) -> dict[str, str]:
    """A sentence about each metric of a binary label, by name.

    Args:
        metrics: all or some of the metrics of `binary_metrics`.
        label: defines which rows are positive.

    >>> found = binary_words({"auc": 0.8412, "positive_rate": 0.58}, Label("rating", positive_above=3))
    >>> found["auc"][:93]
    'Of a row with a rating above 3 and one without, sampled at random, the model scores the first'
    >>> found["auc"][94:]
    'higher 84 times of 100; guessing does 50 times.'
    """
    found: dict[str, str] = {}
    rule = label.rule or "a positive label"
    pair = f"a row with {rule} and one without" if not rule.startswith("“") else f"a row where {rule} and one where not"
    if "auc" in metrics:
        found["auc"] = (
            f"Of {pair}, sampled at random, the model scores the first higher {of_100(metrics['auc'])} times of 100; "
            "guessing does 50 times."
        )
    if "gauc" in metrics:
        found["gauc"] = (
            f"The same if both rows belong to one group, such as a user: {of_100(metrics['gauc'])} times of 100."
        )
    if {"logloss", "normalized_entropy"} <= metrics.keys():
        found["logloss"] = _logloss(metrics)
    if "ece" in metrics:
        found["ece"] = (
            "Among rows with similar predictions, the share of positives differs from the prediction by "
            f"{100 * metrics['ece']:.1f} percentage points on average; 0 is best."
        )
    if {"mean_prediction", "positive_rate"} <= metrics.keys():
        found["mean_prediction"] = (
            f"Over all rows the model expects {of_100(metrics['mean_prediction'])} of 100 to be positive; "
            f"{of_100(metrics['positive_rate'])} of 100 are."
        )
    return found | _at_half(metrics)


def _logloss(metrics: Mapping[str, float]) -> str:
    """Logloss compared with always predicting the rows' positive rate."""
    loss, entropy = metrics["logloss"], metrics["normalized_entropy"]
    rate = f" ({of_100(metrics['positive_rate'])} of 100)" if "positive_rate" in metrics else ""
    if not entropy > 0:
        return f"The penalty for wrong probabilities: {loss:.3f}, 0 at best."
    less = 100 * abs(1 - entropy)
    better = f"{less:.0f} % less" if entropy < 1 else f"{less:.0f} % more, so the model is worse than no model"
    if less < 0.5:
        better = "the same, so the model is no better"
    return (
        f"The penalty for wrong probabilities: {loss:.3f}. Always predicting the share of positives"
        f"{rate} costs {loss / entropy:.3f}; the model costs {better}."
    )


def _at_half(metrics: Mapping[str, float]) -> dict[str, str]:
    """Sentences on the decisions at a threshold of 50 %."""
    found: dict[str, str] = {}
    says_none = metrics.get("precision") == 0 and metrics.get("recall") == 0
    if says_none:
        rate = metrics.get("positive_rate")
        rare = "" if rate is None else f", as is usual where {of_100(rate)} of 100 rows are positive"
        found["precision"] = found["recall"] = (
            f"With a threshold of 50 %, no row that it predicts positive is, or it predicts none{rare}: rank "
            "by the score, or use another threshold."
        )
    elif {"precision", "recall"} <= metrics.keys():
        found["precision"] = (
            f"Of the rows that it predicts at 50 % or more, {of_100(metrics['precision'])} of 100 are positive."
        )
        found["recall"] = f"Of the positive rows it predicts {of_100(metrics['recall'])} of 100 at 50 % or more."
    if {"accuracy", "positive_rate"} <= metrics.keys():
        usual = max(metrics["positive_rate"], 1 - metrics["positive_rate"])
        found["accuracy"] = (
            f"With a threshold of 50 % it is right for {of_100(metrics['accuracy'])} of 100 rows; always predicting "
            "the "
            f"more frequent class is right for {of_100(usual)}."
        )
    return found


def regression_words(metrics: Mapping[str, float], label: Label, *, spread: float | None = None) -> dict[str, str]:
    """A sentence about each metric of a regression label, by name.

    Args:
        metrics: `rmse` and `mae`, or one of them.
        label: what is predicted.
        spread: the targets' standard deviation, which is the RMSE of always predicting their mean.

    >>> regression_words({"mae": 0.71}, Label("rating", task="regression", range=(1, 5)))["mae"]
    'On average a prediction is 0.71 off, of “rating” from 1 to 5.'
    """
    found: dict[str, str] = {}
    of = f"“{label.column}”"
    if label.range is not None:
        of += f" from {label.range[0]:g} to {label.range[1]:g}"
    if "mae" in metrics:
        found["mae"] = f"On average a prediction is {metrics['mae']:.3g} off, of {of}."
    if "rmse" in metrics:
        words = f"A typical error, large ones counted more, is {metrics['rmse']:.3g}, of {of}"
        if spread is not None and spread > 0:
            share = 100 * abs(1 - metrics["rmse"] / spread)
            better = "smaller" if metrics["rmse"] < spread else "larger, so the model is worse than no model"
            words += f"; always predicting the mean has {spread:.3g}, the model's is {share:.0f} % {better}"
        found["rmse"] = f"{words}."
    return found
