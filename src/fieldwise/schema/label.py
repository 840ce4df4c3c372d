"""The labels of a table."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from fieldwise.errors import SchemaError
from fieldwise.schema.checks import check_types
from fieldwise.schema.number_format import NumberFormat, check_number_format

if TYPE_CHECKING:
    import numpy as np

Task = Literal["binary", "regression"]
Scalar = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The shares of positive and of negative rows that a log kept, such as a tenth of the negatives.

    A sample changes the odds of a positive by `positives / negatives`. Training corrects for that
    exactly (`log_odds`), so that predictions are probabilities of the whole log; metrics weight
    each row by 1 over its class's share, so that they estimate those of the whole log.

    King and Zeng, Logistic Regression in Rare Events Data, Political Analysis 9(2), 2001, 4.1.

    Errors:
        SchemaError: a share that is not above 0 and at most 1.

    >>> round(Sampled(negatives=0.1).log_odds, 4)
    2.3026
    """

    positives: float = 1.0
    negatives: float = 1.0

    def __post_init__(self) -> None:
        check_types(self, "sampled")
        for name in ("positives", "negatives"):
            share = getattr(self, name)
            if not 0 < share <= 1:
                raise SchemaError(
                    f"sampled.{name} is the share of these rows that the log kept, above 0 and at most 1, found "
                    f"{share:g}: correct it"
                )

    @property
    def log_odds(self) -> float:
        """What the log odds of a row in the sample exceed those in the whole log by."""
        return math.log(self.positives / self.negatives)

    def log_weights(self, y: "np.ndarray", weight: "np.ndarray | None") -> "np.ndarray":
        """The weights [N] that rows of the sample, with targets 0 and 1 [N], have in the whole log.

        >>> import numpy as np
        >>> Sampled(negatives=0.25).log_weights(np.array([1.0, 0.0]), None).tolist()
        [1.0, 4.0]
        """
        rows_of_log = 1.0 / (y * self.positives + (1.0 - y) * self.negatives)
        return rows_of_log if weight is None else weight * rows_of_log


