"""Facts about the training rows, for the rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fieldwise.data.table import EncodedTable, deviations, mean_target
from fieldwise.layout import Layout
from fieldwise.schema.label import Label, Task

__all__ = ["Facts", "effect_variance"]

MOST_CELLS = 2**24  # the matrix of a regression has 20 bytes for each
SMALLEST, LARGEST = 0.1, 3.0  # variances of first-order weights
STEPS = 31  # candidates between them, evenly spaced in the logarithm
ROWS = 200_000  # maximum number of rows read for the variance, evenly spaced


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
        effects: the variance of first-order weights (`effect_variance`); 1 for a regression.
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


def effect_variance(train: EncodedTable, y: np.ndarray) -> float:
    """The maximum-likelihood variance of a Gaussian prior on first-order weights.

    Empirical Bayes with one Newton step: around the base rate p, a value of a field whose rows have the summed
    residual g and the information i = p (1 - p) sum of x^2 has a log-odds weight of about g / i. With a prior of
    variance t, g is Gaussian with variance i + i^2 t; the t of maximum likelihood over all values is returned.
    Values are treated independently, so correlated fields count twice; one step underestimates large weights, so a
    variance of 2 is found as about 1.2.

    Args:
        train: encoded training rows, with weights relative to their mean; at most 200,000 of them are read, evenly
            spaced.
        y: the binary targets [N] of all rows.

    Returns:
        A variance between 0.1 and 3; 1.0, scikit-learn's default, if all targets are equal.
    """
    rows = np.arange(0, len(train), -(-len(train) // ROWS))
    weight = np.asarray(train.weight[rows], np.float64) if train.weight is not None else np.ones(len(rows))
    target = np.asarray(y[rows], np.float64)
    weight = weight / weight.mean()
    rate = float(np.average(target, weights=weight))
    if not 0.0 < rate < 1.0:
        return 1.0
    residual, certain = weight * (target - rate), weight * rate * (1 - rate)
    score, information = (np.zeros(train.layout.num_rows) for _ in range(2))
    for ids, x, at in _occurrences(train, rows):
        score += np.bincount(ids, x * residual[at], minlength=len(score))
        information += np.bincount(ids, x * x * certain[at], minlength=len(score))
    seen = information > 0
    return _most_likely(score[seen], information[seen])


def _occurrences(train: EncodedTable, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each field the embedding rows, their factors, and the index in `rows` of each."""
    places = np.arange(len(rows))
    row_ids, values = train.ids[rows], train.values[rows]  # one pass over a table that may be on disk
    singles = [f for f in train.layout.fields if f.kind != "bag"]
    numbers = iter(range(train.values.shape[1]))
    for s, field in enumerate(singles):
        x = values[:, next(numbers)] if field.kind == "value" else np.ones(len(rows))
        yield row_ids[:, s], x.astype(np.float64), places
    bags = [f for f in train.layout.fields if f.kind == "bag"]
    for g, field in enumerate(bags):
        bag = train.bags.take(torch.from_numpy(rows * len(bags) + g))
        at = bag.segments.numpy()
        share = (1 / bag.lengths.numpy().clip(1))[at] if field.pooling == "mean" else np.ones(len(at))
        yield bag.ids.numpy(), share, at


def _most_likely(score: np.ndarray, information: np.ndarray) -> float:
    def likelihood(variance: float) -> float:
        spread = information + information**2 * variance
        return float(-np.sum(np.log(spread) + score**2 / spread))

    candidates = np.geomspace(SMALLEST, LARGEST, STEPS)
    return float(max(candidates, key=likelihood))
