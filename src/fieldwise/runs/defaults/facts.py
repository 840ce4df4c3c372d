"""Facts about the training rows, for the rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from fieldwise.data.table import EncodedTable
from fieldwise.data.targets import deviations, mean_target
from fieldwise.layout import Layout
from fieldwise.runs.defaults.effects import effect_variance
from fieldwise.schema.label import Label, Task

__all__ = ["Facts"]

MOST_CELLS = 2**24  # the matrix of a regression has 20 bytes for each


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the training rows; validation and test rows are not used.

    Args:
        layout: the encoded fields.
        rows: number of training rows.
        task: task of the main label.
        mean: mean of the main label's targets: the positive rate for a binary label.
        labels: number of labels.
        deviations: the standard deviation of each label's targets, the main one's first.
        effects: the variance of first-order weights (`effects.py`); 1 for a regression.
        exact: whether a regression on the rows can be solved exactly: one label, no bag with pooling `max`, at most
            16,777,216 cells, and no warm start.

    >>> Facts(layout=Layout.of_sizes([3, 4]), rows=100, task="binary", mean=0.25).pairs
    1
    """

    layout: Layout
    rows: int
    task: Task = "binary"
    mean: float = 0.5
    labels: int = 1
    deviations: tuple[float, ...] = (1.0,)
    effects: float = 1.0
    exact: bool = False

    @classmethod
    def of(cls, train: EncodedTable, labels: Sequence[Label], *, warm: bool = False) -> "Facts":
        """Facts about encoded training rows with targets; of a `warm` start or not. The main label comes first."""
        assert train.y is not None, "training rows have targets"
        main = train.y[:, 0]
        return cls(
            layout=train.layout,
            rows=len(train),
            task=labels[0].task,
            mean=mean_target(main, train.weight),
            labels=len(labels),
            deviations=deviations(train.y),
            effects=effect_variance(train, main) if labels[0].task == "binary" else 1.0,
            exact=len(labels) == 1
            and not warm
            and train.ids.size + train.bag_ids.size <= MOST_CELLS
            and not any(f.kind == "bag" and f.pooling == "max" for f in train.layout.fields),
        )

    @property
    def vocabulary(self) -> int:
        """Number of rows of the shared embedding table."""
        return self.layout.num_rows

    @property
    def pairs(self) -> int:
        """Number of pairs of fields, at least 1."""
        fields = self.layout.num_fields
        return max(1, fields * (fields - 1) // 2)
