"""Sentences on metrics: plain explanations, and remarks on values that are bad, meaningless or mostly noise."""

from collections.abc import Mapping, Sequence

import numpy as np

from fieldwise.schema import Label

WIDE = 0.05  # half-width of an AUC's 95 % interval above which a remark is made

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
    results: dict[str, str] = {}
    rule = label.rule or "a positive label"
    pair = (
        f"a row with {rule} and one without"
        if not rule.startswith("“")
        else f"a row where {rule} and one where not"
    )
    if "auc" in metrics:
        results["auc"] = (
            f"Of {pair}, sampled at random, the model scores the first higher {of_100(metrics['auc'])} times of 100; "
            "guessing does 50 times."
        )
    if "gauc" in metrics:
        results["gauc"] = (
            f"The same if both rows belong to one group, such as a user: {of_100(metrics['gauc'])} times of 100."
        )
    rate = metrics.get("positive_rate")
    if {"logloss", "normalized_entropy"} <= metrics.keys():
        loss = metrics["logloss"]
        entropy = metrics["normalized_entropy"]
        results["logloss"] = f"The penalty for wrong probabilities: {loss:.3f}, 0 at best."
        if entropy > 0:
            less = 100 * abs(1 - entropy)
            better = (
                f"{less:.0f} % less"
                if entropy < 1
                else f"{less:.0f} % more, so the model is worse than no model"
            )
            better = "the same, so the model is no better" if less < 0.5 else better
            share = "" if rate is None else f" ({of_100(rate)} of 100)"
            results["logloss"] = (
                f"The penalty for wrong probabilities: {loss:.3f}. Always predicting the share of positives{share} "
                f"costs {loss / entropy:.3f}; the model costs {better}."
            )
    if "ece" in metrics:
        results["ece"] = (
            "Among rows with similar predictions, the share of positives differs from the prediction by "
            f"{100 * metrics['ece']:.1f} percentage points on average; 0 is best."
        )
    if "mean_prediction" in metrics and rate is not None:
        results["mean_prediction"] = (
            f"Over all rows the model expects {of_100(metrics['mean_prediction'])} of 100 to be positive; "
            f"{of_100(rate)} of 100 are."
        )
    if metrics.get("precision") == 0 and metrics.get("recall") == 0:
        rare = (
            "" if rate is None else f", as is usual where {of_100(rate)} of 100 rows are positive"
        )
        results["precision"] = results["recall"] = (
            f"With a threshold of 50 %, no row that it predicts positive is, or it predicts none{rare}: rank "
            "by the score, or use another threshold."
        )
    elif {"precision", "recall"} <= metrics.keys():
        results["precision"] = (
            f"Of the rows that it predicts at 50 % or more, {of_100(metrics['precision'])} of 100 are positive."
        )
        results["recall"] = (
            f"Of the positive rows it predicts {of_100(metrics['recall'])} of 100 at 50 % or more."
        )
    if "accuracy" in metrics and rate is not None:
        results["accuracy"] = (
            f"With a threshold of 50 % it is right for {of_100(metrics['accuracy'])} of 100 rows; always predicting "
            f"the more frequent class is right for {of_100(max(rate, 1 - rate))}."
        )
    return results


def regression_words(
    metrics: Mapping[str, float], label: Label, *, spread: float | None = None
) -> dict[str, str]:
    """A sentence about each of `rmse` and `mae`; `spread` is the RMSE of always predicting the targets' mean.

    >>> regression_words({"mae": 0.71}, Label("rating", task="regression", range=(1, 5)))["mae"]
    'On average a prediction is 0.71 off, of “rating” from 1 to 5.'
    """
    results: dict[str, str] = {}
    of = f"“{label.column}”"
    if label.range is not None:
        of += f" from {label.range[0]:g} to {label.range[1]:g}"
    if "mae" in metrics:
        results["mae"] = f"On average a prediction is {metrics['mae']:.3g} off, of {of}."
    if "rmse" in metrics:
        words = f"A typical error, large ones counted more, is {metrics['rmse']:.3g}, of {of}"
        if spread is not None and spread > 0:
            share = 100 * abs(1 - metrics["rmse"] / spread)
            better = (
                "smaller"
                if metrics["rmse"] < spread
                else "larger, so the model is worse than no model"
            )
            words += f"; always predicting the mean has {spread:.3g}, the model's is {share:.0f} % {better}"
        results["rmse"] = f"{words}."
    return results


