"""Choosing the label among a table's columns."""

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.infer.findings import THIS_COLUMN
from fieldwise.data.infer.guess import joined_doubts
from fieldwise.data.infer.label import (
    MOST_RATINGS,
    RATING_TOPS,
    LabelCandidate,
    guess_label,
    holds_no_label,
)
from fieldwise.data.infer.outcome_words import word_meanings
from fieldwise.data.infer.profile import ColumnProfile, Columns
from fieldwise.display import listed
from fieldwise.errors import DataError, SchemaError
from fieldwise.schema import Label
from fieldwise.schema.ids import LABELS, LIKELY_LABELS, is_label_name

CLOSE = 1.5
"""The score by which a candidate for the label may trail the best one, to be named beside it."""
LEAST_ROWS = 20
"""A column of fewer rows is no label by its values alone."""
_PROBED_WORDS = 5
_SCORE_OF_LABEL_NAME = 4.0
_SCORE_OF_LIKELY_NAME = 3.0
_PENALTY_OF_SETTLED = 3.5
_SCORE_OF_GAPS = 2
_SCORE_OF_FIRST_COLUMN = 0.25
_SCORE_OF_LAST_COLUMN = 0.5
_GAP_CELLS = 1 << 24
"""Cells of columns with gaps that are compared with the candidates at once."""


def choose_label(
    columns: Columns, label: str | None, positive: Sequence[str], settled: Collection[str]
) -> list[LabelCandidate]:
    """The candidates for the label, the one taken first, with a doubt unless its name tells; none if no column can be.

    `label` and its `positive` values are given if they are known. A name of a label (or of an
    outcome) counts most, then words of outcome, then two values or a scale of ratings. Columns that
    are `settled` are no label, unless a name tells one and no other can be.
    """
    if label is not None:
        if label not in columns:
            raise SchemaError(
                f"the label's column {label!r} must be in the table: {nearest(label, list(columns))}"
            )
        return [guess_label(columns[label].cells, positive)]

    candidates = _candidates(columns, settled)
    if not candidates or not _has_likely_name(candidates[0]):
        for name in columns:
            if is_label_name(name) and name not in settled:
                # or the reason why it cannot be one
                return [guess_label(columns[name].cells, positive)]
    if not candidates:
        return []

    best = candidates[0]
    if positive:
        best = guess_label(columns[best.label.column].cells, positive)
    doubt = joined_doubts(_doubt_of_choice(candidates), best.doubt)
    return [replace(best, doubt=doubt), *candidates[1:]]


def _candidates(columns: Columns, settled: Collection[str]) -> list[LabelCandidate]:
    """The columns that may be the label, the likeliest first."""
    candidates: list[LabelCandidate] = []
    for name, column in columns.items():
        name_score = _name_score(name)
        is_settled = name in settled
        if is_settled and name_score < _SCORE_OF_LABEL_NAME:
            continue
        if column.missing or holds_no_label(column.dtype):
            continue
        if not name_score and (len(column.cells) < LEAST_ROWS or not _has_few_values(column)):
            continue
        with contextlib.suppress(SchemaError, DataError):
            candidate = guess_label(column.cells)
            score = name_score + _value_score(column.cells, candidate)
            if is_settled:
                score -= _PENALTY_OF_SETTLED
            if name_score or (candidate.label.task == "binary" and not _is_a_count(column)):
                candidates.append(replace(candidate, score=score))
    scored = _scored_among_columns(columns, candidates)
    return sorted(scored, key=lambda candidate: -candidate.score)


def rival_doubts(
    columns: Columns,
    label: str,
    labels: Sequence[LabelCandidate],
    settled: Collection[str],
    skip: Collection[str],
) -> dict[str, str]:
    """A doubt for every column that may be the label instead: about as likely ones, and the last column."""
    rivals = {list(columns)[-1]}.difference(settled)
    for candidate in labels[1:3]:
        if candidate.score > labels[0].score - CLOSE:
            rivals.add(candidate.label.column)
    return {
        column: f"column {THIS_COLUMN} may be the label instead of {label!r}: give the right one as label"
        for column in columns
        if column in rivals.difference(skip)
    }


def label_of_events(columns: Columns) -> LabelCandidate:
    """The label of a log of positives: a column that it lacks."""
    name = "event"
    while name in columns:
        name += "_"
    return LabelCandidate(
        label=Label(name),
        rate=1.0,
        reason="no column can be one, so every row is an event that happened (1); negatives are sampled",
        doubt="no column can be the label, so every row was taken for a positive event: the recipe needs [negatives], "
        "which draw items that the user never used; if a column tells the outcome, give it as label",
    )


def _name_score(name: str) -> float:
    """How much a column's name alone looks like a label's."""
    if is_label_name(name):
        return _SCORE_OF_LABEL_NAME
    return _SCORE_OF_LIKELY_NAME if is_label_name(name, LIKELY_LABELS) else 0.0


def _has_likely_name(candidate: LabelCandidate) -> bool:
    return is_label_name(candidate.label.column, (*LABELS, *LIKELY_LABELS))


