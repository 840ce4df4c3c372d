"""The leaderboard on test rows: metrics with intervals, and paired differences from the baselines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from fieldwise.automatic.candidates import ALL_ROWS, CONSTANT, TITLES, TREES, Candidate
from fieldwise.config import to_plain
from fieldwise.evaluation import auc, logloss_from_logits, rmse, sigmoid
from fieldwise.evaluation.bootstrap import MetricName, estimate, resampled
from fieldwise.evaluation.delong import auc_parts, delong
from fieldwise.evaluation.reliability import calibration_error

__all__ = ["BASES", "Board", "Interval", "Line", "board_of"]

BASES = (CONSTANT, TITLES["lr"], TREES)
MOST_REPLICATES, LEAST_REPLICATES, DRAWS = 1000, 200, 5e7
Z = 1.959963984540054


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A metric with its 95 % confidence interval over test rows.

    Args:
        value: the metric.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One candidate on the test rows.

    Args:
        model: title of the candidate.
        chosen: whether this candidate is the bundle.
        all_rows: whether it was trained on training and validation rows, unlike the others.
        valid: logloss or RMSE on the validation rows, by which the choice was made.
        metrics: test metrics by name: `auc` and `logloss`, or `rmse`.
        calibration_error: expected calibration error; None for a regression label.
        against: for each baseline and metric, the candidate's value minus the baseline's, paired by row.
        calibrated: whether its probabilities have a Platt scaling fitted on validation rows.
        epochs: epochs of its training; for LightGBM, the number of trees.
        seconds: duration of its training.
        stopped: why its training ended.
        parameters: number of learned parameters.
        changes: settings that the search changed from the defaults.
    """

    model: str
    chosen: bool
    all_rows: bool
    valid: float
    metrics: Mapping[str, Interval]
    calibration_error: float | None
    against: Mapping[str, Mapping[str, Interval]]
    calibrated: bool
    epochs: int
    seconds: float
    stopped: str
    parameters: int
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Board:
    """The leaderboard: all candidates, best on test rows first. The choice itself was made on validation rows.

    Args:
        task: task of the label.
        metric: metric of the choice and of the order: `logloss` or `rmse`.
        rows: number of test rows.
        replicates: bootstrap replicates for the intervals of logloss and RMSE; AUC has DeLong intervals.
        lines: one line per candidate.
    """

    task: str
    metric: str
    rows: int
    replicates: int
    lines: tuple[Line, ...]

    @property
    def chosen(self) -> Line:
        """The line of the bundle's model."""
        return next(line for line in self.lines if line.chosen)

    @property
    def judged(self) -> Line:
        """The line of the bundle's model trained on the training rows only, like the other candidates."""
        if not self.chosen.all_rows:
            return self.chosen
        return next(line for line in self.lines if f"{line.model}, {ALL_ROWS}" == self.chosen.model)

    def line(self, model: str) -> Line | None:
        """The line of a model by its title; None if there is none."""
        return next((line for line in self.lines if line.model == model), None)

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def frame(self) -> pl.DataFrame:
        """A row per candidate; `X_low` and `X_high` are the interval of X, `X_less_BASE` a paired difference."""
        rows = []
        for line in self.lines:
            row: dict[str, Any] = {"model": line.model, "chosen": line.chosen, "all_rows": line.all_rows}
            row[f"valid_{self.metric}"] = line.valid
            for name, found in line.metrics.items():
                row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
            for base, metrics in line.against.items():
                for name, found in metrics.items():
                    column = f"{name}_less_{base.lower()}"
                    row |= {column: found.value, f"{column}_low": found.low, f"{column}_high": found.high}
            if line.calibration_error is not None:
                row["calibration_error"] = line.calibration_error
            more = "calibrated", "epochs", "seconds", "stopped", "parameters"
            rows.append(row | {name: getattr(line, name) for name in more})
        names = list(dict.fromkeys(name for row in rows for name in row))
        return pl.DataFrame([{name: row.get(name) for name in names} for row in rows], infer_schema_length=None)


def board_of(
    candidates: Sequence[Candidate],
    scores: Sequence[np.ndarray],
    y: np.ndarray,
    chosen: Candidate,
    *,
    binary: bool,
    seed: int,
) -> Board:
    """The leaderboard of the candidates on the test rows.

    Args:
        candidates: the candidates, including the baselines.
        scores: each candidate's scores of the test rows, [N]: logits, or numbers.
        y: targets of the test rows, [N].
        chosen: the candidate in the bundle.
        binary: whether the label is binary.
        seed: seed of the bootstrap.
    """
    y = np.asarray(y, dtype=np.float64)
    metric: MetricName = "logloss" if binary else "rmse"
    replicates = int(min(MOST_REPLICATES, max(LEAST_REPLICATES, DRAWS / max(len(y), 1))))
    resamples = resampled(y, np.stack(scores), metric, replicates=replicates, seed=seed)
    of_one = logloss_from_logits if binary else rmse
    values = [of_one(y, score) for score in scores]
    with_auc = binary and min(int(y.sum()), int((1 - y).sum())) > 1
    bases = [k for title in BASES for k, one in enumerate(candidates) if one.title == title]

    def figures(k: int) -> dict[str, Interval]:
        own = {"auc": _auc(y, scores[k])} if with_auc else {}
        return {**own, metric: _bounded(values[k], resamples[:, k])}

    def differences(k: int, base: int) -> dict[str, Interval]:
        own = {"auc": _auc_difference(y, scores[k], scores[base])} if with_auc else {}
        return {**own, metric: _bounded(values[k] - values[base], resamples[:, k] - resamples[:, base])}

    lines = [
        Line(
            model=one.title,
            chosen=one is chosen,
            all_rows=one.on_all_rows,
            valid=one.value,
            metrics=figures(k),
            calibration_error=calibration_error(y, sigmoid(scores[k])) if binary else None,
            # One trained on all rows is not compared with baselines, which have learned from the training rows alone.
            against={
                candidates[base].title: differences(k, base) for base in bases if base != k and not one.on_all_rows
            },
            calibrated=one.calibration is not None,
            epochs=one.epochs,
            seconds=round(one.seconds, 2),
            stopped=one.stopped,
            parameters=one.parameters,
            changes=dict(one.changes),
        )
        for k, one in enumerate(candidates)
    ]
    lines.sort(key=lambda line: line.metrics[metric].value)
    task = "binary" if binary else "regression"
    return Board(task=task, metric=metric, rows=len(y), replicates=replicates, lines=tuple(lines))


def _bounded(value: float, replicates: np.ndarray) -> Interval:
    found = estimate([value], replicates)
    return Interval(value=found.value, low=found.low, high=found.high)


def _auc(y: np.ndarray, score: np.ndarray) -> Interval:
    """AUC with its DeLong interval, clipped to 0 and 1."""
    high, low = auc_parts(y, score)
    error = math.sqrt(float(np.var(high, ddof=1)) / len(high) + float(np.var(low, ddof=1)) / len(low))
    value = auc(y, score)
    return Interval(value=value, low=max(0.0, value - Z * error), high=min(1.0, value + Z * error))


def _auc_difference(y: np.ndarray, score: np.ndarray, base: np.ndarray) -> Interval:
    found = delong(y, score, base)
    reach = Z * found.standard_error
    return Interval(value=found.difference, low=found.difference - reach, high=found.difference + reach)
