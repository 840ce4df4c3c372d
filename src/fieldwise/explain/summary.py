"""Summary of explanations over a set of rows: strongest fields and pairs, means and standard deviations.

Letters: N rows, F fields, P = F(F-1)/2 pairs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fieldwise.data.read.simulation import PLANTED
from fieldwise.display import Table, number
from fieldwise.explain.attribution import pair_interactions
from fieldwise.explain.explanation import Explanation
from fieldwise.explain.subject import Subject

__all__ = ["planted_pairs_found", "strongest_pairs", "summary", "summary_tables"]

DRAWS = 4
PAIR_ROWS = 32, 256  # minimum and maximum number of rows for measuring pairs
PAIR_SCORES = 200_000  # limit on scores, one per pair and row, above the minimum number of rows


def summary(explanation: Explanation, *, seed: int = 0) -> dict[str, Any]:
    """Means and standard deviations over the rows, as plain values.

    `fields`, by mean absolute contribution; `pairs`, by strength (`strongest_pairs`); for AutoInt the mean `attention`
    [L, H, F, F] and its standard deviation; for IntTower the means of each level's score, of the gates and of the share
    of matches by item head.

    Args:
        explanation: explanation of at least one row.
        seed: seed for sampling background rows for the pairs.
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
    if "attention" in shown and "pairs" not in added:
        of = {"mean": shown["attention"].mean(0).tolist(), "deviation": shown["attention"].std(0).tolist()}
        found["attention"] = {"fields": list(subject.fields), **of}
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
            gates, effects = shown[f"{side}_gates"], shown[f"{side}_gate_effects"]
            found[f"{side}_gates"] = [
                {
                    "field": subject.fields[f],
                    "mean": float(gates[:, k].mean()),
                    "deviation": float(gates[:, k].std()),
                    "mean_effect": float(effects[:, k].mean()),
                }
                for k, f in enumerate(subject.tower_fields(side))
            ]
    return found


def summary_tables(found: dict[str, Any], pairs: int) -> dict[str, Table]:
    """The parts of a `summary` as tables of texts: `fields`, `pairs` (the first ones), `levels` and `gates`."""
    columns = ["field", "mean absolute", "mean", "standard deviation"]
    rows = [
        [f["field"], number(f["mean_size"]), number(f["mean"], "+"), number(f["deviation"])] for f in found["fields"]
    ]
    tables = {"fields": Table(title="Fields, by mean absolute contribution", columns=columns, rows=rows)}
    if found["pairs"]:
        parts = [name for name in found["pairs"][0] if name != "fields"]
        rows = [[" × ".join(p["fields"]), *(number(p[part]) for part in parts)] for p in found["pairs"][:pairs]]
        title = f"Pairs, by interaction strength: the first {len(rows)} of {len(found['pairs'])}"
        columns = ["pair", *(part.replace("_", " ") for part in parts)]
        tables["pairs"] = Table(title=title, columns=columns, rows=rows)
    if "levels" in found:
        heads = [f"item head {k + 1}" for k in range(len(found["levels"][0]["matched_share"]))]
        rows = [
            [str(one["level"]), number(one["mean"], "+"), number(one["deviation"]), *map(number, one["matched_share"])]
            for one in found["levels"]
        ]
        title = "Levels: scores, and the share of user heads that match each item head best"
        columns = ["level", "mean score", "standard deviation", *heads]
        tables["levels"] = Table(title=title, columns=columns, rows=rows)
        rows = [
            [gate["field"], side, number(gate["mean"]), number(gate["deviation"]), number(gate["mean_effect"], "+")]
            for side in ("user", "item")
            for gate in sorted(found[f"{side}_gates"], key=lambda g: -g["mean"])
        ]
        title = "Gates: each field's weight in its tower, and its effect on the score"
        columns = ["field", "tower", "mean", "standard deviation", "mean effect"]
        tables["gates"] = Table(title=title, columns=columns, rows=rows)
    return tables


def strongest_pairs(
    subject: Subject, *, rows: int | None = None, draws: int = DRAWS, seed: int = 0
) -> list[dict[str, Any]]:
    """All pairs of fields by the root mean square of their interaction effects, strongest first.

    The mean is over rows and background rows of `pair_interactions`.

    Besides the `strength`, FM and AFM have the mean and standard deviation of the pair's term over all rows, and AFM
    those of its attention.

    Args:
        subject: N rows; strengths are measured on at most `rows` of them, evenly spaced.
        rows: see above; 256 if omitted, fewer with many fields, but at least 32.
        draws: background rows per row.
        seed: seed for sampling background rows.
    """
    if not subject.pairs:
        return []
    least, most = PAIR_ROWS
    wanted = min(most, max(least, PAIR_SCORES // (draws * len(subject.pairs)))) if rows is None else rows
    some = np.unique(np.linspace(0, len(subject.table) - 1, min(wanted, len(subject.table))).astype(int))
    others = subject.others(draws, seed)[some]
    together = pair_interactions(subject.mixer, subject.logit, others, some)
    terms = subject.terms
    parts = {"term": terms.added["pairs"]} if "pairs" in terms.added else {}
    if parts and "attention" in terms.shown:
        parts["attention"] = terms.shown["attention"]
    found = []
    for p, (i, j) in enumerate(subject.pairs):
        pair = {
            "fields": [subject.fields[i], subject.fields[j]],
            "strength": float(np.sqrt(np.square(together[:, :, p]).mean())),
        }
        for name, part in parts.items():
            pair |= {f"mean_{name}": float(part[:, p].mean()), f"{name}_deviation": float(part[:, p].std())}
        found.append(pair)
    return sorted(found, key=lambda pair: -pair["strength"])


def planted_pairs_found(pairs: Sequence[Sequence[str]], k: int | None = None) -> tuple[int, int]:
    """The number of the simulated log's planted pairs among the first k, and the number of planted pairs.

    Args:
        pairs: two field names each, strongest first.
        k: the number of planted pairs, if omitted.

    >>> planted_pairs_found([("genres", "age_group"), ("user_id", "item_id")])
    (1, 5)
    """
    planted = {frozenset(columns) for columns, *_ in PLANTED.values() if len(columns) == 2}
    first = {frozenset(pair) for pair in pairs[: len(planted) if k is None else k]}
    return len(planted & first), len(planted)
