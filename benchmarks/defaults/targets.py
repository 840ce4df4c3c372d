"""Targets of the defaults on a table, tested by paired differences of test logloss.

A difference is ours minus theirs, mean over seeds; its 95 % interval is a bootstrap over rows with fixed seeds. `below`
is met if the mean difference is below 0; `no worse` if the interval is not entirely above 0, and `mean` then says
whether the mean alone meets the target.

Calibration errors are means over bins of absolute differences, which are positive by chance: with 3,000 rows even the
true probabilities have an error of .02. So the bound is met by an error within it (`mean`), or by an error not larger
than the 95 % quantile for labels sampled from the model's own probabilities (`chance`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from benchmarks.defaults.store import Found
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.calibration import BINS

__all__ = [
    "CALIBRATION",
    "LARGE",
    "Difference",
    "Verdict",
    "chance",
    "difference",
    "judge",
    "judge_time",
    "mean_of",
    "row_losses",
    "time_ratio",
]

LARGE = 10_000  # number of rows from which the bound on calibration is tighter
ECE_LARGE, ECE_SMALL = 0.02, 0.05
REPLICATES = 500
DRAWS = 200
TIMES = 1.5
CALIBRATION = f"calibration error at most {ECE_LARGE} above {LARGE:,} rows, {ECE_SMALL} otherwise"
Runs = Mapping[str, Sequence[Found]]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean difference with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One target on one table.

    Args:
        target: name of the target.
        model: our model.
        against: the other model, or None for a bound.
        met: whether the target is met.
        mean: whether the mean alone meets it.
        found: the difference of logloss.
        value: the measured value, for a bound.
    """

    target: str
    model: str
    against: str | None
    met: bool
    mean: bool
    found: Difference | None = None
    value: float | None = None

    def words(self) -> str:
        """The figures in short."""
        if self.found is None:
            return f"{self.model} {self.value:.4f}"
        return f"{self.model} - {self.against}: {self.found.value:+.4f} [{self.found.low:+.4f}, {self.found.high:+.4f}]"


def row_losses(found: Found) -> np.ndarray:
    """The logloss of each test row [N]."""
    return np.logaddexp(0.0, found.logit) - found.y * found.logit


def mean_of(runs: Sequence[Found], part: str, metric: str) -> float:
    """A figure's mean over seeds."""
    return float(np.mean([run.about[part][metric] for run in runs]))


def difference(ours: Sequence[Found], theirs: Sequence[Found], *, replicates: int = REPLICATES) -> Difference:
    """Mean test logloss of ours minus theirs, paired by seed on the same rows.

    Seeds may have different rows. The other model may have fewer runs: a deterministic one has one run for all seeds.
    """
    pairs = [(one, theirs[min(k, len(theirs) - 1)]) for k, one in enumerate(ours)]
    for one, other in pairs:
        if not np.array_equal(one.y, other.y):
            raise SystemExit(
                f"runs on other test rows do not compare: {_name(one)} and {_name(other)}; run both by the same tables"
            )
    rows = [row_losses(one) - row_losses(other) for one, other in pairs]
    value = float(np.mean([one.mean() for one in rows]))
    rng = np.random.default_rng(0)
    if all(np.array_equal(pairs[0][0].y, one.y) for one, _ in pairs):
        rows = [np.mean(rows, axis=0)]  # seeds share their rows, which are resampled once for all
    drawn = np.mean([_resampled_means(one, replicates, rng) for one in rows], axis=0)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Difference(value=value, low=float(low), high=float(high))


def chance(found: Found, *, draws: int = DRAWS) -> float:
    """The 95 % quantile of the calibration error of labels sampled from the model's own probabilities."""
    p = sigmoid(found.logit)
    place = ((rankdata(p) - 0.5) * BINS / len(p)).astype(np.int64)  # bins as in `fieldwise.evaluation.calibration`
    total = np.bincount(place, p)
    rng = np.random.default_rng(0)
    errors = [np.abs(np.bincount(place, rng.random(len(p)) < p) - total).sum() / len(p) for _ in range(draws)]
    return float(np.quantile(errors, 0.95))


