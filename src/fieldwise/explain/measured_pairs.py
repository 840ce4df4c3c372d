"""Interaction effects of pairs of fields for one row, in any model.

Letters: F fields, S sets of fields, K background rows.
"""

from typing import Any

import numpy as np

from fieldwise.explain.explanation import DRAWS, Explanation

__all__ = ["measured_pairs"]

FIELDS = 12  # fields whose pairs are measured: 66 pairs


def measured_pairs(explanation: Explanation, row: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """The pairs among the row's twelve strongest fields by interaction effect, strongest first.

    `effect` is the mean over background rows of `f(x) - f(x without i) - f(x without j) + f(x without both)`, where
    "without" means with the background row's value (`fieldwise.explain.occlusion`): effects of
    single fields cancel. Effects need not add up to the score.

    Args:
        explanation: its contributions define the strongest fields.
        row: number of the row.
        seed: seed for sampling background rows, if there are more than 32.

    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> from fieldwise.explain import explain
    >>> log = simulate(1000, users=50, items=30)
    >>> schema = Schema(fields=(Categorical("device"), Categorical("gender")), label=Label("liked"))
    >>> model = Recommender(schema, FM(embedding_dim=4), training=TrainingSettings(epochs=1)).fit(log)
    >>> [pair["fields"] for pair in measured_pairs(explain(model.bundle_, log.head(5)), 0)]
    [['device', 'gender']]
    """
    subject = explanation.subject
    strongest = np.argsort(-np.abs(explanation.contributions[row]), kind="stable")[:FIELDS]
    chosen = np.sort(strongest)
    left, right = np.triu_indices(len(chosen), 1)
    others = subject.others(DRAWS, seed)[row]
    one_SF = np.eye(len(subject.fields), dtype=bool)[chosen]
    taken_SF = np.concatenate([one_SF, one_SF[left] | one_SF[right]])
    sets, draws = len(taken_SF), len(others)
    found = subject.mixer.score(np.full(sets * draws, row), np.tile(others, sets), np.repeat(taken_SF, draws, axis=0))
    without_S = found.reshape(sets, draws).mean(1)
    alone, both = without_S[: len(chosen)], without_S[len(chosen) :]
    effect = subject.logit[row] - alone[left] - alone[right] + both
    values = subject.values.row(row)
    return [
        {
            "fields": [subject.fields[chosen[left[p]]], subject.fields[chosen[right[p]]]],
            "values": [values[chosen[left[p]]], values[chosen[right[p]]]],
            "effect": float(effect[p]),
        }
        for p in np.argsort(-np.abs(effect), kind="stable")
    ]
