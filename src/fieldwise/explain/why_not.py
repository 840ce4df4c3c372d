"""Why an item is not in a list: at which stage it was lost, and by which terms it is behind the last item."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fieldwise.bundle.bundle import Bundle
from fieldwise.explain.explanation import explain
from fieldwise.scoring.candidates import context_row
from fieldwise.scoring.ranker import Ranker, RankingRequest, RankingResult

Reason = Literal[
    "listed", "candidates", "seen", "excluded", "filtered", "prerank", "limit", "pinned", "score"
]
SHOWN_TERMS = 3
LEAST_SHOWN_LOSS = 0.005
"""Smaller ones are 0.00 in a sentence."""


class Term(NamedTuple):
    """A field, its values for the item and the list's last one, and the difference of their contributions."""

    field: str
    value: str
    other: str
    difference: float

    @property
    def text(self) -> str:
        """The term in a sentence."""
        values = self.value if self.value == self.other else f"{self.value} against {self.other}"
        return f"{self.field} ({values}: {self.difference:+.2f})"


@dataclass(frozen=True)
class WhyNot:
    """Why an item is not in a list.

    Args:
        item: its id.
        reason: `listed` (it is), not among the `candidates`, `seen`, `excluded` by the request or
            `filtered` by a column, lost in `prerank`, left out by a `limit`, displaced by `pinned`
            items, or behind by `score`.
        words: the reason in words.
        place: its place in the list, in pre-ranking or by score, from 1, by the reason.
        terms: by `score` alone, the differences of all fields, the largest loss first.
    """

    item: str
    reason: Reason
    words: str
    place: int | None = None
    terms: tuple[Term, ...] = ()

    @property
    def sentence(self) -> str:
        """The item and the reason in words."""
        is_not = "is" if self.reason == "listed" else "is not"
        return f"{self.item!r} {is_not} in the list: {self.words}"

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        terms = [term._asdict() for term in self.terms]
        return {**asdict(self), "sentence": self.sentence, "terms": terms}


def why_not(ranker: Ranker[Bundle], result: RankingResult, item: object) -> WhyNot:
    """Why an item is not in the list that a ranker's `recommend` returned.

    The contributions of fields are those of `explain`, of the item and of the list's last item by
    score in the same context; their differences and those of base and gap add up to that of the scores.

    Errors:
        DataError: an unknown item.

    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> from fieldwise.scoring.items import item_table
    >>> log = simulate(500, users=20, items=10, seed=1)
    >>> fields = Categorical("user_id", role="user"), Categorical("item_id", role="item")
    >>> schema = Schema(fields=fields, label=Label("liked"))
    >>> fitted = Recommender(schema, FM(), training=TrainingSettings(epochs=1)).fit(log)
    >>> ranker = Ranker(fitted.bundle_, item_table(log.select("item_id").unique("item_id"), "item_id"))
    >>> result = ranker.recommend({"user_id": "u0001"}, k=3, seen=["m0001"])
    >>> why_not(ranker, result, "m0001").sentence
    "'m0001' is not in the list: the user has seen it"
    """
    row = int(ranker.index.rows_of([item])[0])
    return _before_ranking(ranker, result, row) or _by_ranking(ranker, result, row)


def _before_ranking(ranker: Ranker[Bundle], result: RankingResult, row: int) -> WhyNot | None:
    """The reason for which an item was not ranked, or for which it is in the list; None if it is ranked below."""
    request = result.request
    item = ranker.index.texts[row]
    if row in result.rows:
        position = int(np.flatnonzero(result.rows == row)[0]) + 1
        return WhyNot(item, "listed", f"at place {position}", position)
    if request.candidates is not None and row not in request.candidates:
        return WhyNot(item, "candidates", "the request has other candidates")
    if row in request.seen:
        return WhyNot(item, "seen", "the user has seen it")
    if row in request.exclude:
        return WhyNot(item, "excluded", "the request excludes it")
    for column, values in request.where.items():
        if row not in ranker.filters.rows({column: values}):
            values_of_item = ", ".join(request.rules.values(column, row)) or "missing"
            return WhyNot(
                item,
                "filtered",
                f"its {column} is {values_of_item}, and the filter takes {', '.join(values)}",
            )
    if ranker.tower is None or row in result.preranked:
        return None
    tower = Ranker(None, ranker.index, tower=ranker.tower)
    position = _place(tower, request, row)
    words = f"lost in pre-ranking, at place {position:,} where the first {request.prerank:,} go on"
    if position <= request.prerank:
        words = f"lost in pre-ranking, at place {position:,}, as none of its heads is in the clusters searched"
    return WhyNot(item, "prerank", words, position)


def _by_ranking(ranker: Ranker[Bundle], result: RankingResult, row: int) -> WhyNot:
    """The reason for which a ranked item is not in the list."""
    request = result.request
    rules = request.rules
    item = ranker.index.texts[row]
    position = _place(ranker, request, row)
    ranked = f"it is at place {position:,} by score"
    if row in result.passed_over:
        for column, limit in rules.limits.items():
            for value in rules.values(column, row):
                listed = sum(value in rules.values(column, other) for other in result.rows)
                if listed >= limit:
                    words = f"{ranked}, but the limit of {limit} with {column} {value!r} is reached"
                    return WhyNot(item, "limit", words, position)
    by_score = np.arange(1, len(result.rows) + 1)
    if rules:
        by_score = result.by_score
    is_ahead = by_score < position
    if position <= request.k or not is_ahead.any():
        return WhyNot(
            item, "pinned", f"{ranked}, and pinned items have the places before it", position
        )
    last = int(result.rows[is_ahead][by_score[is_ahead].argmax()])
    terms = _terms(ranker, request.values, row, last)
    losses = [term for term in terms if term.difference <= -LEAST_SHOWN_LOSS]
    reasons = ", ".join(term.text for term in losses[:SHOWN_TERMS])
    words = f"{ranked}, behind the list's last item by score, {ranker.index.texts[last]!r}"
    return WhyNot(
        item,
        "score",
        f"{words}, mainly because of {reasons}" if reasons else words,
        position,
        terms,
    )


def _place(ranker: Ranker[Bundle], request: RankingRequest, row: int) -> int:
    """An item's place by a ranker's scores among all that it ranks for a request, from 1."""
    items = len(ranker.index)
    prerank = items if ranker.bundle is None else request.prerank
    every = replace(request, k=items, prerank=prerank, rules=ranker.rules({}, {}))
    rows = ranker.complete([every])[0].rows
    return int(np.flatnonzero(rows == row)[0]) + 1


def _terms(
    ranker: Ranker[Bundle], context: Mapping[str, object], row: int, last: int
) -> tuple[Term, ...]:
    """The differences of fields' contributions between two items in a context, the largest loss first."""
    bundle = ranker.bundle or ranker.tower
    assert bundle is not None, "a ranker has one of them"
    fields = bundle.schema.fields
    item_columns = list(dict.fromkeys(field.column for field in fields if field.role == "item"))
    context_columns = dict.fromkeys(field.column for field in fields if field.role != "item")
    items = ranker.index.items[[row, last]].select(item_columns)
    explanation = explain(bundle, items.join(context_row(context, context_columns), how="cross"))
    values, other_values = explanation.subject.values.rows()
    differences = explanation.contributions[0] - explanation.contributions[1]
    terms = zip(explanation.subject.fields, values, other_values, differences.tolist(), strict=True)
    return tuple(sorted((Term(*term) for term in terms), key=lambda term: term.difference))
