"""Leaderboards of recipes, by metrics of test rows or of rankings: means over seeds, intervals, paired tests."""

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.charts import Chart, dot_chart, wider
from fieldwise.config import nearest, to_plain
from fieldwise.display import Table, pandas_frame
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.bootstrap import Estimate, estimate, resampled, resampled_means
from fieldwise.evaluation.interval import Interval
from fieldwise.evaluation.lists import LIST_MEASURES, Exposure, list_measures, same_list_sentence
from fieldwise.evaluation.metrics import METRICS, compared, shown_name
from fieldwise.evaluation.ranking import TOP_K, delong, top_k_metrics
from fieldwise.runs.ranking import Ranked
from fieldwise.runs.records import RunRecord

POPULARITY = "popularity"
TOP_K_NAMES = {"hr": "HR", "ndcg": "NDCG", "recall": "recall"}
MAIN_RANKING_METRIC = "ndcg"
REPLICATES = 200, 1000
"""The least and the largest number of bootstrap replicates."""
ROWS_IN_ALL_REPLICATES = 50_000_000
"""The target, between the least and the largest number of replicates."""
GAIN_COLUMNS = {"gain": "value", "gain_low": "low", "gain_high": "high", "p": "p"}
"""By the end of a column's name, the attribute of a difference from the baseline."""


MISSING = "-"
"""In place of a metric that a stored run lacks."""


def p_text(value: float) -> str:
    """A p-value at the resolution of the bootstrap."""
    return f"{value:.2g}" if value >= 1e-4 else "<.0001"


