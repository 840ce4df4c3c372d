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
        _check_positive("weight", self.weight)
        if self.task == "binary":
            for name in ("range", "scale"):
                if getattr(self, name) is not None:
                    raise SchemaError(
                        f"a binary label takes no {name}: it is for task = 'regression'"
                    )
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
