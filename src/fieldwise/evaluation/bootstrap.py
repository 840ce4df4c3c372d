"""How far metrics would move with other rows and other seeds.

Letters: N rows, R replicates, K columns of scores, M models, S seeds, T runs of ties.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.errors import DataError
from fieldwise.evaluation.checks import finite_column, labels_of, require_both_classes

__all__ = ["MetricName", "Spread", "bootstrap", "resampled", "spread"]

MetricName = Literal["auc", "logloss", "rmse"]
TRIES = 100  # draws of rows in a row that may hold one class alone


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A value and where it lies with other rows and seeds.

    Args:
        value: as measured.
        low: 2.5 % of the replicates lie below it.
        high: 2.5 % lie above it.
    """

    value: float
    low: float
    high: float


def resampled(
    y: ArrayLike, scores: ArrayLike, metric: MetricName, *, replicates: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """A metric of several scores of the same rows, with the rows drawn anew with replacement (Efron, 1979).

    Every replicate draws N rows once for all scores, so that differences between them are paired.

    Args:
        y: labels 0 and 1 (`auc`, `logloss`) or numbers (`rmse`), [N].
        scores: finite logits (`auc`, `logloss`) or predictions (`rmse`), [K, N].
        metric: which.
        replicates: R.
        seed: of the draws; the same seed and N give the same rows.

    Shape:
        returns [R, K].

    Errors:
        DataError: one class alone (`auc`), no row, lengths that differ, NaN or infinity.

    >>> resampled([0, 1], [[-1.0, 1.0]], "auc", replicates=3).tolist()
    [[1.0], [1.0], [1.0]]
    """
    columns = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    measure = _measure(y, columns, metric)
    rows = columns.shape[1]
    rng = np.random.default_rng(seed)
    both = metric == "auc"
    positive = labels_of(y) if both else None
    out = np.empty((replicates, len(columns)))
    for r in range(replicates):
        out[r] = measure(_draw(rng, rows, positive))
    return out


def bootstrap(
    y: ArrayLike, scores: ArrayLike, metric: MetricName, *, replicates: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """The mean over seeds of a metric, with rows and seeds drawn anew: both kinds of luck are in it.

    Args:
        y: as in `resampled`, [N].
        scores: of M models with S seeds each, [M, S, N]; seed s of every model belongs together.
        metric: which.
        replicates: R.
        seed: of the draws.

    Shape:
        returns [R, M].
    """
    values = np.asarray(scores, dtype=np.float64)
    models, seeds, rows = values.shape
    of_each = resampled(y, values.reshape(models * seeds, rows), metric, replicates=replicates, seed=seed)
    chosen = np.random.default_rng([seed, 1]).integers(0, seeds, (replicates, 1, seeds))
    drawn = np.take_along_axis(of_each.reshape(replicates, models, seeds), chosen, axis=2)
    means: NDArray[np.float64] = drawn.mean(axis=2)
    return means


def spread(value: float, replicates: ArrayLike) -> Spread:
    """A 95 % percentile interval.

    >>> spread(0.5, np.linspace(0, 1, 201))
    Spread(value=0.5, low=0.025, high=0.975)
    """
    low, high = np.percentile(np.asarray(replicates), [2.5, 97.5])
    return Spread(value=value, low=float(low), high=float(high))


def _draw(rng: np.random.Generator, rows: int, positive: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """How often each row was drawn [N]; both classes are among them where AUC asks for them."""
    for _ in range(TRIES):
        times = np.bincount(rng.integers(0, rows, rows), minlength=rows)
        if positive is None or 0 < int(times[positive].sum()) < rows:
            return times
    raise DataError(
        f"AUC's interval needs rows of both classes, but {TRIES} draws of {rows} rows held one only: use more rows"
    )


def _measure(
    y: ArrayLike, columns: NDArray[np.float64], metric: MetricName
) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    """From how often each row counts [N] to the metric of each column [K]."""
    target = finite_column(y, "labels")
    if columns.shape[1:] != target.shape:
        raise DataError(
            f"scores must be as many as the labels, found {columns.shape[1]} for {len(target)} labels: score those rows"
        )
    for column in columns:
        finite_column(column, "scores")
    if metric == "rmse":
        errors = np.square(columns - target)
        return lambda times: np.sqrt(errors @ times / times.sum())
    positive = labels_of(y)
    if metric == "logloss":
        against = np.where(positive, -columns, columns)
        losses = np.maximum(against, 0.0) + np.log1p(np.exp(-np.abs(against)))
        return lambda times: losses @ times / times.sum()
    require_both_classes(positive, "AUC")
    ordered = [_ordered(positive, column) for column in columns]
    return lambda times: np.array([_auc(times, *of_column) for of_column in ordered])


def _ordered(
    positive: NDArray[np.bool_], score: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """The rows from low to high, which of them are positive, and where runs of ties begin [T]."""
    order = np.argsort(score, kind="stable")
    ranked = score[order]
    return order, positive[order], np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))


def _auc(
    times: NDArray[np.int64], order: NDArray[np.int64], positive: NDArray[np.bool_], ties: NDArray[np.int64]
) -> float:
    """AUC of rows that count several times: pairs are counted in integers, as in `auc`."""
    drawn = times[order]
    high = np.add.reduceat(np.where(positive, drawn, 0), ties)
    low = np.add.reduceat(np.where(positive, 0, drawn), ties)
    below = np.cumsum(low) - low
    return float(int((high * (2 * below + low)).sum()) / (2 * int(high.sum()) * int(low.sum())))
