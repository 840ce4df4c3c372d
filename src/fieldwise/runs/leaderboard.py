"""Leaderboards of recipes, by metrics of test rows or of rankings: means over seeds, intervals, paired tests."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.charts import Chart, dot_chart, wider
from fieldwise.config import nearest, to_plain
from fieldwise.display import Table, pandas_frame
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.bootstrap import (
    Estimate,
    MetricName,
    estimate,
    resampled,
    resampled_means,
)
from fieldwise.evaluation.metrics import METRICS, compared, shown_name
from fieldwise.evaluation.ranking import TOP_K, delong, top_k_metrics
from fieldwise.runs.ranking import Ranked
from fieldwise.runs.records import RunRecord

POPULARITY = "popularity"
TOP_K_NAMES = {"hr": "HR", "ndcg": "NDCG", "recall": "recall"}
MAIN = "ndcg"
REPLICATES = 200, 1000
DRAWS = 50_000_000  # target number of rows in all replicates together


def p_text(value: float) -> str:
    """A p-value at the resolution of the bootstrap."""
    return f"{value:.2g}" if value >= 1e-4 else "<.0001"


def replicates_for(rows: int) -> int:
    """The number of bootstrap replicates of a part with this many rows: fewer for larger parts."""
    return int(np.clip(DRAWS // max(rows, 1), *REPLICATES))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The recipe's mean minus the baseline's, paired by row and by seed, with its interval and p."""

    estimate: Estimate
    # For AUC: DeLong's test of the means over seeds, without the variance over seeds; None if a
    # class has a single row.
    delong_p: float | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """One recipe's runs."""

    recipe: str
    seeds: tuple[int, ...]
    metrics: Mapping[str, Estimate]  # the mean over seeds of each metric on the test rows
    by_seed: Mapping[str, tuple[float, ...]]
    # differences from the baseline; None for the baseline itself
    against: Mapping[str, Difference] | None
    # by seed, of the trained network in its mean with LR: 1 without a mean
    network_shares: tuple[float, ...]
    parameters: int
    epochs: float  # mean
    seconds: float  # mean
    # mean over runs of the median epoch; None if no run had a whole epoch
    seconds_per_epoch: float | None
    runs: tuple[str, ...]  # their folders

    @property
    def mean_sentence(self) -> str | None:
        """A sentence on the runs that are a mean with LR, or LR alone; None if there are none."""
        in_mean = [share for share in self.network_shares if share < 1]
        if not in_mean:
            return None
        shares = ", ".join(f"{share:.0%}" for share in in_mean)
        alone = sum(share == 0 for share in in_mean)
        lr_alone = f", so {alone} of them {'is' if alone == 1 else 'are'} LR alone" if alone else ""
        runs = len(self.network_shares)
        return (
            f"{self.recipe}: {len(in_mean)} of {runs} run{'s' * (runs != 1)} ended as the mean of the network and LR, "
            f"in which the network has {shares}{lr_alone}."
        )


class _Leaderboard:
    """A leaderboard, which is a dataclass with lines."""

    def to_plain(self) -> dict[str, Any]:
        """The leaderboard as plain values for JSON, with p only for differences."""
        plain: dict[str, Any] = to_plain(self)
        for line in plain["lines"]:
            for result in line["metrics"].values():
                del result["p"]
        return plain


@dataclass(frozen=True, kw_only=True)
class Board(_Leaderboard):
    """A leaderboard of recipes with the same test rows, best first."""

    benchmark: str  # may be empty
    protocol: str  # may be empty
    rows: int  # of the test part
    task: str  # `binary` or `regression`
    metric: MetricName  # to sort by
    base: str  # the baseline
    replicates: int  # of the bootstrap
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        """Benchmark and protocol as a title."""
        words = [self.benchmark, f"protocol {self.protocol}" if self.protocol else ""]
        return ", ".join(word for word in words if word) or "a task without a name"

    def to_pandas(self) -> Any:
        """A pandas frame with a row per recipe: metrics, intervals, differences from the baseline, seconds."""
        rows = []
        for line in self.lines:
            row: dict[str, object] = {"recipe": line.recipe, "seeds": len(line.seeds)}
            for name, result in line.metrics.items():
                row |= {name: result.value, f"{name}_low": result.low, f"{name}_high": result.high}
                gain = line.against[name].estimate if line.against else None
                for end, part in {
                    "gain": "value",
                    "gain_low": "low",
                    "gain_high": "high",
                    "p": "p",
                }.items():
                    row[f"{name}_{end}"] = getattr(gain, part, None)
            rows.append(
                row
                | {"parameters": line.parameters, "epochs": line.epochs, "seconds": line.seconds}
            )
        return pandas_frame(rows)

    def plot(self) -> Chart:
        """A chart of the recipes with their 95 % intervals, best first; the baseline has a colour of its own."""
        result = [line.metrics[self.metric] for line in self.lines]
        names = [line.recipe for line in self.lines]
        value, low, high = (
            [getattr(one, part) for one in result] for part in ("value", "low", "high")
        )
        span = wider(min(low), max(high), 0.01)
        colours = [int(name == self.base) for name in names]
        title = f"test {shown_name(self.metric)}: means and 95 % intervals; {self.title}, {self.rows:,} test rows"
        return dot_chart(names, value, span, title=title, low=low, high=high, colours=colours)

    def _repr_html_(self) -> str:
        """Each recipe's metrics with 95 % intervals and its gain over the baseline."""
        rows = []
        for line in self.lines:
            cells: list[object] = [
                f"{m.value:.4f} [{m.low:.4f}, {m.high:.4f}]" for m in line.metrics.values()
            ]
            gain = line.against[self.metric].estimate if line.against else None
            cells.append(
                "baseline"
                if gain is None
                else f"{gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
            )
            rows.append([line.recipe, *cells, line.parameters, line.seconds])
        words = [shown_name(m) for m in self.lines[0].metrics]
        columns = ["recipe", *words, f"gain in {shown_name(self.metric)}", "parameters", "seconds"]
        note = f"means over seeds with 95 % intervals of {self.replicates:,} bootstrap replicates"
        note = ". ".join(
            [note, *(line.mean_sentence for line in self.lines if line.mean_sentence is not None)]
        )
        title = f"{self.title}, {self.rows:,} test rows"
        return Table(title=title, columns=columns, rows=rows, note=note)._repr_html_()


