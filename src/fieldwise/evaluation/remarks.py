"""Remarks on metrics: sentences on values that are bad, meaningless or mostly noise."""

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["remarks", "remarks_on_means"]

WIDE = 0.05  # half-width of an AUC's 95 % interval above which a remark is made


def remarks(metrics: Mapping[str, float], rows: str = "these rows") -> list[str]:
    """Warning sentences on the metrics of a binary label or of several labels; often none.

    Args:
        metrics: as returned by `binary_metrics` or `Objective.metrics`; missing metrics are ignored.
        rows: description of the rows.

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
    """`remarks` on the mean logloss and AUC of several runs, for tables that show only these.

    Args:
        runs: the metrics of each run.
        rows: description of the rows.
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
        return [f"all labels are {which}: AUC and other metrics that compare two classes are undefined"]
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
        told += f"; the mean prediction is {100 * mean:.1f} %"
    if own.get("auc", 0.5) > 0.5 + WIDE:
        told += (
            f"; the ranking is useful (AUC {own['auc']:.4f}), the probabilities need `fieldwise evaluate --calibrate`"
        )
    return told


def _decisions(own: Mapping[str, float], rate: float) -> str | None:
    """A remark if all rows are predicted alike at .5: accuracy is then the share of one class."""
    if not {"accuracy", "precision", "recall"} <= own.keys():
        return None
    if own["recall"] == 0 and np.isclose(own["accuracy"], 1 - rate, rtol=0, atol=1e-9):
        return (
            "precision, recall and f1 are 0 because no row has a probability of 0.5 or more, as is usual where "
            f"{100 * rate:.1f} % are positive: use AUC and logloss, or a lower threshold"
        )
    if own["recall"] == 1 and np.isclose(own["accuracy"], rate, rtol=0, atol=1e-9):
        return (
            "recall is 1 because every row has a probability of 0.5 or more, as is usual where "
            f"{100 * rate:.1f} % are positive: use AUC and logloss, or a higher threshold"
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
        found.append("the AUC is below 0.5, so the ranking is reversed: check the label's rule")
    return found


def _auc_error(auc: float, positives: int, negatives: int) -> float:
    """The standard error of an AUC (Hanley and McNeil, Radiology 143, 1982), with AUCs below .5 mirrored."""
    near = min(max(auc, 1 - auc), 0.99)  # the formula gives 0 at an AUC of 1
    one, two = near / (2 - near), 2 * near**2 / (1 + near)
    spread = near * (1 - near) + (positives - 1) * (one - near**2) + (negatives - 1) * (two - near**2)
    return float(np.sqrt(spread / max(positives * negatives, 1)))