def time_ratio(ours: Sequence[Found], theirs: Sequence[Found]) -> tuple[float, float]:
    """Processor seconds of ours divided by theirs, medians over seeds: to their best validation AUC, and in total.

    The first is infinite if most of our runs never reach that AUC.
    """
    to_auc, in_all = [], []
    for one, other in zip(ours, theirs, strict=False):
        best = max(look["metrics"]["auc"] for look in other.about["history"])
        mine, its = (_seconds_to(run, best) for run in (one, other))
        to_auc.append(mine / its)
        in_all.append(one.about["cpu_seconds"] / other.about["cpu_seconds"])
    return float(np.median(to_auc)), float(np.median(in_all))


def _seconds_to(run: Found, auc: float) -> float:
    wall = next((look["seconds"] for look in run.about["history"] if look["metrics"]["auc"] >= auc), np.inf)
    return float(wall * run.about["cpu_seconds"] / run.about["seconds"])


def judge_time(ours: Runs, theirs: Runs) -> Iterator[Verdict]:
    """Whether training takes at most 1.5 times as long to the AUC of another tag's runs."""
    for name, found in ours.items():
        if name in theirs and "history" in found[0].about:
            ratio = time_ratio(found, theirs[name])[0]
            met = ratio <= TIMES
            target = f"at most {TIMES} times the processor seconds to the same AUC"
            yield Verdict(target=target, model=name, against=None, met=met, mean=met, value=ratio)


def judge(runs: Runs, rows: int) -> Iterator[Verdict]:
    """The targets that a table's runs can be tested for.

    Args:
        runs: our runs and the baselines, by name; targets of absent runs are omitted.
        rows: number of rows of the table, all parts.
    """
    ours = [name for name in runs if name not in ("constant", "sklearn-lr", "lightgbm")]
    if "constant" in runs:
        for name in ours:
            found = difference(runs[name], runs["constant"])
            yield _verdict("below the constant", name, "constant", found, below=True)
    if {"lr", "sklearn-lr"} <= runs.keys():
        yield _no_worse(runs, "LR no worse than scikit-learn's", "lr", "sklearn-lr")
    if {"afm", "fm"} <= runs.keys():
        yield _no_worse(runs, "AFM no worse than FM", "afm", "fm")
    simple = [name for name in ("lr", "fm") if name in runs]
    if len(simple) == 2:
        better = min(simple, key=lambda name: mean_of(runs[name], "test", "logloss"))
        for name in ("autoint-plus", "inttower"):
            if name in runs:
                yield _no_worse(runs, "AutoInt+, IntTower no worse than FM, LR", name, better)
    if ours and "lightgbm" in runs:
        best = min(ours, key=lambda name: mean_of(runs[name], "valid", "logloss"))  # as a user would choose
        yield _no_worse(runs, "the best of ours no worse than LightGBM", best, "lightgbm")
    bound = ECE_LARGE if rows > LARGE else ECE_SMALL
    for name in ours:
        value, by_chance = mean_of(runs[name], "test", "ece"), float(np.mean([chance(run) for run in runs[name]]))
        within = value <= bound
        met = within or value <= by_chance
        yield Verdict(target=CALIBRATION, model=name, against=None, met=met, mean=within, value=value)


def _no_worse(runs: Runs, target: str, one: str, other: str) -> Verdict:
    return _verdict(target, one, other, difference(runs[one], runs[other]))


def _verdict(target: str, one: str, other: str, found: Difference, *, below: bool = False) -> Verdict:
    mean = found.value < 0 if below else found.value <= 0
    met = mean if below else found.low <= 0
    return Verdict(target=target, model=one, against=other, met=met, mean=mean, found=found)


def _resampled_means(values: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    return np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(replicates)])


def _name(found: Found) -> str:
    return f"{found.about['table']}/{found.about['model']}-{found.about['seed']}"