def remarks(metrics: Mapping[str, float], rows: str = "these rows") -> list[str]:
    """Warning sentences on the metrics of `rows`, of a binary label or of several labels; often none.

    >>> remarks({"logloss": 0.9, "normalized_entropy": 1.3, "positive_rate": 0.5}, "test rows")
    ['On test rows the logloss 0.9000 is worse than 0.6923, that of always predicting the share of positives (50.0 %).']
    """
    results = []
    for prefix in dict.fromkeys(
        name.removesuffix("logloss") for name in metrics if name.endswith("logloss")
    ):
        own = {name: metrics[prefix + name] for name in _KNOWN if prefix + name in metrics}
        if "rows" in metrics:
            own["rows"] = metrics["rows"]
        of = f"{rows}, label {prefix.removesuffix('.')!r}," if prefix else rows
        results += [f"On {of} {sentence}." for sentence in _sentences(own)]
    return results


def remarks_on_means(runs: Sequence[Mapping[str, float]], rows: str) -> list[str]:
    """`remarks` on the mean logloss and AUC of several runs, for tables that show only these."""
    shown = ("auc", "logloss", "normalized_entropy", "positive_rate", "mean_prediction")
    names = [name for name in runs[0] if name in shown]
    return remarks({name: float(np.mean([run[name] for run in runs])) for name in names}, rows)


MOST_DIGITS = 12
"""Of a logloss that is compared with another, which needs more than four digits to differ."""
_KNOWN = (
    "auc",
    "logloss",
    "normalized_entropy",
    "accuracy",
    "precision",
    "recall",
    "positive_rate",
    "mean_prediction",
)


def _sentences(own: Mapping[str, float]) -> list[str]:
    """Remarks on one label's metrics."""
    rate = own.get("positive_rate")
    if rate is None:
        return []
    if rate in (0, 1):
        which = "positive" if rate else "negative"
        return [
            f"all labels are {which}: AUC and other metrics that compare two classes are undefined"
        ]
    result = []
    auc = own.get("auc")
    ratio = own.get("normalized_entropy", 0.0)
    if ratio > 1:
        digits = 4
        while (
            digits < MOST_DIGITS
            and f"{own['logloss']:.{digits}f}" == f"{own['logloss'] / ratio:.{digits}f}"
        ):
            digits += 1
        constant = (
            f"{own['logloss'] / ratio:.{digits}f}, that of always predicting the share of positives"
        )
        text = (
            f"the logloss {own['logloss']:.{digits}f} is worse than {constant} ({100 * rate:.1f} %)"
        )
        mean = own.get("mean_prediction")
        if mean is not None and abs(mean - rate) > 0.1 * min(rate, 1 - rate):
            text += f"; the mean prediction is {100 * mean:.1f} %"
        if auc is not None and auc > 0.5 + WIDE:
            text += f"; the ranking is useful (AUC {auc:.4f}), the probabilities need `fieldwise evaluate --calibrate`"
        result.append(text)
    if {"accuracy", "precision", "recall"} <= own.keys():
        # If all rows are predicted alike at .5, accuracy is the share of one class.
        for recall, share, what, every, bound in (
            (0, 1 - rate, "precision, recall and f1 are 0", "no", "lower"),
            (1, rate, "recall is 1", "every", "higher"),
        ):
            if own["recall"] == recall and np.isclose(own["accuracy"], share, rtol=0, atol=1e-9):
                result.append(
                    f"{what} because {every} row has a probability of 0.5 or more, as is usual where "
                    f"{100 * rate:.1f} % are positive: use AUC and logloss, or a {bound} threshold"
                )
    if auc is not None and "rows" in own:
        positives = round(own["rows"] * rate)
        negatives = round(own["rows"]) - positives
        # The standard error of an AUC (Hanley and McNeil, Radiology 143, 1982), with AUCs below .5
        # mirrored.
        area = min(max(auc, 1 - auc), 0.99)  # the formula gives 0 at an AUC of 1
        one = area / (2 - area)
        two = 2 * area**2 / (1 + area)
        spread = (
            area * (1 - area)
            + (positives - 1) * (one - area**2)
            + (negatives - 1) * (two - area**2)
        )
        half = 1.96 * float(np.sqrt(spread / max(positives * negatives, 1)))
        if half > WIDE:
            few, which = min((positives, "positive"), (negatives, "negative"))
            result.append(
                f"{few:,} of {own['rows']:,.0f} labels are {which}, so few that other rows would give an AUC up to "
                f"{half:.2f} higher or lower (95 % interval)"
            )
        if auc + half < 0.5:
            result.append(
                "the AUC is below 0.5, so the ranking is reversed: check the label's rule"
            )
    return result
