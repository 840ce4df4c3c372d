"""What explanations of many rows have in common: means by field and by pair, attention, gates, and their tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fieldwise.data.read.simulation import PLANTED
from fieldwise.display import Table, number
from fieldwise.explain.attribution import pair_interactions
from fieldwise.explain.explanation import Explanation
from fieldwise.explain.subject import Subject

BACKGROUND_ROWS_PER_PAIR_ROW = 4
PAIR_ROWS_RANGE = 32, 256
"""The minimum and maximum number of rows for measuring pairs."""
MAX_PAIR_SCORES = 200_000
"""Limit on scores, one per pair and row, above the minimum number of rows."""
METHOD_WORDS = {
    "terms": "exact terms",
    "integrated_gradients": "integrated gradients",
    "occlusion": "the score's drop without a field",
}


def summary(explanation: Explanation, *, seed: int = 0) -> dict[str, Any]:
    """Means and standard deviations over the rows, as plain values.

    `fields`, by mean absolute contribution; `pairs`, by strength (`strongest_pairs`); for AutoInt
    the mean `attention` [L, H, F, F] and its standard deviation; for IntTower the means of each
    level's score, of the gates and of the share of matches by item head.

    Args:
        explanation: explanation of at least one row.
        seed: seed for sampling background rows for the pairs.
    """
    subject = explanation.subject
    fields = []
    for name, contributions in zip(subject.fields, explanation.contributions.T, strict=True):
        mean_size = float(np.abs(contributions).mean())
        fields.append({"field": name, "mean_size": mean_size, **_moments(contributions)})
    figures: dict[str, Any] = {
        "label": subject.label,
        "rows": len(explanation.contributions),
        "method": explanation.method,
        "mean_score": float(subject.logit.mean()),
        "largest_gap": float(np.abs(explanation.gap).max()),
        "fields": sorted(fields, key=lambda field: -field["mean_size"]),
        "pairs": strongest_pairs(subject, seed=seed),
    }

    added = subject.terms.added
    shown = subject.terms.shown
    if "attention" in shown and "pairs" not in added:
        figures["attention"] = {
            "fields": list(subject.fields),
            "mean": shown["attention"].mean(0).tolist(),
            "deviation": shown["attention"].std(0).tolist(),
        }
    if "matches" in added:
        figures["levels"] = _levels(added["matches"], shown["matched_head"])
        for side in ("user", "item"):
            figures[f"{side}_gates"] = _gates(subject, side)
    return figures


def _moments(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "deviation": float(values.std())}


def _levels(matches_NLH: np.ndarray, matched_NLH: np.ndarray) -> list[dict[str, Any]]:
    """IntTower's mean score of each level, and how often each item head is the matched one."""
    item_heads = range(int(matched_NLH.max()) + 1)
    scores_LN = matches_NLH.sum(2).T
    levels = []
    for level, scores_N in enumerate(scores_LN):
        matched_NH = matched_NLH[:, level]
        shares = [float((matched_NH == head).mean()) for head in item_heads]
        levels.append({"level": level + 1, **_moments(scores_N), "matched_share": shares})
    return levels


def _gates(subject: Subject, side: str) -> list[dict[str, Any]]:
    """The mean gate of each field of IntTower's user or item side, and its mean effect on the score."""
    weights = subject.terms.shown[f"{side}_gates"]
    effects = subject.terms.shown[f"{side}_gate_effects"]
    gates = []
    for k, field in enumerate(subject.tower_fields(side)):
        mean_effect = float(effects[:, k].mean())
        name = subject.fields[field]
        gates.append({"field": name, **_moments(weights[:, k]), "mean_effect": mean_effect})
    return gates


def summary_tables(summary: dict[str, Any], pairs: int) -> dict[str, Table]:
    """The parts of a `summary` as tables of texts: `fields`, `pairs` (the first ones), `levels` and `gates`."""
    tables = {"fields": _fields_table(summary["fields"])}
    if summary["pairs"]:
        tables["pairs"] = _pairs_table(summary["pairs"], pairs)
    if "levels" in summary:
        tables["levels"] = _levels_table(summary["levels"])
        tables["gates"] = _gates_table(summary)
    return tables


