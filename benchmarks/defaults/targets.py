"""Targets of the defaults on a table, tested by paired differences of test logloss.

A difference is ours minus theirs, mean over seeds; its 95 % interval is a bootstrap over rows with
fixed seeds. `below` is met if the mean difference is below 0; `no worse` if the interval is not
entirely above 0, and `mean` then says whether the mean alone meets the target.

Calibration errors are means over bins of absolute differences, which are positive by chance: with
3,000 rows even the true probabilities have an error of .02. So the bound is met by an error within
it (`mean`), or by an error not larger than the 95 % quantile for labels sampled from the model's
own probabilities (`chance`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.calibration import BINS
from fieldwise.runs.records import RunRecord

__all__ = ["CALIBRATION", "TREES", "chance", "difference", "judge", "mean_of"]

TREES = {"lightgbm": "LightGBM", "catboost": "CatBoost"}
"""Models too, here baselines, whose seed is always 0."""
LARGE = 10_000  # number of rows from which the bound on calibration is tighter
ECE_LARGE = 0.02
ECE_SMALL = 0.05
REPLICATES = 500
DRAWS = 200
CALIBRATION = f"calibration error at most {ECE_LARGE} above {LARGE:,} rows, {ECE_SMALL} otherwise"
Runs = Mapping[str, Sequence[RunRecord]]


def row_losses(run: RunRecord) -> np.ndarray:
    """The logloss of each test row [N]."""
    rows = run.test_rows
    return np.logaddexp(0.0, rows.score) - rows.y * rows.score


def mean_of(runs: Sequence[RunRecord], part: str, metric: str) -> float:
    """A figure's mean over seeds."""
    return float(np.mean([run.about[part][metric] for run in runs]))


def difference(ours: Sequence[RunRecord], theirs: Sequence[RunRecord]) -> dict[str, float]:
    """Mean test logloss of ours minus theirs with its 95 % interval, paired by seed on the same rows.

    Seeds may have different rows. The other model may have fewer runs: a deterministic one has one
    run for all seeds.
    """
    pairs = [(one, theirs[min(k, len(theirs) - 1)]) for k, one in enumerate(ours)]
    for one, other in pairs:
        if not np.array_equal(one.test_rows[0], other.test_rows[0]):
            raise SystemExit(
                f"runs on other test rows do not compare: {_name(one)} and {_name(other)}; run both by the same tables"
            )
    rows = [row_losses(one) - row_losses(other) for one, other in pairs]
    value = float(np.mean([one.mean() for one in rows]))
    rng = np.random.default_rng(0)
    if all(np.array_equal(ours[0].test_rows[0], one.test_rows[0]) for one in ours):
        rows = [np.mean(rows, axis=0)]  # seeds share their rows, which are resampled once for all
    drawn = np.mean([_resampled_means(one, rng) for one in rows], axis=0)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"value": value, "low": float(low), "high": float(high)}


def chance(run: RunRecord) -> float:
    """The 95 % quantile of the calibration error of labels sampled from the model's own probabilities."""
    p = sigmoid(run.test_rows[1])
    # bins as in `fieldwise.evaluation.calibration`
    place = ((rankdata(p) - 0.5) * BINS / len(p)).astype(np.int64)
    total = np.bincount(place, p)
    rng = np.random.default_rng(0)
    errors = [
        np.abs(np.bincount(place, rng.random(len(p)) < p) - total).sum() / len(p)
        for _ in range(DRAWS)
    ]
    return float(np.quantile(errors, 0.95))


def judge(runs: Runs, rows: int) -> Iterator[dict[str, Any]]:
    """The targets that a table's runs can be tested for: whether each is `met`, and whether the `mean` alone meets it.

    Each names our `model`, and has the other model (`against`) and the difference (`found`), or the
    `value` of a bound.

    Args:
        runs: our runs and the baselines, by name; targets of absent runs are omitted.
        rows: number of rows of the table, all parts.
    """
    ours = [name for name in runs if name not in ("constant", "sklearn-lr", *TREES)]
    if "constant" in runs:
        for name in ours:
            yield _compared(runs, "below the constant", name, "constant", below=True)
    if {"lr", "sklearn-lr"} <= runs.keys():
        yield _compared(runs, "LR no worse than scikit-learn's", "lr", "sklearn-lr")
    if {"afm", "fm"} <= runs.keys():
        yield _compared(runs, "AFM no worse than FM", "afm", "fm")
    simple = [name for name in ("lr", "fm") if name in runs]
    if len(simple) == 2:
        better = min(simple, key=lambda name: mean_of(runs[name], "test", "logloss"))
        for name in ("autoint-plus", "finalmlp", "inttower"):
            if name in runs:
                yield _compared(
                    runs, "AutoInt+, FinalMLP, IntTower no worse than FM, LR", name, better
                )
    # as a user would choose
    best = min(ours, key=lambda name: mean_of(runs[name], "valid", "logloss"), default="")
    for name, title in TREES.items():
        if ours and name in runs:
            yield _compared(runs, f"the best network no worse than {title}", best, name)
    yield from _calibrated(runs, ours, ECE_LARGE if rows > LARGE else ECE_SMALL)


def _calibrated(runs: Runs, ours: Sequence[str], bound: float) -> Iterator[dict[str, Any]]:
    for name in ours:
        value = mean_of(runs[name], "test", "ece")
        by_chance = float(np.mean([chance(run) for run in runs[name]]))
        within = value <= bound
        met = within or value <= by_chance
        about = {"target": CALIBRATION, "model": name, "against": None}
        yield {**about, "met": met, "mean": within, "found": None, "value": value}


def _compared(
    runs: Runs, target: str, one: str, other: str, *, below: bool = False
) -> dict[str, Any]:
    result = difference(runs[one], runs[other])
    mean = result["value"] < 0 if below else result["value"] <= 0
    met = mean if below else result["low"] <= 0
    about = {"target": target, "model": one, "against": other}
    return {**about, "met": met, "mean": mean, "found": result, "value": None}


def _resampled_means(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.array(
        [values[rng.integers(0, len(values), len(values))].mean() for _ in range(REPLICATES)]
    )


def _name(run: RunRecord) -> str:
    return f"{run['table']}/{run['model']}-{run['seed']}"
