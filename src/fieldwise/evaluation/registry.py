"""The registry of metrics: one entry each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from fieldwise.evaluation.bootstrap import MetricName

__all__ = ["METRICS", "Metric", "compared", "metric_names", "shown_name", "watched"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric's name and uses; `binary_metrics` and `regression_metrics` compute it.

    Args:
        name: its key in dictionaries of metrics, in recipes and records.
        shown: its name in tables and figures.
        tasks: tasks of the labels that have it.
        higher: whether higher is better.
        watched: whether early stopping may use it (`training.monitor`).
        compared: whether `compare` has a column for it.
    """

    name: str
    shown: str
    tasks: tuple[Literal["binary", "regression"], ...]
    higher: bool
    watched: bool = True
    compared: bool = False


_BINARY: tuple[Literal["binary"]] = ("binary",)
_REGRESSION: tuple[Literal["regression"]] = ("regression",)
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(name="auc", shown="AUC", tasks=_BINARY, higher=True, compared=True),
        Metric(name="logloss", shown="logloss", tasks=_BINARY, higher=False, compared=True),
        Metric(name="gauc", shown="group AUC", tasks=_BINARY, higher=True),
        Metric(name="ece", shown="ECE", tasks=_BINARY, higher=False, watched=False, compared=True),
        Metric(name="rmse", shown="RMSE", tasks=_REGRESSION, higher=False, compared=True),
        Metric(name="mae", shown="MAE", tasks=_REGRESSION, higher=False),
        Metric(name="loss", shown="loss", tasks=("binary", "regression"), higher=False),
    )
}
"""All metrics by name; the first of each task is its default."""


def watched(task: str) -> tuple[str, ...]:
    """Names of the metrics that early stopping may use, the default first.

    >>> watched("regression")
    ('rmse', 'mae', 'loss')
    """
    return tuple(m.name for m in METRICS.values() if task in m.tasks and m.watched)


def compared(task: str) -> tuple[MetricName, ...]:
    """Names of the metrics that `compare` shows, the main one first.

    >>> compared("binary")
    ('auc', 'logloss', 'ece')
    """
    return tuple(cast(MetricName, m.name) for m in METRICS.values() if task in m.tasks and m.compared)


def shown_name(name: str) -> str:
    """A metric's name for display; an unknown name is returned unchanged.

    >>> shown_name("gauc"), shown_name("clicks.rmse")
    ('group AUC', 'clicks.rmse')
    """
    return METRICS[name].shown if name in METRICS else name


def metric_names(present: Iterable[str]) -> list[str]:
    """The registry's names that are present, in its order.

    >>> metric_names({"rmse", "rows", "mae"})
    ['rmse', 'mae']
    """
    found = set(present)
    return [name for name in METRICS if name in found]