def _fields_table(fields: Sequence[dict[str, Any]]) -> Table:
    columns = ["field", "mean absolute", "mean", "standard deviation"]
    rows = []
    for field in fields:
        size = number(field["mean_size"])
        rows.append([field["field"], size, number(field["mean"], "+"), number(field["deviation"])])
    return Table(columns, rows, "Fields, by mean absolute contribution")


def _pairs_table(pairs: Sequence[dict[str, Any]], most: int) -> Table:
    measures = [name for name in pairs[0] if name != "fields"]
    columns = ["pair", *(measure.replace("_", " ") for measure in measures)]
    rows = []
    for pair in pairs[:most]:
        values = [number(pair[name]) for name in measures]
        rows.append([" × ".join(pair["fields"]), *values])
    title = f"Pairs, by interaction strength: the first {len(rows)} of {len(pairs)}"
    return Table(columns, rows, title)


def _levels_table(levels: Sequence[dict[str, Any]]) -> Table:
    heads = [f"item head {k + 1}" for k in range(len(levels[0]["matched_share"]))]
    columns = ["level", "mean score", "standard deviation", *heads]
    rows = []
    for level in levels:
        row = [str(level["level"]), number(level["mean"], "+"), number(level["deviation"])]
        row += [number(share) for share in level["matched_share"]]
        rows.append(row)
    title = "Levels: scores, and the share of user heads that match each item head best"
    return Table(columns, rows, title)


def _gates_table(summary: dict[str, Any]) -> Table:
    columns = ["field", "tower", "mean", "standard deviation", "mean effect"]
    rows = []
    for side in ("user", "item"):
        for gate in sorted(summary[f"{side}_gates"], key=lambda gate: -gate["mean"]):
            effect = number(gate["mean_effect"], "+")
            moments = [number(gate["mean"]), number(gate["deviation"])]
            rows.append([gate["field"], side, *moments, effect])
    title = "Gates: each field's weight in its tower, and its effect on the score"
    return Table(columns, rows, title)


def strongest_pairs(
    subject: Subject,
    *,
    rows: int | None = None,
    draws: int = BACKGROUND_ROWS_PER_PAIR_ROW,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """All pairs of fields by the root mean square of their interaction effects, strongest first.

    The mean is over rows and background rows of `pair_interactions`.

    Besides the `strength`, FM and AFM have the mean and standard deviation of the pair's term over
    all rows, and AFM those of its attention.

    Args:
        subject: N rows; strengths are measured on at most `rows` of them, evenly spaced.
        rows: see above; 256 if omitted, fewer with many fields, but at least 32.
        draws: background rows per row.
        seed: seed for sampling background rows.
    """
    if not subject.pairs:
        return []
    if rows is None:
        fewest, most = PAIR_ROWS_RANGE
        rows = min(most, max(fewest, MAX_PAIR_SCORES // (draws * len(subject.pairs))))
    total = len(subject.table)
    sample = np.unique(np.linspace(0, total - 1, min(rows, total)).astype(int))
    others = subject.others(draws, seed)[sample]
    interactions_MKP = pair_interactions(subject.mixer, subject.logit, others, sample)

    terms = {}
    if "pairs" in subject.terms.added:
        terms["term"] = subject.terms.added["pairs"]
        if "attention" in subject.terms.shown:
            terms["attention"] = subject.terms.shown["attention"]
    pairs = []
    for p, (i, j) in enumerate(subject.pairs):
        pair = {
            "fields": [subject.fields[i], subject.fields[j]],
            "strength": float(np.sqrt(np.square(interactions_MKP[:, :, p]).mean())),
        }
        for name, term_NP in terms.items():
            pair[f"mean_{name}"] = float(term_NP[:, p].mean())
            pair[f"{name}_deviation"] = float(term_NP[:, p].std())
        pairs.append(pair)
    return sorted(pairs, key=lambda pair: -pair["strength"])


def planted_pairs_found(pairs: Sequence[Sequence[str]]) -> tuple[int, int]:
    """The number of the simulated log's planted pairs among as many first pairs of field names, and their number.

    >>> planted_pairs_found([("genres", "age_group"), ("user_id", "item_id")])
    (1, 5)
    """
    planted = {frozenset(columns) for columns, *_ in PLANTED.values() if len(columns) == 2}
    first = {frozenset(pair) for pair in pairs[: len(planted)]}
    return len(planted & first), len(planted)
