"""What explanations of many rows have in common: means by field and by pair, attention, gates, and their tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fieldwise.data.read.simulation import PLANTED
from fieldwise.display import Table, number
from fieldwise.explain.attribution import pair_interactions
from fieldwise.explain.explanation import Explanation
from fieldwise.explain.subject import Subject
from fieldwise.explain.terms import PairTerms, moments

BACKGROUND_ROWS_PER_PAIR_ROW = 4
PAIR_ROWS_RANGE = 32, 256
"""The minimum and maximum number of rows for measuring pairs."""
MAX_PAIR_SCORES = 200_000
"""Limit on scores, one per pair and row, above the minimum number of rows."""
METHOD_WORDS = {
    "terms": "exact terms",
    "tree_shap": "SHAP values of trees",
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
        fields.append({"field": name, "mean_size": mean_size, **moments(contributions)})
    figures: dict[str, Any] = {
        "label": subject.label,
        "rows": len(explanation.contributions),
        "method": explanation.method,
        "mean_score": float(subject.logit.mean()),
        "largest_gap": float(np.abs(explanation.gap).max()),
        "fields": sorted(fields, key=lambda field: -field["mean_size"]),
        "pairs": strongest_pairs(subject, seed=seed),
    }
    for group in subject.term_groups:
        figures |= group.summary()
    return figures


def summary_tables(subject: Subject, summary: dict[str, Any], pairs: int) -> dict[str, Table]:
    """The parts of a `summary` as tables of texts: `fields`, `pairs` (the first ones), `levels` and `gates`."""
    tables = {"fields": _fields_table(summary["fields"])}
    if summary["pairs"]:
        tables["pairs"] = _pairs_table(summary["pairs"], pairs)
    for group in subject.term_groups:
        tables |= group.summary_tables(summary)
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

    pair_terms = [group for group in subject.term_groups if isinstance(group, PairTerms)]
    pairs = []
    for p, (i, j) in enumerate(subject.pairs):
        pair: dict[str, Any] = {
            "fields": [subject.fields[i], subject.fields[j]],
            "strength": float(np.sqrt(np.square(interactions_MKP[:, :, p]).mean())),
        }
        for group in pair_terms:
            pair |= group.of_pair(p)
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
