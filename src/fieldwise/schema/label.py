"""Labels: column, task and rule. A schema has one main label and may have more."""

import math
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from fieldwise.errors import SchemaError

if TYPE_CHECKING:
    import numpy as np

Task = Literal["binary", "regression"]
NumberFormat = Literal["1,234.5", "1.234,5", "1 234,5", "1'234.5"]
Scalar = bool | int | float | str


@dataclass(frozen=True)
class Label:
    """A label to predict.

    Args:
        column: the table's column.
        name: its name in metrics and predictions if there are several labels; the column if omitted.
        task: `binary` (a probability, cross-entropy) or `regression` (a number, squared error).
        positive_above: binary: numbers above this are positive, all others negative.
        positive_values: binary: these values are positive, all others negative.
            Without a rule the column must only hold 0 and 1 (or false and true).
        drop_values: rows with these values are dropped, and counted.
        range: regression: minimum and maximum of the targets; predictions are clipped to it.
        scale: regression: a model learns the targets divided by this; predictions are multiplied by it. If omitted, it
            is chosen from the training rows' standard deviation (docs/defaults.md), or is 1 with fixed defaults.
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
        if not self.column:
            raise SchemaError("a label needs a column, found an empty name")
        if not self.name:
            object.__setattr__(self, "name", self.column)
        check_choices(self, "label")
        object.__setattr__(self, "drop_values", tuple(self.drop_values))
        if self.positive_values is not None:
            object.__setattr__(self, "positive_values", tuple(self.positive_values))
            if not self.positive_values:
                raise SchemaError("a label's positive_values must have at least one value, found none")
        if self.range is not None:
            object.__setattr__(self, "range", tuple(self.range))
        for value in (*self.drop_values, *(self.positive_values or ())):
            if isinstance(value, float) and not math.isfinite(value):
                raise SchemaError(f"a label's positive_values and drop_values must be finite, found {value}")
        if self.positive_above is not None and not math.isfinite(self.positive_above):
            raise SchemaError(f"a label's positive_above must be finite, found {self.positive_above}")
        if not isinstance(self.weight, (int, float)) or not 0 < self.weight < math.inf:
            raise SchemaError(f"a label's weight must be above 0 and finite, found {self.weight!r}")
        if self.positive_above is not None and self.positive_values is not None:
            raise SchemaError("a label takes positive_above or positive_values, not both")
        has_rule = self.positive_above is not None or self.positive_values is not None
        if self.task == "regression" and has_rule:
            raise SchemaError("a regression label takes no positive rule: remove positive_above and positive_values")
        for name in ("range", "scale") if self.task == "binary" else ():
            if getattr(self, name) is not None:
                raise SchemaError(f"a binary label takes no {name}: it is for task = 'regression'")
        if self.scale is not None and (not isinstance(self.scale, (int, float)) or not 0 < self.scale < math.inf):
            raise SchemaError(f"a label's scale must be above 0 and finite, found {self.scale!r}")
        if self.range is not None:
            finite = len(self.range) == 2 and all(math.isfinite(bound) for bound in self.range)
            if not finite or not self.range[0] < self.range[1]:
                raise SchemaError(f"a label's range must be two increasing finite numbers, found {list(self.range)}")

    def predicted(self, score: "np.ndarray") -> "np.ndarray":
        """Scores of a regression as numbers in the label's unit, within its range; logits of a binary label unchanged.

        >>> import numpy as np
        >>> Label("price", task="regression", range=(0, 500), scale=100).predicted(np.array([-0.5, 1.25])).tolist()
        [0.0, 125.0]
        """
        if self.task == "binary":
            return score
        number = score if self.scale is None else score * self.scale
        return number if self.range is None else number.clip(*self.range)

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
        return f"“{self.column}” is {', '.join(values[:-1])}{' or ' if values[1:] else ''}{values[-1]}"

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
            return f"probability {'that' if self.rule.startswith('“') else 'of'} {self.rule}"
        bounds = "" if self.range is None else f", a number from {self.range[0]:g} to {self.range[1]:g}"
        return f"predicted “{self.column}”{bounds}"


def check_choices(settings: Any, what: str) -> None:
    """Check that every Literal setting has one of its values (guaranteed from TOML, but not from Python)."""
    for attribute in fields(settings):
        result, kinds = getattr(settings, attribute.name), (attribute.type, *get_args(attribute.type))
        known = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), None)
        if known is not None and result not in known and (result is not None or type(None) not in kinds):
            options = ", ".join(repr(option) for option in known)
            raise SchemaError(f"{what}: {attribute.name} must be one of {options}, found {result!r}")
