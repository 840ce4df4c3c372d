"""Calibration: maps from logits to calibrated logits; `reliability` has the measures of calibration error.

Letters: N rows, K knots.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.errors import DataError
from fieldwise.evaluation.binary import logloss_from_logits, sigmoid
from fieldwise.evaluation.checks import labelled_column, require_both_classes
from fieldwise.evaluation.reliability import (
    BINS,
    Binning,
    Reliability,
    brier,
    calibration_error,
    calibration_error_by_chance,
    reliability,
)

__all__ = [
    "BINS",
    "METHODS",
    "Binning",
    "Calibration",
    "Isotonic",
    "Method",
    "Platt",
    "Reliability",
    "before_and_after",
    "brier",
    "calibration_error",
    "calibration_error_by_chance",
    "fit_calibration",
    "fit_isotonic",
    "fit_platt",
    "reliability",
]

Method = Literal["platt", "isotonic"]
STEPS = 100
CONVERGED = 1e-10


@dataclass(frozen=True, kw_only=True)
class Platt:
    """Platt scaling: `slope` times the logit plus `intercept`; the order of rows does not change."""

    slope: float
    intercept: float
    kind: Literal["platt"] = "platt"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slope) and math.isfinite(self.intercept) and self.slope > 0):
            raise DataError(
                f"a Platt calibration needs a slope above 0 and a finite intercept, found {self.slope:g} and "
                f"{self.intercept:g}: fit it again"
            )

    def logit(self, logit: ArrayLike) -> NDArray[np.float64]:
        """Calibrated logits, for logits of any shape.

        >>> Platt(slope=2.0, intercept=-1.0).logit([0.0, 1.0]).tolist()
        [-1.0, 1.0]
        """
        z: NDArray[np.float64] = self.slope * np.asarray(logit, dtype=np.float64) + self.intercept
        return z


@dataclass(frozen=True, kw_only=True)
class Isotonic:
    """Isotonic calibration: a monotone map, linear between knots and constant beyond the outer ones.

    Args:
        at: the knots' logits, increasing, [K].
        probability: the knots' probabilities, non-decreasing, strictly within 0 and 1, [K].
    """

    at: tuple[float, ...]
    probability: tuple[float, ...]
    kind: Literal["isotonic"] = "isotonic"

    def __post_init__(self) -> None:
        at, p = np.asarray(self.at), np.asarray(self.probability)
        rising = np.isfinite(at).all() and (np.diff(at) > 0).all() and (np.diff(p) >= 0).all()
        if not (len(at) == len(p) > 0 and rising and ((p > 0) & (p < 1)).all()):
            raise DataError(
                "an isotonic calibration needs increasing logits with non-decreasing probabilities within 0 and 1: "
                "fit it again"
            )

    def logit(self, logit: ArrayLike) -> NDArray[np.float64]:
        """Calibrated logits, for logits of any shape.

        >>> Isotonic(at=(-1.0, 1.0), probability=(0.25, 0.75)).logit([0.0]).tolist()
        [0.0]
        """
        p = np.interp(np.asarray(logit, dtype=np.float64), self.at, self.probability)
        z: NDArray[np.float64] = np.log(p) - np.log1p(-p)
        return z


Calibration = Platt | Isotonic


def fit_calibration(y: ArrayLike, logit: ArrayLike, method: Method) -> Calibration:
    """A calibration fitted by `fit_platt` or `fit_isotonic`, chosen by name."""
    return METHODS[method](y, logit)


def fit_platt(y: ArrayLike, logit: ArrayLike) -> Platt:
    """The maximum-likelihood line over logits (Platt scaling).

    Platt, Probabilistic Outputs for Support Vector Machines, 1999, with his targets (P + 1) / (P + 2) for the P
    positives and 1 / (M + 2) for the M negatives, which keep the line finite if scores separate the classes; fitted
    by Newton's method with step halving, as in Lin, Lin and Weng (Machine Learning 68, 2007).

    Args:
        y: labels 0 and 1 of rows that were not trained on, [N].
        logit: finite, [N].

    Errors:
        DataError: one class only, one score only, scores that decrease with the label, lengths that differ, NaN.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=20000)
    >>> y = rng.random(20000) < sigmoid(0.5 * z - 1)
    >>> found = fit_platt(y, z)
    >>> round(found.slope, 1), round(found.intercept, 1)
    (0.5, -1.0)
    """
    positive, z = _rows_to_fit(y, logit)
    target = _targets(positive)
    center, scale = float(z.mean()), float(z.std())
    x = (z - center) / scale
    weights = np.array([0.0, math.log(float(target.mean()) / (1 - float(target.mean())))])
    loss = _cross_entropy(target, weights[0] * x + weights[1])
    for _ in range(STEPS):
        p = sigmoid(weights[0] * x + weights[1])
        gradient = np.array([((p - target) * x).sum(), (p - target).sum()])
        if np.abs(gradient).max() <= CONVERGED * len(x):
            break
        v = p * (1 - p)
        hessian = np.array([[(v * x * x).sum(), (v * x).sum()], [(v * x).sum(), v.sum()]]) + 1e-12 * np.eye(2)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while size > CONVERGED:
            tried = weights - size * step
            new = _cross_entropy(target, tried[0] * x + tried[1])
            if new <= loss - 1e-4 * size * float(gradient @ step) / len(x):
                break
            size /= 2
        else:
            break  # the precision of float64 is reached
        weights, loss = tried, new
    slope = float(weights[0]) / scale
    if slope <= 0:
        raise DataError(
            f"Platt's calibration needs scores that increase with the label, found a slope of {slope:.3g} over "
            f"{len(z):,} "
            "rows: the model does not rank these rows; use isotonic or train it again"
        )
    return Platt(slope=slope, intercept=float(weights[1]) - slope * center)


def fit_isotonic(y: ArrayLike, logit: ArrayLike) -> Isotonic:
    """Isotonic regression of the labels on the logit, with linear interpolation between its steps.

    Zadrozny and Elkan, KDD 2002, by pool adjacent violators (scikit-learn). Labels are Platt's targets (`fit_platt`),
    so that no probability is 0 or 1, which would make the logloss infinite if it is wrong once.

    Args:
        y: labels 0 and 1 of rows that were not trained on, [N].
        logit: finite, [N].

    Errors:
        DataError: one class only, one score only, lengths that differ, NaN.

    >>> fit_isotonic([0, 1, 0, 1], [-2.0, -1.0, 1.0, 2.0]).probability
    (0.25, 0.5, 0.5, 0.75)
    """
    from sklearn.isotonic import IsotonicRegression  # here, since metrics do not need scikit-learn

    positive, z = _rows_to_fit(y, logit)
    fitted = IsotonicRegression(out_of_bounds="clip").fit(z, _targets(positive))
    return Isotonic(
        at=tuple(np.asarray(fitted.X_thresholds_, np.float64).tolist()),
        probability=tuple(np.asarray(fitted.y_thresholds_, np.float64).tolist()),
    )


METHODS: dict[Method, Callable[[ArrayLike, ArrayLike], Calibration]] = {"platt": fit_platt, "isotonic": fit_isotonic}


def before_and_after(y: ArrayLike, logit: ArrayLike, calibration: Calibration) -> dict[str, dict[str, float]]:
    """Metrics of a model's probabilities `before` and `after` calibration.

    Args:
        y: labels of 0 and 1, [N].
        logit: the model's scores, [N].
        calibration: the calibration to apply.

    >>> found = before_and_after([1, 0, 1, 1], [2.0, -1.0, 4.0, -2.0], Platt(slope=0.5, intercept=0.0))
    >>> found["after"]["logloss"] < found["before"]["logloss"], found["after"]["positive_rate"]
    (True, 0.75)
    """
    labels, z = np.asarray(y, dtype=np.float64), np.asarray(logit, dtype=np.float64)
    figures = {}
    for when, score in {"before": z, "after": calibration.logit(z)}.items():
        p = sigmoid(score)
        figures[when] = {
            "logloss": logloss_from_logits(labels, score),
            "brier": brier(labels, p),
            "ece": calibration_error(labels, p),
            "mean_prediction": float(p.mean()),
            "positive_rate": float(labels.mean()),
        }
    return figures


def _rows_to_fit(y: ArrayLike, logit: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    positive, z = labelled_column(y, logit, "logits")
    require_both_classes(positive, "a calibration")
    if z.min() == z.max():
        raise DataError(f"a calibration needs scores that differ, but all {len(z):,} rows have {z[0]:g}")
    return positive, z


def _targets(positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Platt's targets in place of 1 and 0."""
    ones = int(positive.sum())
    return np.where(positive, (ones + 1) / (ones + 2), 1 / (len(positive) - ones + 2))


def _cross_entropy(target: NDArray[np.float64], z: NDArray[np.float64]) -> float:
    return float(np.mean(np.logaddexp(0.0, z) - target * z))
