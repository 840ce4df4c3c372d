"""Rankings of several recipes side by side: hit rate, NDCG and recall of the first k, with intervals over users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.config import to_plain
from fieldwise.evaluation.bootstrap import Estimate, estimate, resampled_means
from fieldwise.evaluation.top_k import TOP_K, top_k_metrics
from fieldwise.runs.ranking import Ranked

__all__ = ["POPULARITY", "TOP_K_NAMES", "RankingBoard", "RankingLine", "ranking_boards"]

POPULARITY = "popularity"
TOP_K_NAMES = {"hr": "HR", "ndcg": "NDCG", "recall": "recall"}
MAIN = "ndcg"


@dataclass(frozen=True, kw_only=True)
class RankingLine:
    """One recipe's rankings, or those by popularity.

    Args:
        recipe: its name, or `popularity`.
        metrics: the mean over users and seeds, by name.
        by_seed: the means over users, in the order of the seeds.
        against: what is gained over the baseline, by metric; None for the baseline itself.
    """

    recipe: str
    metrics: Mapping[str, Estimate]
    by_seed: Mapping[str, tuple[float, ...]]
    against: Mapping[str, Estimate] | None


@dataclass(frozen=True, kw_only=True)
class RankingBoard:
    """Recipes that ranked the same items for the same users, and popularity; the best by NDCG first.

    Args:
        k: how many items of each ranking count.
        sentence: who was to find what among which items.
        users: how many.
        items: of the catalogue.
        candidates: items drawn for each user beside what was liked; None: all items.
        base: the line that others are tested against.
        replicates: of the bootstrap over users.
        lines: the best first.
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
        """Plain values for JSON; a p is given of differences alone."""
        plain: dict[str, Any] = to_plain(self)
        for line in plain["lines"]:
            for found in line["metrics"].values():
                del found["p"]
        return plain


def ranking_boards(
    runs: Mapping[str, Sequence[Ranked]], *, k: int = 10, base: str | None = None, replicates: int = 1000, seed: int = 0
) -> list[RankingBoard]:
    """A table for each set of users, items and what was left out: most often one.

    Args:
        runs: of each recipe by its name, a ranking a seed.
        k: how many items of each ranking count.
        base: the recipe to test against; the first of each table, where left out or not in it.
        replicates: of the bootstrap over users.
        seed: of the bootstrap.
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