def _doubt_of_choice(candidates: Sequence[LabelCandidate]) -> str:
    """What the user must check of the first candidate beside the others, or an empty text."""
    best = candidates[0]
    name = best.label.column
    is_named = is_label_name(name)
    others = candidates[1:]
    if is_named:
        rivals = [c.label.column for c in others if is_label_name(c.label.column)]
    else:
        rivals = [c.label.column for c in others if c.score > best.score - CLOSE]
    if not rivals and _has_likely_name(best):
        return ""

    name_and = "name and " if is_named else ""
    shown = f"; others that may be it: {listed(rivals, '')}" if rivals else ""
    return f"the label was chosen by its {name_and}values, column {name!r}{shown}; give another one as label"


def _has_few_values(column: ColumnProfile) -> bool:
    return 2 <= column.distinct <= MOST_RATINGS


def _scored_among_columns(
    columns: Columns, candidates: Sequence[LabelCandidate]
) -> list[LabelCandidate]:
    """The candidates with what the other columns add to their scores: where they stand, and what is empty for them."""
    names = list(columns)
    score_of_place = {names[0]: _SCORE_OF_FIRST_COLUMN, names[-1]: _SCORE_OF_LAST_COLUMN}
    deciding = _deciding_gaps(columns, [candidate.label.column for candidate in candidates])
    scored = []
    for candidate in candidates:
        name = candidate.label.column
        added = score_of_place.get(name, 0.0)
        if name in deciding:
            added += _SCORE_OF_GAPS
        scored.append(replace(candidate, score=candidate.score + added))
    return scored


def _deciding_gaps(columns: Columns, candidates: Sequence[str]) -> set[str]:
    """The candidates some of whose values stand in exactly the rows in which another column is empty.

    Beside the values of an outcome, what follows it is empty exactly for some of them.
    """
    with_gaps = [column for column in columns.values() if 0 < column.missing < len(column.cells)]
    few_values = [name for name in candidates if _has_few_values(columns[name])]
    deciding: set[str] = set()
    if not with_gaps:
        return deciding
    columns_at_once = max(1, _GAP_CELLS // len(with_gaps[0].cells))
    for start in range(0, len(with_gaps), columns_at_once):
        block = with_gaps[start : start + columns_at_once]
        is_empty = np.stack([~column.is_present for column in block], axis=1).astype(np.float32)
        for name in few_values:
            if name not in deciding and _decides_a_gap(columns[name].codes(), is_empty):
                deciding.add(name)
    return deciding


def _decides_a_gap(codes: np.ndarray, is_empty: np.ndarray) -> bool:
    """Whether some column is empty in all rows of some codes and in none of the others.

    `codes` [N] are from 0; `is_empty` [N, columns] is 0 or 1.
    """
    has_value = codes == np.arange(codes.max() + 1)[:, None]
    empty_rows = has_value.astype(np.float32) @ is_empty
    empty_share = np.round(empty_rows / has_value.sum(axis=1)[:, None], 3)
    all_or_none = ((empty_share == 0) | (empty_share == 1)).all(axis=0)
    differs = empty_share.min(axis=0) < empty_share.max(axis=0)
    return bool((all_or_none & differs).any())


def _is_a_count(column: ColumnProfile) -> bool:
    """Whether numbers are counts of pieces and no ratings: from 0 to no usual top, or the rarer the greater."""
    if not column.dtype.is_numeric():
        return False
    values, counts = column.numbers
    low = values[0]
    if low not in (0, 1):
        return False
    if len(counts) > 3 and counts.argmax() == 0 and float((np.diff(counts) <= 0).mean()) > 0.7:
        return True
    return bool(low == 0 and len(counts) > 4 and values[-1] not in RATING_TOPS)


def label_by_place(columns: Columns, skip: Collection[str], is_log: bool) -> list[LabelCandidate]:
    """The last resort: of a log a column of shares up to 1 or 100, else the last column if it is a number.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> rows = pl.DataFrame({"rooms": [2, 3] * 10, "rent": [x * 99.5 for x in range(20)]})
    >>> [result.label.task for result in label_by_place(profile_columns(rows), (), False)]
    ['regression']
    """
    from_the_end = list(columns.values())[::-1]
    for column in from_the_end if is_log else from_the_end[:1]:
        if column.name in skip or not _has_many_numbers(column):
            continue
        if is_log and not _are_shares(column.cells):
            continue
        doubt = (
            f"the label was chosen by its place and numbers, column {column.name!r}; give another one as label "
            "(--label)"
        )
        return [replace(guess_label(column.cells), doubt=doubt)]
    return []


def _has_many_numbers(column: ColumnProfile) -> bool:
    is_complete = len(column.cells) >= LEAST_ROWS and not column.missing
    return is_complete and column.dtype.is_numeric() and column.distinct > MOST_RATINGS


def _are_shares(numbers: pl.Series) -> bool:
    low = float(numbers.min())  # type: ignore[arg-type]
    high = float(numbers.max())  # type: ignore[arg-type]
    return 0 <= low < 0.2 * high and (0.8 < high <= 1 or high == 100)


def _value_score(column: pl.Series, candidate: LabelCandidate) -> float:
    """How much the values alone look like a label's."""
    score_of_rule = 0.0 if candidate.doubt else 1.0
    if candidate.label.task == "regression":
        return 0.0
    if column.dtype.is_numeric() and column.n_unique() > 2:
        return score_of_rule
    values = as_text(column).unique(maintain_order=True)
    meanings = list(word_meanings(values.head(_PROBED_WORDS).to_list()).values())
    if len(values) == 2:
        return 2.0 if None not in meanings or not candidate.doubt else 0.5
    if any(meanings) and column.dtype == pl.String:
        return 1.5
    return score_of_rule
