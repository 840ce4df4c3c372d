"""Columns that tell the label, since they are known only after it."""

from collections.abc import Collection

import numpy as np

from fieldwise.data.infer.profile import ColumnProfile, Columns
from fieldwise.schema.ids import LIKELY_LABELS, is_label_name

_MOST_VALUES = 11
"""Different values of a column each of which may tell the label."""
_ENOUGH_ROWS = 20
"""Of a class or a value, to tell what always holds of it."""
_EXACT_SHARE = 0.999
"""The share of rows in which a rule that holds has no exception."""


def known_after(
    columns: Columns, label: str, y: np.ndarray | None, notes: Collection[str]
) -> dict[str, str]:
    """Columns without a note that tell the label, since they are known only after it, each with the reason."""
    results: dict[str, str] = {}
    if y is None or set(np.unique(y[~np.isnan(y)]).tolist()) != {0.0, 1.0}:
        return results
    for name, column in columns.items():
        if name == label or name in notes or column.dtype.is_nested():
            continue
        why = _filled_for_one_class(column, y) or _told_by_values(column, y)
        if why:
            results[name] = (
                f"it tells the label, so it is known only after it{why}; it may be one of more_labels"
            )
    return results


def _filled_for_one_class(column: ColumnProfile, y: np.ndarray) -> str:
    """The reason why a column's empty cells tell the label, or an empty text."""
    rate = float(np.nanmean(y))
    if not column.missing or min(rate, 1 - rate) * len(y) < _ENOUGH_ROWS:
        return ""
    is_labelled = ~np.isnan(y)
    is_present = column.is_present[is_labelled]
    is_positive = y[is_labelled] == 1
    if (is_present == is_positive).mean() > _EXACT_SHARE:
        return ": it is empty except where the label is positive"
    if (is_present != is_positive).mean() > _EXACT_SHARE:
        return ": it is empty except where the label is negative"
    return ""


def _told_by_values(column: ColumnProfile, y: np.ndarray) -> str:
    """The reason why a column's few values tell the label, or an empty text."""
    if not 2 <= column.distinct <= _MOST_VALUES:
        return ""
    both = column.is_present & ~np.isnan(y)
    codes = column.codes()[both]
    targets = y[both]
    rows = np.bincount(codes, minlength=column.distinct)
    positives = np.bincount(codes, weights=targets, minlength=column.distinct)[rows > 0]
    rows = rows[rows > 0]
    is_enough = rows >= _ENOUGH_ROWS
    always = (positives == rows) & is_enough
    never = (positives == 0) & is_enough
    if len(rows) >= 2 and (always | never).all() and always.any() and never.any():
        return ": each of its values has one value of the label"
    if len(rows) == 2 and always.any() and float(np.nanmean(y)) < 0.9:
        return ": one of its values occurs only where the label is positive"
    if len(rows) == 2 and (always | never).any() and is_label_name(column.name, LIKELY_LABELS):
        return ", by its name, and the label is never positive with one of its values"
    return ""
