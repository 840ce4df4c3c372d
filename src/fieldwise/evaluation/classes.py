"""The classes of a binary label: the two values of its column, in scikit-learn's order."""

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.evaluation import sigmoid
from fieldwise.schema import Schema

ClassValue = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class LabelClasses:
    """The values that stand for a label's negative and its positive rows.

    scikit-learn sorts a classifier's classes, and its scorers take the last one for positive. Where
    the positive value sorts first, as "click" does before "skip", the last class is therefore the
    negative one.

    >>> LabelClasses(negative="skip", positive="click").values
    array(['click', 'skip'], dtype='<U5')
    """

    negative: ClassValue = 0
    positive: ClassValue = 1

    @property
    def values(self) -> np.ndarray:
        """Both values, ascending [2]."""
        return np.array(sorted([self.negative, self.positive]))

    def predicted(self, is_positive: np.ndarray) -> np.ndarray:
        """The class of each row, of its truth values."""
        is_last = is_positive != self._positive_is_first
        classes: np.ndarray = self.values[is_last.astype(np.intp)]
        return classes

    def logit_of_last(self, logit: np.ndarray) -> np.ndarray:
        """The logit of the last class, of that of the positive one."""
        return -logit if self._positive_is_first else logit

    def probabilities(self, logit: np.ndarray) -> np.ndarray:
        """The probability of each class [N, 2], of the positive one's logit [N]."""
        last = self.logit_of_last(logit)
        return np.stack([sigmoid(-last), sigmoid(last)], axis=1)

    @property
    def _positive_is_first(self) -> bool:
        return bool(self.positive < self.negative)  # type: ignore[operator]


def label_classes(column: pl.Series, target: np.ndarray) -> LabelClasses:
    """The classes of a binary label, from the cells of its column and their targets [N].

    These are its own values if each class has exactly one. Where the label's rule puts several
    values into one class, they are 0 and 1.

    >>> label_classes(pl.Series(["yes", "no", "yes"]), np.array([1, 0, 1]))
    LabelClasses(negative='no', positive='yes')
    >>> label_classes(pl.Series([5, 4, 1]), np.array([1, 1, 0]))
    LabelClasses(negative=0, positive=1)
    """
    by_rule = LabelClasses()
    cells = column.cast(pl.String) if column.dtype in (pl.Categorical, pl.Enum) else column
    if not (
        cells.dtype in (pl.String, pl.Boolean) or cells.dtype.is_integer() or cells.dtype.is_float()
    ):
        return by_rule
    negative = cells.filter(pl.Series(target == 0)).drop_nulls().unique().to_list()
    positive = cells.filter(pl.Series(target == 1)).drop_nulls().unique().to_list()
    if len(negative) != 1 or len(positive) != 1:
        return by_rule
    if any(
        isinstance(value, float) and not math.isfinite(value) for value in (*negative, *positive)
    ):
        return by_rule
    return LabelClasses(negative=negative[0], positive=positive[0])


def classes_of(frame: pl.DataFrame, targets: np.ndarray, schema: Schema) -> list[LabelClasses]:
    """The classes of every label, from raw rows and their targets [N, T].

    They are 0 and 1 for a regression, which does not read them, for a label with trials, whose
    column counts them, and for a label without a column in the table.
    """
    classes = []
    for label, target in zip(schema.labels, targets.T, strict=True):
        names_classes = label.task == "binary" and label.trials is None
        if names_classes and label.column in frame.columns:
            classes.append(label_classes(frame.get_column(label.column), target))
        else:
            classes.append(LabelClasses())
    return classes
