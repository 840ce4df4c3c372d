"""Leaderboards of recipes: means over seeds, intervals, and paired tests against a baseline."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.config import nearest, to_plain
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.binary import sigmoid
from fieldwise.evaluation.bootstrap import Estimate, MetricName, estimate, resampled
from fieldwise.evaluation.delong import delong
from fieldwise.evaluation.registry import METRICS, compared
from fieldwise.evaluation.reliability import calibration_error
from fieldwise.runs.records import Record

__all__ = ["Board", "Difference", "Line", "board_to_plain", "check_choices", "leaderboards"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of a recipe and the baseline.

    Args:
        estimate: the recipe's mean minus the baseline's, paired by row and by seed, with its interval and p.
        delong_p: for AUC: DeLong's test of the means over seeds, without the variance over seeds; None if a class has
            a single row.
    """

    estimate: Estimate
    delong_p: float | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """One recipe's runs.

    Args:
        metrics: the mean over seeds of each metric on the test rows.
        by_seed: the metrics per seed.
        against: differences from the baseline, by metric; None for the baseline itself.
        parameters: number of parameters.
        epochs: mean number of epochs.
        seconds: mean duration of a run.
        seconds_per_epoch: mean over runs of the median epoch; None if no run had a whole epoch.
        runs: the runs' folders.
    """

    recipe: str
    seeds: tuple[int, ...]
    metrics: Mapping[str, Estimate]
    by_seed: Mapping[str, tuple[float, ...]]
    against: Mapping[str, Difference] | None
    parameters: int
    epochs: float
    seconds: float
    seconds_per_epoch: float | None
    runs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Board:
    """A leaderboard of recipes with the same test rows, best first.

    Args:
        benchmark: the recipes' benchmark; may be empty.
        protocol: the recipes' protocol; may be empty.
        rows: number of test rows.
        task: `binary` or `regression`.
        metric: the metric to sort by.
        base: the baseline.
        replicates: number of bootstrap replicates.
        lines: one per recipe.
    """

    benchmark: str
    protocol: str
    rows: int
    task: str
    metric: MetricName
    base: str
    replicates: int
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        """Benchmark and protocol as a title."""
        words = [self.benchmark, f"protocol {self.protocol}" if self.protocol else ""]
        return ", ".join(word for word in words if word) or "a task without a name"

    def to_pandas(self) -> Any:
        """A pandas frame with a row per recipe: metrics, intervals, differences from the baseline, seconds."""
        from fieldwise.notebook.frames import leaderboard_frame, to_pandas

        return to_pandas(leaderboard_frame(self))

    def plot(self, ax: Any = None) -> Any:
        """Plot the recipes with intervals on Matplotlib axes (new ones if omitted) and return the axes."""
        from fieldwise.notebook.plots import plot_leaderboard

        return plot_leaderboard(self, ax)

    def _repr_html_(self) -> str:
        from fieldwise.notebook.html import leaderboard_html

        return leaderboard_html(self)

    def to_plain(self) -> dict[str, Any]:
        """The leaderboard as plain values for JSON, with p only for differences."""
        return board_to_plain(self)


def board_to_plain(board: Any) -> dict[str, Any]:
    """A leaderboard, of scores or of rankings, as plain values for JSON, with p only for differences."""
    plain: dict[str, Any] = to_plain(board)
    for line in plain["lines"]:
        for found in line["metrics"].values():
            del found["p"]
    return plain