def replicates_for(rows: int) -> int:
    """The number of bootstrap replicates of a part with this many rows: fewer for larger parts."""
    return int(np.clip(ROWS_IN_ALL_REPLICATES // max(rows, 1), *REPLICATES))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The recipe's mean minus the baseline's, paired by row and by seed, with its interval and p."""

    estimate: Estimate
    # For AUC: DeLong's test of the means over seeds, without the variance over seeds; None if a
    # class has a single row.
    delong_p: float | None = None


@dataclass(frozen=True, kw_only=True)
class RecipeLine:
    """One recipe's runs."""

    recipe: str
    seeds: tuple[int, ...]
    # the mean over seeds of each metric on the test rows, without those that a stored run lacks
    metrics: Mapping[str, Estimate]
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
        shares = [share for share in self.network_shares if share < 1]
        if not shares:
            return None
        lr_alone = ""
        runs_of_lr_alone = shares.count(0)
        if runs_of_lr_alone:
            verb = "is" if runs_of_lr_alone == 1 else "are"
            lr_alone = f", so {runs_of_lr_alone} of them {verb} LR alone"
        runs = len(self.network_shares)
        noun = "run" if runs == 1 else "runs"
        percentages = ", ".join(f"{share:.0%}" for share in shares)
        return (
            f"{self.recipe}: {len(shares)} of {runs} {noun} ended as the mean of the network and LR, "
            f"in which the network has {percentages}{lr_alone}."
        )

    def gain(self, metric: str) -> Estimate | None:
        """The difference from the baseline in a metric; None for the baseline, and where a run lacks the metric."""
        if self.against is None or metric not in self.against:
            return None
        return self.against[metric].estimate

    @property
    def delong_text(self) -> str:
        """DeLong's p of the difference in AUC; empty where there is no difference."""
        if self.against is None or "auc" not in self.against:
            return ""
        p = self.against["auc"].delong_p
        return MISSING if p is None else p_text(p)


class _Leaderboard:
    """A leaderboard, which is a dataclass with lines."""

    def to_plain(self) -> dict[str, Any]:
        """The leaderboard as plain values for JSON, with p only for differences."""
        plain: dict[str, Any] = to_plain(self)
        for line in plain["lines"]:
            for metric in line["metrics"].values():
                del metric["p"]
        return plain


ShownInterval = Callable[[Interval, str], str]
"""The text of an interval and the sign of its numbers: `+` for a difference."""


def _common_cells(
    board: "Board | RankingBoard",
    heads: Mapping[str, str],
    main: str,
    shown: ShownInterval,
    names: Mapping[str, str],
) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: each line's metrics by their heads, its difference from the baseline in the main one, and p."""
    base = names.get(board.base, board.base).rpartition("/")[2]
    rows = []
    for line in board.lines:
        row = [names.get(line.recipe, line.recipe)]
        for metric in heads:
            mean = line.metrics.get(metric)
            row.append(MISSING if mean is None else shown(mean, ""))
        gain = line.gain(main)
        if line.against is None:
            row += ["baseline", ""]
        elif gain is None:
            row += [MISSING, ""]
        else:
            row += [shown(gain, "+"), p_text(gain.p)]
        rows.append(row)
    return ["recipe", *heads.values(), f"{heads[main]} minus {base}'s", "p"], rows


@dataclass(frozen=True, kw_only=True)
class Board(_Leaderboard):
    """A leaderboard of recipes with the same test rows, best first."""

    benchmark: str  # may be empty
    protocol: str  # may be empty
    rows: int  # of the test part
    task: str  # `binary` or `regression`
    metric: str  # to sort by
    base: str  # the baseline
    replicates: int  # of the bootstrap
    lines: tuple[RecipeLine, ...]

    @property
    def title(self) -> str:
        """Benchmark and protocol as a title."""
        words = []
        if self.benchmark:
            words.append(self.benchmark)
        if self.protocol:
            words.append(f"protocol {self.protocol}")
        return ", ".join(words) or "a task without a name"

    @property
    def mean_sentences(self) -> list[str]:
        """Sentences on the recipes with runs that are a mean with LR."""
        sentences = (line.mean_sentence for line in self.lines)
        return [sentence for sentence in sentences if sentence is not None]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that some line has, the main one first."""
        return [name for name in METRICS if any(name in line.metrics for line in self.lines)]

    def to_pandas(self) -> Any:
        """A pandas frame with a row per recipe: metrics, intervals, differences from the baseline, seconds."""
        rows = []
        for line in self.lines:
            row: dict[str, object] = {"recipe": line.recipe, "seeds": len(line.seeds)}
            for name in self.metrics:
                mean = line.metrics.get(name)
                row[name] = getattr(mean, "value", None)
                row[f"{name}_low"] = getattr(mean, "low", None)
                row[f"{name}_high"] = getattr(mean, "high", None)
                gain = line.gain(name)
                for ending, attribute in GAIN_COLUMNS.items():
                    row[f"{name}_{ending}"] = getattr(gain, attribute, None)
            row["parameters"] = line.parameters
            row["epochs"] = line.epochs
            row["seconds"] = line.seconds
            rows.append(row)
        return pandas_frame(rows)

    def plot(self) -> Chart:
        """A chart of the recipes with their 95 % intervals, best first; the baseline has a colour of its own."""
        lines = [line for line in self.lines if self.metric in line.metrics]
        names = [line.recipe for line in lines]
        means = [line.metrics[self.metric] for line in lines]
        low = [mean.low for mean in means]
        high = [mean.high for mean in means]
        return dot_chart(
            names,
            [mean.value for mean in means],
            wider(min(low), max(high), 0.01),
            title=f"test {shown_name(self.metric)}: means and 95 % intervals; {self.title}, {self.rows:,} test rows",
            low=low,
            high=high,
            colours=[int(name == self.base) for name in names],
        )

    def table(
        self, shown: ShownInterval = Interval.text, names: Mapping[str, str] | None = None
    ) -> Table:
        """Each recipe's metrics and its gain over the baseline, with intervals; `names` has other names of recipes."""
        heads = {name: shown_name(name) for name in self.metrics}
        columns, rows = _common_cells(self, heads, self.metric, shown, names or {})
        if self.metric == "auc":
            columns.append("DeLong p")
        columns += ["parameters", "epochs", "s/epoch"]

        for line, row in zip(self.lines, rows, strict=True):
            if self.metric == "auc":
                row.append(line.delong_text)
            seconds = MISSING
            if line.seconds_per_epoch is not None:
                seconds = f"{line.seconds_per_epoch:.1f}"
            row += [f"{line.parameters:,}", f"{line.epochs:.1f}", seconds]
        notes = [
            f"means over seeds with 95 % intervals of {self.replicates:,} bootstrap replicates",
            *self.mean_sentences,
        ]
        title = f"{self.title}, {self.rows:,} test rows"
        return Table(columns, rows, title=title, note=". ".join(notes))

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@dataclass(frozen=True, kw_only=True)
class RankingLine:
    """The ranking metrics of one recipe, or of popularity."""

    recipe: str
    metrics: Mapping[str, Estimate]  # the mean over users and seeds, by name
    by_seed: Mapping[str, tuple[float, ...]]  # the means over users, in the order of the seeds
    # differences from the baseline; None for the baseline itself
    against: Mapping[str, Estimate] | None
    # measures of the lists of the first k items, means over seeds; empty without the runs' lists
    lists: Mapping[str, float | None]
    # what is wrong if most users get the same list
    check: str | None

    def gain(self, metric: str) -> Estimate | None:
        """The difference from the baseline in a metric; None for the baseline."""
        return None if self.against is None else self.against[metric]


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

    def table(self, names: Mapping[str, str] | None = None) -> Table:
        """Each recipe's metrics and its gain over the baseline, with intervals; `names` has other names of recipes."""
        heads = {metric: f"{TOP_K_NAMES[metric]}@{self.k}" for metric in TOP_K}
        return Table(*_common_cells(self, heads, MAIN_RANKING_METRIC, Interval.text, names or {}))

    def lists_table(self, names: Mapping[str, str] | None = None) -> Table:
        """The measures of each recipe's lists; `names` as for `table`."""
        rows = []
        for line in self.lines:
            cells = [measure.text(line.lists.get(name)) for name, measure in LIST_MEASURES.items()]
            rows.append([(names or {}).get(line.recipe, line.recipe), *cells])
        titles = [measure.title for measure in LIST_MEASURES.values()]
        return Table([f"lists of {self.k}", *titles], rows)


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
    tasks = {record["task"] for records in runs.values() for record in records}
    check_base_and_metric(runs, tasks, base, metric)
    tables: dict[tuple[str, ...], dict[str, Sequence[RunRecord]]] = {}
    for name, records in runs.items():
        keys = {_table_key(record) for record in records}
        if len(keys) != 1:
            raise DataError(
                f"the seeds of a recipe must share their test rows, but those of {name} differ: set data_seed"
            )
        tables.setdefault(keys.pop(), {})[name] = records
    return [_board(table, base, metric, replicates, seed) for table in tables.values()]


def _table_key(record: RunRecord) -> tuple[str, ...]:
    """What the runs of one leaderboard have in common."""
    facts = [str(record[fact]) for fact in ("benchmark", "protocol", "task", "test_digest")]
    labels = record.test_rows.y
    return (*facts, hashlib.sha256(labels.tobytes()).hexdigest())


def check_base_and_metric(
    names: Collection[str], tasks: Collection[str], base: str | None, metric: str | None
) -> None:
    """Check, before any work, that some table can have the baseline and the metric."""
    if base is not None and base not in names:
        raise ConfigError(
            f"the baseline must be one of the recipes compared, found {base!r}: {nearest(base, names)}"
        )
    known: list[str] = []
    for task in sorted(tasks):
        known += compared(task)
    if metric is not None and metric not in known:
        words = " or ".join(sorted(tasks))
        raise ConfigError(
            f"metric must be one of {', '.join(known)} for a {words} label, found {metric!r}"
        )


Values = Mapping[str, Mapping[str, np.ndarray]]
"""By name and metric: values per seed [S], or draws of their mean [R]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Several models on the same rows or users: the intervals of their metrics and of paired differences.

    Args:
        values: by model and metric, its values per seed [S].
        draws: by model and metric, bootstrap replicates of its mean over seeds [R].
    """

    values: Values
    draws: Values

    def metrics(self, name: str) -> dict[str, Estimate]:
        """The means of a model's metrics over seeds."""
        means = {}
        for metric, by_seed in self.values[name].items():
            least = 0.0
            most = 1.0  # of metrics of rankings
            if metric in METRICS:
                least = METRICS[metric].least
                most = METRICS[metric].most
            means[metric] = estimate(by_seed, self.draws[name][metric], least=least, most=most)
        return means

    def gains(self, name: str, base: str) -> dict[str, Estimate]:
        """A model's means minus those of another, paired by row (or user) and by seed."""
        gains = {}
        for metric, by_seed in self.values[name].items():
            if metric in self.values[base]:
                drawn = self.draws[name][metric] - self.draws[base][metric]
                gains[metric] = estimate(by_seed - self.values[base][metric], drawn)
        return gains

    def by_seed(self, name: str) -> dict[str, tuple[float, ...]]:
        """A model's metrics by seed."""
        return {metric: tuple(values.tolist()) for metric, values in self.values[name].items()}


def compare_scores(
    y: np.ndarray,
    scores: Mapping[str, np.ndarray],
    values: Values,
    metrics: Sequence[str],
    *,
    weight: np.ndarray | None = None,
    replicates: int,
    seed: int,
) -> Comparison:
    """The comparison of models by scores of the same rows [S, N] and values of metrics [S], by model.

    Rows may have weights [N].
    """
    all_scores = np.concatenate(list(scores.values()))
    draws: dict[str, dict[str, np.ndarray]] = {name: {} for name in scores}
    for metric in metrics:
        drawn = resampled(y, all_scores, metric, weight=weight, replicates=replicates, seed=seed)
        means = drawn.reshape(replicates, len(scores), -1).mean(2)
        for number, name in enumerate(scores):
            draws[name][metric] = means[:, number]
    return Comparison(values=values, draws=draws)


def has_delong(y: np.ndarray) -> bool:
    """Whether binary labels have two rows of each class, which DeLong's test needs."""
    return bool(2 <= y.sum() <= len(y) - 2)


def _check_equal_numbers(runs: Mapping[str, Sequence[RunRecord]]) -> None:
    """Check that recipes can be compared seed by seed."""
    if len({len(records) for records in runs.values()}) != 1:
        sizes = ", ".join(f"{len(records)} of {name}" for name, records in runs.items())
        raise DataError(
            f"the recipes of a leaderboard must have equal numbers of runs, found {sizes}: add the others"
        )


def _board(
    runs: Mapping[str, Sequence[RunRecord]],
    base: str | None,
    metric: str | None,
    replicates: int,
    seed: int,
) -> Board:
    _check_equal_numbers(runs)
    first = next(iter(runs.values()))[0]
    if base is None or base not in runs:
        base = next(iter(runs))
    task = first["task"]
    tests = [record["test"] for records in runs.values() for record in records]
    metrics = [name for name in compared(task) if any(name in test for test in tests)]
    if metric in compared(task) and metric not in metrics:
        raise ConfigError(
            f"metric must be one that a run to compare was stored with, which are {', '.join(metrics)}; found "
            f"{metric!r}, which is newer than these runs: train them again"
        )
    main_metric = metric if metric in metrics else metrics[0]
    y, _, weight = first.test_rows
    scores = {
        name: np.stack([record.test_rows.score for record in records])
        for name, records in runs.items()
    }
    values = {name: _values_by_seed(records, metrics) for name, records in runs.items()}
    comparison = compare_scores(
        y, scores, values, metrics, weight=weight, replicates=replicates, seed=seed
    )
    has_test_of_auc = weight is None and has_delong(y)

    lines = []
    for name, records in runs.items():
        against = None
        if name != base:
            gains = comparison.gains(name, base)
            against = {m: Difference(estimate=gain) for m, gain in gains.items()}
            if has_test_of_auc and "auc" in gains:
                p = delong(y, scores[name], scores[base]).p
                against["auc"] = Difference(estimate=gains["auc"], delong_p=p)
        lines.append(_recipe_line(name, records, comparison, against))
    lines.sort(key=lambda line: _sort_value(line, main_metric))
    return Board(
        benchmark=first["benchmark"],
        protocol=first["protocol"],
        rows=len(y),
        task=task,
        metric=main_metric,
        base=base,
        replicates=replicates,
        lines=tuple(lines),
    )


def _values_by_seed(records: Sequence[RunRecord], metrics: Sequence[str]) -> dict[str, np.ndarray]:
    """The metrics of a recipe's runs [S], without those that a run lacks."""
    values = {}
    for metric in metrics:
        by_seed = [record["test"].get(metric) for record in records]
        if None not in by_seed:
            values[metric] = np.array(by_seed)
    return values


def _sort_value(line: RecipeLine, metric: str) -> float:
    """The value that sorts lines by a metric, the best first; lines without it come last."""
    if metric not in line.metrics:
        return math.inf
    value = line.metrics[metric].value
    return -value if METRICS[metric].higher else value


def _recipe_line(
    name: str,
    records: Sequence[RunRecord],
    comparison: Comparison,
    against: Mapping[str, Difference] | None,
) -> RecipeLine:
    epoch_seconds = [record.about.get("seconds_per_epoch") for record in records]
    timed = [seconds for seconds in epoch_seconds if seconds is not None]
    shares = [float(record.about.get("network_share", 1.0)) for record in records]
    return RecipeLine(
        recipe=name,
        seeds=tuple(record["seed"] for record in records),
        metrics=comparison.metrics(name),
        by_seed=comparison.by_seed(name),
        against=against,
        network_shares=tuple(shares),
        parameters=records[0]["parameters"],
        epochs=float(np.mean([record["epochs"] for record in records])),
        seconds=float(np.mean([record["seconds"] for record in records])),
        seconds_per_epoch=float(np.mean(timed)) if timed else None,
        runs=tuple(str(record.folder) for record in records),
    )


def ranking_boards(
    runs: Mapping[str, Sequence[Ranked]], *, k: int = 10, base: str | None = None
) -> list[RankingBoard]:
    """A leaderboard for each ranking task (users, items and exclusions), usually one; `base` as for `leaderboards`."""
    tables: dict[frozenset[str], dict[str, Sequence[Ranked]]] = {}
    for name, rankings in runs.items():
        digests = frozenset(str(ranked.about["digest"]) for ranked in rankings)
        tables.setdefault(digests, {})[name] = rankings
    return [_ranking_board(table, k, base) for table in tables.values()]


def _ranking_board(runs: Mapping[str, Sequence[Ranked]], k: int, base: str | None) -> RankingBoard:
    if base is None or base not in runs:
        base = next(iter(runs))
    first = runs[base][0]

    # Popularity has no seeds: it is the same for each of the baseline's.
    ranks = {name: [ranked.rank for ranked in rankings] for name, rankings in runs.items()}
    ranks[POPULARITY] = [first.popular]
    by_seed = {}
    for name, ranks_by_seed in ranks.items():
        by_seed[name] = [top_k_metrics(rank, first.user, first.users, k) for rank in ranks_by_seed]
    _, replicates = REPLICATES
    comparison = _compare_user_metrics(by_seed, replicates)
    lines = []
    for name in ranks:
        is_popularity = name == POPULARITY
        exposures = _exposures([first] if is_popularity else runs[name], k, popular=is_popularity)
        check = None
        if exposures and not is_popularity:
            check = same_list_sentence(exposures)
        line = RankingLine(
            recipe=name,
            metrics=comparison.metrics(name),
            by_seed=comparison.by_seed(name),
            against=None if name == base else comparison.gains(name, base),
            lists=list_measures(exposures) if exposures else {},
            check=check,
        )
        lines.append(line)
    lines.sort(key=lambda line: line.metrics[MAIN_RANKING_METRIC].value, reverse=True)
    return RankingBoard(
        k=k,
        sentence=str(first.about["sentence"]),
        users=first.users,
        items=int(first.about["items"]),
        candidates=first.about["settings"].get("candidates"),
        base=base,
        replicates=replicates,
        lines=tuple(lines),
    )


def _compare_user_metrics(
    by_seed: Mapping[str, Sequence[Mapping[str, np.ndarray]]], replicates: int
) -> Comparison:
    """Means over users of the metrics of `TOP_K` by name and seed, and draws of these means over users."""
    values: dict[str, dict[str, np.ndarray]] = {}
    user_means = []
    for name, metrics_by_seed in by_seed.items():
        values[name] = {}
        for metric in TOP_K:
            of_users = [metrics[metric] for metrics in metrics_by_seed]
            values[name][metric] = np.array([value.mean() for value in of_users])
            user_means.append(np.mean(of_users, axis=0))

    drawn = resampled_means(np.array(user_means), replicates=replicates)
    drawn = drawn.reshape(replicates, len(by_seed), len(TOP_K))
    draws = {}
    for number, name in enumerate(by_seed):
        draws[name] = dict(zip(TOP_K, drawn[:, number].T, strict=True))
    return Comparison(values=values, draws=draws)


def _exposures(rankings: Sequence[Ranked], k: int, *, popular: bool) -> list[Exposure]:
    """The exposure by each seed's lists of k items; none if one has no such lists."""
    exposures = []
    for ranked in rankings:
        exposure = None
        if ranked.lists is not None:
            exposure = ranked.lists.exposure(k, popular=popular)
        if exposure is None:
            return []
        exposures.append(exposure)
    return exposures
