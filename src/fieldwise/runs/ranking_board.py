"""Ranking leaderboards: hit rate, NDCG and recall at k, with intervals over users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.evaluation.bootstrap import Estimate, estimate, resampled_means
from fieldwise.evaluation.top_k import TOP_K, top_k_metrics
from fieldwise.runs.leaderboard import board_to_plain
from fieldwise.runs.ranking import Ranked

__all__ = ["POPULARITY", "TOP_K_NAMES", "RankingBoard", "RankingLine", "ranking_boards"]

POPULARITY = "popularity"
TOP_K_NAMES = {"hr": "HR", "ndcg": "NDCG", "recall": "recall"}
MAIN = "ndcg"


@dataclass(frozen=True, kw_only=True)
class RankingLine:
    """The ranking metrics of one recipe, or of popularity.

    Args:
        recipe: its name, or `popularity`.
        metrics: the mean over users and seeds, by name.
        by_seed: the means over users, in the order of the seeds.
        against: differences from the baseline, by metric; None for the baseline itself.
    """

    recipe: str
    metrics: Mapping[str, Estimate]
    by_seed: Mapping[str, tuple[float, ...]]
    against: Mapping[str, Estimate] | None


@dataclass(frozen=True, kw_only=True)
class RankingBoard:
    """A leaderboard of recipes and popularity on the same ranking task, by NDCG, best first.

    Args:
        k: the cutoff.
        sentence: description of the task.
        users: number of users.
        items: number of items of the catalogue.
        candidates: number of sampled items per user besides the liked ones; None: all items.
        base: the baseline.
        replicates: number of bootstrap replicates over users.
        lines: the lines, best first.
    """

    k: int
    sentence: str
    users: int
    items: int
    candidates: int | None
    base: str
    replicates: int
    lines: tuple[RankingLine, ...]

    def to_plain(self) -> dict[str, Any]:
        """The leaderboard as plain values for JSON, with p only for differences."""
        return board_to_plain(self)


def ranking_boards(
    runs: Mapping[str, Sequence[Ranked]], *, k: int = 10, base: str | None = None, replicates: int = 1000, seed: int = 0
) -> list[RankingBoard]:
    """A leaderboard for each ranking task (users, items and exclusions), usually one.

    Args:
        runs: rankings by recipe name, one per seed.
        k: the cutoff.
        base: the baseline; the first of each table if omitted or not in it.
        replicates: number of bootstrap replicates over users.
        seed: seed of the bootstrap.
    """
    tables: dict[tuple[str, ...], list[str]] = {}
    for name, rankings in runs.items():
        tables.setdefault(tuple(sorted({str(one.about["digest"]) for one in rankings})), []).append(name)
    return [_board({name: runs[name] for name in names}, k, base, replicates, seed) for names in tables.values()]


def _board(runs: Mapping[str, Sequence[Ranked]], k: int, base: str | None, replicates: int, seed: int) -> RankingBoard:
    names = list(runs)
    base = base if base in names else names[0]
    first = runs[base][0]
    places = {name: [one.place for one in runs[name]] for name in names} | {POPULARITY: [first.popular]}
    by_user = {name: [top_k_metrics(one, first.user, first.users, k) for one in of] for name, of in places.items()}
    by_seed = {name: {m: np.array([one[m].mean() for one in of]) for m in TOP_K} for name, of in by_user.items()}
    means = np.array([np.mean([one[m] for one in of], axis=0) for of in by_user.values() for m in TOP_K])
    draws = resampled_means(means, replicates=replicates, seed=seed).reshape(replicates, len(places), len(TOP_K))
    drawn = {name: dict(zip(TOP_K, draws[:, n].T, strict=True)) for n, name in enumerate(places)}
    lines = []
    for name in places:
        against = None
        if name != base:
            against = {
                # Popularity has no seeds: it is the same for each of the baseline's.
                m: estimate(by_seed[name][m] - by_seed[base][m], drawn[name][m] - drawn[base][m])
                for m in TOP_K
            }
        lines.append(
            RankingLine(
                recipe=name,
                metrics={m: estimate(by_seed[name][m], drawn[name][m], least=0.0) for m in TOP_K},
                by_seed={m: tuple(by_seed[name][m].tolist()) for m in TOP_K},
                against=against,
            )
        )
    lines.sort(key=lambda line: line.metrics[MAIN].value, reverse=True)
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
