"""What a table of metrics does not say by itself, in sentences: figures that are bad, empty or mostly noise."""

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["remarks", "remarks_on_means"]

WIDE = 0.05  # of an AUC's 95 % interval, to either side: more is worth a word


def remarks(metrics: Mapping[str, float], rows: str = "these rows") -> list[str]:
    """Sentences on the metrics of a binary label, or of several, that a reader should not pass over; often none.

    Args:
        metrics: as `binary_metrics` or `Objective.metrics` gives them; what is absent is not remarked on.
        rows: what was measured, in words.

    >>> remarks({"logloss": 0.9, "normalized_entropy": 1.3, "positive_rate": 0.5}, "test rows")
    ['On test rows the logloss 0.9000 is worse than 0.6923, that of always predicting the share of positives (50.0 %).']
    """
    found = []
    for prefix in dict.fromkeys(name.removesuffix("logloss") for name in metrics if name.endswith("logloss")):
        own = {name: metrics[prefix + name] for name in _KNOWN if prefix + name in metrics}
        if "rows" in metrics:
            own["rows"] = metrics["rows"]
        of = f"{rows}, label {prefix.removesuffix('.')!r}," if prefix else rows
        found += [f"On {of} {sentence}." for sentence in _sentences(own)]
    return found


def remarks_on_means(runs: Sequence[Mapping[str, float]], rows: str) -> list[str]:
    """`remarks` on the mean logloss and AUC of runs of one kind, for tables that show these alone.

    Args:
        runs: the metrics of each.
        rows: what was measured, in words.
    """
    shown = ("auc", "logloss", "normalized_entropy", "positive_rate", "mean_prediction")
    names = [name for name in runs[0] if name in shown]
    return remarks({name: float(np.mean([run[name] for run in runs])) for name in names}, rows)


_KNOWN = ("auc", "logloss", "normalized_entropy", "accuracy", "precision", "recall", "positive_rate", "mean_prediction")


def _sentences(own: Mapping[str, float]) -> list[str]:
    rate = own.get("positive_rate")
    if rate is None:
        return []
    if rate in (0, 1):
        which = "positive" if rate else "negative"
        return [f"all labels are {which}: there is no AUC, nor anything else that compares two classes"]
    found = [_worse_than_constant(own, rate), _decisions(own, rate), *_luck(own, rate)]
    return [sentence for sentence in found if sentence is not None]


def _worse_than_constant(own: Mapping[str, float], rate: float) -> str | None:
    ratio = own.get("normalized_entropy", 0.0)
    if ratio <= 1:
        return None
    constant = f"{own['logloss'] / ratio:.4f}, that of always predicting the share of positives ({100 * rate:.1f} %)"
    told = f"the logloss {own['logloss']:.4f} is worse than {constant}"
    mean = own.get("mean_prediction")
    if mean is not None and abs(mean - rate) > 0.1 * min(rate, 1 - rate):
        told += f"; predictions are {100 * mean:.1f} % in the mean"
    if own.get("auc", 0.5) > 0.5 + WIDE:
        told += f"; the order is of use (AUC {own['auc']:.4f}), the probabilities are not until `fieldwise calibrate`"
    return told


def _decisions(own: Mapping[str, float], rate: float) -> str | None:
    """Of precision and recall at .5 where all rows are decided alike: accuracy is then the share of one class."""
    if not {"accuracy", "precision", "recall"} <= own.keys():
        return None
    if own["recall"] == 0 and np.isclose(own["accuracy"], 1 - rate, rtol=0, atol=1e-9):
        return (
            "precision, recall and f1 are 0 because no row has a probability of 0.5 or more, as is usual where "
            f"{100 * rate:.1f} % are positive: judge by AUC and logloss, or decide by a lower threshold"
        )
    if own["recall"] == 1 and np.isclose(own["accuracy"], rate, rtol=0, atol=1e-9):
        return (
            "recall is 1 because every row has a probability of 0.5 or more, as is usual where "
            f"{100 * rate:.1f} % are positive: judge by AUC and logloss, or decide by a higher threshold"
        )
    return None


def _luck(own: Mapping[str, float], rate: float) -> list[str]:
    if not {"auc", "rows"} <= own.keys():
        return []
    positives = round(own["rows"] * rate)
    negatives = round(own["rows"]) - positives
    half, found = 1.96 * _auc_error(own["auc"], positives, negatives), []
    if half > WIDE:
        few, which = min((positives, "positive"), (negatives, "negative"))
        found.append(
            f"{few:,} of {own['rows']:,.0f} labels are {which}, so few that other rows would give an AUC up to "
            f"{half:.2f} higher or lower (95 % interval)"
        )
    if own["auc"] + half < 0.5:
        found.append("the AUC is below 0.5, so the order is upside down: check the label's rule")
    return found


def _auc_error(auc: float, positives: int, negatives: int) -> float:
    """The standard error of an AUC (Hanley and McNeil, Radiology 143, 1982), at .5 at least as wide as by chance."""
    near = min(max(auc, 1 - auc), 0.99)  # at an AUC of 1 the formula knows no error
    one, two = near / (2 - near), 2 * near**2 / (1 + near)
    spread = near * (1 - near) + (positives - 1) * (one - near**2) + (negatives - 1) * (two - near**2)
    return float(np.sqrt(spread / max(positives * negatives, 1)))