def leaderboards(
    runs: Mapping[str, Sequence[Record]],
    *,
    base: str | None = None,
    metric: str | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> list[Board]:
    """A leaderboard for each benchmark, protocol and set of test rows; different ones are never mixed.

    Args:
        runs: runs by recipe name, one per seed.
        base: the baseline; the first of each table if omitted or not in it.
        metric: the metric to sort by; the task's default (`auc`, `rmse`) if omitted.
        replicates: number of bootstrap replicates.
        seed: seed of the bootstrap.

    Errors:
        ConfigError: an unknown base or metric. DataError: damaged runs; runs of one recipe with different rows.
    """
    check_choices(runs, {r.facts.task for records in runs.values() for r in records}, base, metric)
    tables: dict[tuple[str, ...], list[str]] = {}
    for name, records in runs.items():
        tables.setdefault(_table_of(name, records), []).append(name)
    return [_board({name: runs[name] for name in names}, base, metric, replicates, seed) for names in tables.values()]


def check_choices(names: Collection[str], tasks: Collection[str], base: str | None, metric: str | None) -> None:
    """Check, before any work, that some table can have the baseline and the metric.

    Errors:
        ConfigError: the base is not a recipe's name, or no task has the metric.
    """
    if base is not None and base not in names:
        raise ConfigError(f"the baseline must be one of the recipes compared, found {base!r}: {nearest(base, names)}")
    known = [m for task in sorted(tasks) for m in compared(task)]
    if metric is not None and metric not in known:
        words = " or ".join(sorted(tasks))
        raise ConfigError(f"metric must be one of {', '.join(known)} for a {words} label, found {metric!r}")


def _table_of(name: str, records: Sequence[Record]) -> tuple[str, ...]:
    """Benchmark, protocol, task and test rows of a recipe's runs."""
    places = {
        (of.benchmark, of.protocol, of.task, of.test_digest, hashlib.sha256(record.test_rows[0].tobytes()).hexdigest())
        for record, of in ((record, record.facts) for record in records)
    }
    if len(places) != 1:
        raise DataError(f"the seeds of a recipe must share their test rows, but those of {name} differ: set data_seed")
    return places.pop()


def _measured(record: Record, metric: MetricName) -> float:
    """A metric of a run's test rows; for older runs without it, computed from the stored scores."""
    found = record.facts.test
    if metric == "ece" and metric not in found:
        y, score = record.test_rows
        return calibration_error(y, sigmoid(score))
    return float(found[metric])


def _board(
    runs: Mapping[str, Sequence[Record]], base: str | None, metric: str | None, replicates: int, seed: int
) -> Board:
    names = list(runs)
    facts = runs[names[0]][0].facts
    task = facts.task
    main = next((m for m in compared(task) if m == metric), compared(task)[0])
    reference = names.index(base) if base in names else 0
    y = runs[names[0]][0].test_rows[0]
    scores = np.stack([[record.test_rows[1] for record in runs[name]] for name in names])  # [M, S, N]
    rare = task == "binary" and min(int(y.sum()), int(len(y) - y.sum())) < 2
    by_seed, drawn = {}, {}
    for m in compared(task):
        by_seed[m] = np.array([[_measured(record, m) for record in runs[name]] for name in names])  # [M, S]
        of_each = resampled(y, scores.reshape(-1, len(y)), m, replicates=replicates, seed=seed)
        drawn[m] = of_each.reshape(replicates, *by_seed[m].shape).mean(2)  # [R, M]
    lines = []
    for k, name in enumerate(names):
        records = runs[name]
        against: dict[str, Difference] | None = None
        if k != reference:
            against = {
                m: Difference(
                    estimate=estimate(by_seed[m][k] - by_seed[m][reference], drawn[m][:, k] - drawn[m][:, reference]),
                    delong_p=None if m != "auc" or rare else delong(y, scores[k], scores[reference]).p,
                )
                for m in compared(task)
            }
        of_runs = [record.facts for record in records]
        timed = [of.seconds_per_epoch for of in of_runs if of.seconds_per_epoch is not None]
        lines.append(
            Line(
                recipe=name,
                seeds=tuple(of.seed for of in of_runs),
                metrics={m: estimate(by_seed[m][k], drawn[m][:, k], least=0.0) for m in compared(task)},
                by_seed={m: tuple(by_seed[m][k].tolist()) for m in compared(task)},
                against=against,
                parameters=of_runs[0].parameters,
                epochs=float(np.mean([of.epochs for of in of_runs])),
                seconds=float(np.mean([of.seconds for of in of_runs])),
                seconds_per_epoch=float(np.mean(timed)) if timed else None,
                runs=tuple(str(record.folder) for record in records),
            )
        )
    lines.sort(key=lambda line: line.metrics[main].value, reverse=METRICS[main].higher)
    return Board(
        benchmark=facts.benchmark,
        protocol=facts.protocol,
        rows=len(y),
        task=task,
        metric=main,
        base=names[reference],
        replicates=replicates,
        lines=tuple(lines),
    )