@dataclass(frozen=True, kw_only=True)
class RankingLine:
    """The ranking metrics of one recipe, or of popularity."""

    recipe: str
    metrics: Mapping[str, Estimate]  # the mean over users and seeds, by name
    by_seed: Mapping[str, tuple[float, ...]]  # the means over users, in the order of the seeds
    # differences from the baseline; None for the baseline itself
    against: Mapping[str, Estimate] | None


@dataclass(frozen=True, kw_only=True)
class RankingBoard(_Leaderboard):
    """A leaderboard of recipes and popularity on the same ranking task, by NDCG, best first."""

    k: int  # the cutoff
    sentence: str  # description of the task
    users: int
    items: int  # of the catalogue
    candidates: int | None  # sampled items per user besides the liked ones; None: all items
    base: str  # the baseline
    replicates: int  # of the bootstrap over users
    lines: tuple[RankingLine, ...]


def leaderboards(
    runs: Mapping[str, Sequence[RunRecord]],
    *,
    base: str | None = None,
    metric: str | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> list[Board]:
    """A leaderboard for each benchmark, protocol and set of test rows; different ones are never mixed.

    The runs are by recipe name, one per seed. The baseline is the first of each table if `base` is
    omitted or not in it, `metric` (to sort by) is the task's default if omitted, `replicates` and
    `seed` are the bootstrap's.

    Errors:
        ConfigError: an unknown base or metric. DataError: damaged runs; runs of one recipe with
            different rows; recipes of a table with unequal numbers of runs.
    """
    check_base_and_metric(
        runs, {r["task"] for records in runs.values() for r in records}, base, metric
    )
    tables: dict[tuple[str, ...], dict[str, Sequence[RunRecord]]] = {}
    for name, records in runs.items():
        kinds = set()
        for record in records:
            facts = [str(record[fact]) for fact in ("benchmark", "protocol", "task", "test_digest")]
            kinds.add((*facts, hashlib.sha256(record.test_rows[0].tobytes()).hexdigest()))
        if len(kinds) != 1:
            raise DataError(
                f"the seeds of a recipe must share their test rows, but those of {name} differ: set data_seed"
            )
        tables.setdefault(kinds.pop(), {})[name] = records
    return [_board(table, base, metric, replicates, seed) for table in tables.values()]


def check_base_and_metric(
    names: Collection[str], tasks: Collection[str], base: str | None, metric: str | None
) -> None:
    """Check, before any work, that some table can have the baseline and the metric."""
    if base is not None and base not in names:
        raise ConfigError(
            f"the baseline must be one of the recipes compared, found {base!r}: {nearest(base, names)}"
        )
    known = [m for task in sorted(tasks) for m in compared(task)]
    if metric is not None and metric not in known:
        words = " or ".join(sorted(tasks))
        raise ConfigError(
            f"metric must be one of {', '.join(known)} for a {words} label, found {metric!r}"
        )


# by name and metric: values per seed [S], or draws of their mean [R]
Values = Mapping[str, dict[str, np.ndarray]]


def _line(values: Values, draws: Values, name: str, base: str) -> dict[str, Any]:
    """What every line has; differences from the baseline are paired by row (or user) and by seed."""
    own = values[name]
    drawn = draws[name]
    of_base = (values[base], draws[base])
    gains = (
        {m: estimate(own[m] - of_base[0][m], drawn[m] - of_base[1][m]) for m in own}
        if name != base
        else None
    )
    return {
        "recipe": name,
        "metrics": {m: estimate(own[m], drawn[m], least=0.0) for m in own},
        "by_seed": {m: tuple(result.tolist()) for m, result in own.items()},
        "against": gains,
    }


def _board(
    runs: Mapping[str, Sequence[RunRecord]],
    base: str | None,
    metric: str | None,
    replicates: int,
    seed: int,
) -> Board:
    names = list(runs)
    if len({len(records) for records in runs.values()}) != 1:
        sizes = ", ".join(f"{len(records)} of {name}" for name, records in runs.items())
        raise DataError(
            f"the recipes of a leaderboard must have equal numbers of runs, found {sizes}: add the others"
        )
    first = runs[names[0]][0]
    task = first["task"]
    metrics = compared(first["task"])
    main = next((m for m in metrics if m == metric), metrics[0])
    base = base if base is not None and base in names else names[0]
    y = first.test_rows[0]
    # [S, N]
    scores = {
        name: np.stack([record.test_rows[1] for record in records])
        for name, records in runs.items()
    }
    rare = task == "binary" and min(int(y.sum()), int(len(y) - y.sum())) < 2
    every = np.concatenate(list(scores.values()))
    seeds = len(scores[names[0]])
    values: Values = {
        name: {m: np.array([one["test"][m] for one in runs[name]]) for m in metrics}
        for name in names
    }
    drawn = {m: resampled(y, every, m, replicates=replicates, seed=seed) for m in metrics}
    means = {m: of.reshape(replicates, len(names), seeds).mean(2) for m, of in drawn.items()}
    draws: Values = {name: {m: means[m][:, k] for m in metrics} for k, name in enumerate(names)}
    lines = []
    for name, records in runs.items():
        line = _line(values, draws, name, base)
        if (result := line["against"]) is not None:
            tests = (
                {"auc": delong(y, scores[name], scores[base]).p}
                if "auc" in result and not rare
                else {}
            )
            line["against"] = {
                m: Difference(estimate=of, delong_p=tests.get(m)) for m, of in result.items()
            }
        timed = [
            epoch for one in records if (epoch := one.about.get("seconds_per_epoch")) is not None
        ]
        lines.append(
            Line(
                **line,
                seeds=tuple(one["seed"] for one in records),
                network_shares=tuple(float(one.about.get("network_share", 1.0)) for one in records),
                parameters=records[0]["parameters"],
                epochs=float(np.mean([one["epochs"] for one in records])),
                seconds=float(np.mean([one["seconds"] for one in records])),
                seconds_per_epoch=float(np.mean(timed)) if timed else None,
                runs=tuple(str(record.folder) for record in records),
            )
        )
    lines.sort(key=lambda line: line.metrics[main].value, reverse=METRICS[main].higher)
    return Board(
        benchmark=first["benchmark"],
        protocol=first["protocol"],
        rows=len(y),
        task=task,
        metric=main,
        base=base,
        replicates=replicates,
        lines=tuple(lines),
    )


def ranking_boards(
    runs: Mapping[str, Sequence[Ranked]], *, k: int = 10, base: str | None = None
) -> list[RankingBoard]:
    """A leaderboard for each ranking task (users, items and exclusions), usually one; `base` as for `leaderboards`."""
    tables: dict[frozenset[str], dict[str, Sequence[Ranked]]] = {}
    for name, rankings in runs.items():
        tables.setdefault(frozenset(str(one.about["digest"]) for one in rankings), {})[name] = (
            rankings
        )
    boards = []
    for table in tables.values():
        own = base if base is not None and base in table else next(iter(table))
        first = table[own][0]
        places = {name: [one.place for one in of] for name, of in table.items()} | {
            POPULARITY: [first.popular]
        }
        by_user = {
            name: [top_k_metrics(one, first.user, first.users, k) for one in of]
            for name, of in places.items()
        }
        # Popularity has no seeds: it is the same for each of the baseline's.
        values = {
            name: {m: np.array([one[m].mean() for one in of]) for m in TOP_K}
            for name, of in by_user.items()
        }
        means = np.array(
            [np.mean([one[m] for one in of], axis=0) for of in by_user.values() for m in TOP_K]
        )
        drawn = resampled_means(means, replicates=REPLICATES[1]).reshape(
            -1, len(places), len(TOP_K)
        )
        draws = {
            name: dict(zip(TOP_K, drawn[:, n].T, strict=True)) for n, name in enumerate(places)
        }
        lines = [RankingLine(**_line(values, draws, name, own)) for name in places]
        lines.sort(key=lambda line: line.metrics[MAIN].value, reverse=True)
        boards.append(
            RankingBoard(
                k=k,
                sentence=str(first.about["sentence"]),
                users=first.users,
                items=int(first.about["items"]),
                candidates=first.about["settings"].get("candidates"),
                base=own,
                replicates=REPLICATES[1],
                lines=tuple(lines),
            )
        )
    return boards