@dataclass(frozen=True)
class Label:
    """A label to predict.

    Args:
        column: the table's column.
        name: its name in metrics and predictions if there are several labels; the column if
            omitted.
        task: `binary` (a probability, cross-entropy) or `regression` (a number, squared error).
        positive_above: binary: numbers above this are positive, all others negative.
        positive_values: binary: these values are positive, all others negative.
            Without a rule the column must only hold 0 and 1 (or false and true).
        drop_values: rows with these values are dropped, and counted.
        range: regression: minimum and maximum of the targets; predictions are clipped to it.
        scale: regression: a model learns the targets divided by this; predictions are multiplied by
            it. If omitted, it is chosen from the training rows' standard deviation
            (docs/defaults.md), or is 1 with fixed defaults.
        weight: weight of this label's loss in the sum over labels.
        number_format: format of numbers in text, as for a Numeric field.
        trials: binary: column of the number of trials of each row, such as impressions; the label's
            column then has the number of positive ones among them, such as clicks. A row counts as
            many positive and negative rows. It is for a schema's only label.
        sampled: binary: the shares of positive and negative rows that the log kept.

    Errors:
        SchemaError: contradictory settings, a number that is not finite.

    >>> Label("rating", positive_above=3, drop_values=(3,)).task
    'binary'
    """

    column: str
    _: KW_ONLY
    name: str = ""
    task: Task = "binary"
    positive_above: float | None = None
    positive_values: tuple[Scalar, ...] | None = None
    drop_values: tuple[Scalar, ...] = ()
    range: tuple[float, float] | None = None
    scale: float | None = None
    weight: float = 1.0
    number_format: NumberFormat | None = None
    trials: str | None = None
    sampled: Sampled | None = None

    def __post_init__(self) -> None:
        check_types(self, "label")
        if not self.column:
            raise SchemaError("a label needs a column, found an empty name")
        check_number_format(self.number_format, "label")
        if not self.name:
            object.__setattr__(self, "name", self.column)
        for name in ("drop_values", "positive_values", "range"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, tuple(values))

        self._check_rule()
        self._check_task()
        _check_positive("weight", self.weight)
        if self.trials is not None:
            self._check_trials(self.trials)
        if self.scale is not None:
            _check_positive("scale", self.scale)
        if self.range is not None:
            self._check_range(self.range)

    def _check_rule(self) -> None:
        """Check what makes a row positive, and what drops it."""
        if self.positive_values == ():
            raise SchemaError("a label's positive_values must have at least one value, found none")
        for value in (*self.drop_values, *(self.positive_values or ())):
            if isinstance(value, float) and not math.isfinite(value):
                raise SchemaError(
                    f"a label's positive_values and drop_values must be finite, found {value}"
                )
        if self.positive_above is not None and not math.isfinite(self.positive_above):
            raise SchemaError(
                f"a label's positive_above must be finite, found {self.positive_above}"
            )
        if self.positive_above is not None and self.positive_values is not None:
            raise SchemaError("a label takes positive_above or positive_values, not both")
        has_rule = self.positive_above is not None or self.positive_values is not None
        if self.task == "regression" and has_rule:
            raise SchemaError(
                "a regression label takes no positive rule: remove positive_above and positive_values"
            )

    def _check_task(self) -> None:
        """Check that no setting is for the other task."""
        others = ("trials", "sampled")
        task = "binary"
        if self.task == "binary":
            others = ("range", "scale")
            task = "regression"
        for name in others:
            if getattr(self, name) is not None:
                raise SchemaError(f"a {self.task} label takes no {name}: it is for task = '{task}'")

    def _check_trials(self, trials: str) -> None:
        """Check that nothing else says which of the trials are positive."""
        if trials in ("", self.column):
            raise SchemaError(
                f"a label's trials must be another column than the label's {self.column!r}, found {trials!r}"
            )
        if self.positive_above is not None or self.positive_values is not None:
            raise SchemaError(
                "a label with trials counts the positive ones itself: remove positive_above and positive_values"
            )
        if self.sampled is not None:
            raise SchemaError("a label with trials has all its rows: leave out sampled, or trials")

    @staticmethod
    def _check_range(bounds: tuple[float, float]) -> None:
        is_finite = len(bounds) == 2 and all(math.isfinite(bound) for bound in bounds)
        if not is_finite or not bounds[0] < bounds[1]:
            raise SchemaError(
                f"a label's range must be two increasing finite numbers, found {list(bounds)}"
            )

    def predicted(self, score: "np.ndarray") -> "np.ndarray":
        """Scores of a regression as numbers in the label's unit, within its range; logits of a binary label unchanged.

        >>> import numpy as np
        >>> Label("price", task="regression", range=(0, 500), scale=100).predicted(np.array([-0.5, 1.25])).tolist()
        [0.0, 125.0]
        """
        if self.task == "binary":
            return score
        number = score if self.scale is None else score * self.scale
        if self.range is None:
            return number
        return number.clip(*self.range)

    def log_weights(
        self, y: "np.ndarray", weight: "np.ndarray | None" = None
    ) -> "np.ndarray | None":
        """The weights [N] by which metrics count rows with targets y [N]: those of a sample stand for the whole log."""
        return weight if self.sampled is None else self.sampled.log_weights(y, weight)

    @property
    def rule(self) -> str | None:
        """A description of the rule for positive rows; None for a regression.

        >>> Label("rating", positive_above=3).rule
        'a rating above 3'
        >>> Label("event", positive_values=("buy", "cart")).rule
        '“event” is buy or cart'
        """
        if self.task == "regression":
            return None
        if self.trials is not None:
            return f"one of “{self.trials}” counted in “{self.column}”"
        if self.positive_above is not None:
            article = "an" if self.column[0].lower() in "aeio" else "a"
            return f"{article} {self.column.replace('_', ' ')} above {self.positive_above:g}"
        values = [str(value) for value in self.positive_values or (1,)]
        if len(values) == 1:
            return f"“{self.column}” is {values[0]}"
        return f"“{self.column}” is {', '.join(values[:-1])} or {values[-1]}"

    @property
    def rule_is_clause(self) -> bool:
        """Whether `rule` is a clause, such as `“event” is buy`, and no noun, such as `a rating above 3`."""
        return self.task == "binary" and self.positive_above is None

    @property
    def meaning(self) -> str:
        """A description of the prediction.

        >>> Label("rating", positive_above=3).meaning
        'probability of a rating above 3'
        >>> Label("click").meaning
        'probability that “click” is 1'
        >>> Label("rating", task="regression", range=(1, 5)).meaning
        'predicted “rating”, a number from 1 to 5'
        """
        if self.rule is not None:
            return f"probability {'that' if self.rule_is_clause else 'of'} {self.rule}"
        if self.range is None:
            return f"predicted “{self.column}”"
        low, high = self.range
        return f"predicted “{self.column}”, a number from {low:g} to {high:g}"


def _check_positive(name: str, number: object) -> None:
    if not isinstance(number, (int, float)) or not 0 < number < math.inf:
        raise SchemaError(f"a label's {name} must be above 0 and finite, found {number!r}")
