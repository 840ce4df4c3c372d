"""A set of rows explained at once: which fields and pairs a model goes by, and how much that varies.

Letters: N rows, F fields, P = F(F-1)/2 pairs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fieldwise.data.read.simulated.planted import planted_interactions
from fieldwise.explain.explanation import Explanation, Subject
from fieldwise.explain.occlusion import pair_interactions
from fieldwise.models.afm import AFMNetwork

__all__ = ["planted_pairs_found", "strongest_pairs", "summary"]

DRAWS = 4
PAIR_ROWS = 32, 256  # whose pairs are taken apart, at least and at most
PAIR_SCORES = 200_000  # every pair of every such row is scored anew: so often, unless that is fewer rows than the least


def summary(explanation: Explanation, *, seed: int = 0) -> dict[str, Any]:
    """Means and spreads over the rows, in plain values.

    `fields`, by the mean size of their contributions; `pairs`, by strength (`strongest_pairs`); for AutoInt the mean
    `attention` [L, H, F, F] and its deviation; for IntTower the mean of each level's score, of the gates and of how
    often each item head is matched.

    Args:
        explanation: of at least one row.
        seed: of the background rows that the pairs are measured by.
    """
    subject, contributions = explanation.subject, explanation.contributions
    fields = [
        {
            "field": name,
            "mean_size": float(np.abs(contributions[:, f]).mean()),
            "mean": float(contributions[:, f].mean()),
            "deviation": float(contributions[:, f].std()),
        }
        for f, name in enumerate(subject.fields)
    ]
    found: dict[str, Any] = {
        "label": subject.label,
        "rows": len(contributions),
        "method": explanation.method,
        "mean_score": float(subject.logit.mean()),
        "largest_gap": float(np.abs(explanation.gap).max()),
        "fields": sorted(fields, key=lambda f: -f["mean_size"]),
        "pairs": strongest_pairs(subject, seed=seed),
    }
    added, shown = subject.terms.added, subject.terms.shown
    if "attention" in shown and not isinstance(subject.network, AFMNetwork):
        found["attention"] = {"fields": list(subject.fields), **_spread(shown["attention"])}
    if "matches" in added:
        heads = range(int(shown["matched_head"].max()) + 1)
        found["levels"] = [
            {
                "level": level + 1,
                "mean": float(added["matches"][:, level].sum(1).mean()),
                "deviation": float(added["matches"][:, level].sum(1).std()),
                "matched_share": [float((shown["matched_head"][:, level] == k).mean()) for k in heads],
            }
            for level in range(added["matches"].shape[1])
        ]
        for side in ("user", "item"):
            tower = subject.network.get_submodule(f"{side}_tower")
            gates, effects = shown[f"{side}_gates"], shown[f"{side}_gate_effects"]
            found[f"{side}_gates"] = [
                {
                    "field": subject.fields[f],
                    "mean": float(gates[:, k].mean()),
                    "deviation": float(gates[:, k].std()),
                    "mean_effect": float(effects[:, k].mean()),
                }
                for k, f in enumerate(tower.get_buffer("positions").tolist())
            ]
    return found


def _spread(x: np.ndarray) -> dict[str, Any]:
    return {"mean": x.mean(0).tolist(), "deviation": x.std(0).tolist()}


def strongest_pairs(
    subject: Subject, *, rows: int | None = None, draws: int = DRAWS, seed: int = 0
) -> list[dict[str, Any]]:
    """All pairs of fields by the root mean square of what they give together, strongest first.

    The mean is over rows and background rows of `pair_interactions`.

    Beside the `strength` stand, for FM and AFM, mean and deviation of the pair's term, and for AFM those of its
    attention, over all rows.

    Args:
        subject: N rows; strengths are measured on at most `rows` of them, spread evenly.
        rows: see there; 256 if omitted, and fewer with many fields, but at least 32.
        draws: background rows that each of these meets.
        seed: of the background rows.
    """
    if not subject.pairs:
        return []
    least, most = PAIR_ROWS
    wanted = min(most, max(least, PAIR_SCORES // (draws * len(subject.pairs)))) if rows is None else rows
    some = np.unique(np.linspace(0, len(subject.table) - 1, min(wanted, len(subject.table))).astype(int))
    others = subject.others(draws, seed)[some]
    together = pair_interactions(subject.mixer, subject.logit, others, some)
    parts = {"term": subject.terms.added.get("pairs")}
    if isinstance(subject.network, AFMNetwork):
        parts["attention"] = subject.terms.shown["attention"]
    found = []
    for p, (i, j) in enumerate(subject.pairs):
        pair = {
            "fields": [subject.fields[i], subject.fields[j]],
            "strength": float(np.sqrt(np.square(together[:, :, p]).mean())),
        }
        for name, part in parts.items():
            if part is not None:
                pair |= {f"mean_{name}": float(part[:, p].mean()), f"{name}_deviation": float(part[:, p].std())}
        found.append(pair)
    return sorted(found, key=lambda pair: -pair["strength"])


def planted_pairs_found(pairs: Sequence[Sequence[str]], k: int | None = None) -> tuple[int, int]:
    """How many of the simulated log's planted pairs are among the first k, and how many there are.

    Args:
        pairs: two field names each, strongest first.
        k: the number of planted pairs, if omitted.

    >>> planted_pairs_found([("genres", "age_group"), ("user_id", "item_id")])
    (1, 5)
    """
    planted = {frozenset(p.fields) for p in planted_interactions() if p.order == 2}
    first = {frozenset(pair) for pair in pairs[: len(planted) if k is None else k]}
    return len(planted & first), len(planted)
