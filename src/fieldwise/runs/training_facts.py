"""Facts about the training rows, from which defaults follow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fieldwise.data.table import EncodedTable, deviations, mean_target
from fieldwise.layout import Layout
from fieldwise.schema import Label
from fieldwise.schema.label import Task

LARGE_VOCABULARY = 2**18
"""The least number of rows of the shared embedding table for lazy updates."""
MOST_REGRESSION_CELLS = 2**24
"""The matrix of a regression that is solved exactly has 20 bytes for each."""
EFFECT_ROWS = 200_000
"""The largest number of rows that are read for the variance, evenly spaced."""
LEAST_VARIANCE = 0.1
MOST_VARIANCE = 3.0
LEAST_LAZY_VARIANCE = 1e-4
"""For a table of many values."""
VARIANCE_CANDIDATES = 31
"""From the least to the largest variance, evenly spaced in the logarithm."""
LAZY_VARIANCE_CANDIDATES = 92


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the training rows; validation and test rows are not used."""

    layout: Layout
    rows: int
    task: Task = "binary"  # of the main label
    mean: float = 0.5  # of the main label's targets: the positive rate for a binary label
    labels: int = 1
    deviations: tuple[float, ...] = (1.0,)  # of each label's targets, the main one's first
    # the variance of first-order weights (`effect_variance`); 1 for a regression label
    effects: float = 1.0
    # whether LR can be solved exactly: one label, no bag of `max`, no vector, no warm start, `MOST_REGRESSION_CELLS`
    exact: bool = False
    # whether LR has to be trained by steps for a mean with it: `exact` but for `MOST_REGRESSION_CELLS`
    stepped: bool = False

    @classmethod
    def of(cls, train: EncodedTable, labels: Sequence[Label], *, warm: bool = False) -> "Facts":
        """Facts about encoded training rows with targets; of a `warm` start or not. The main label comes first."""
        main_targets = train.targets[:, 0]
        task = labels[0].task
        is_solvable = len(labels) == 1 and not warm and train.layout.is_linear_in_rows
        is_large = train.ids.size + train.bag_ids.size > MOST_REGRESSION_CELLS
        return cls(
            layout=train.layout,
            rows=len(train),
            task=task,
            mean=mean_target(main_targets, train.weight),
            labels=len(labels),
            deviations=deviations(train.targets, train.weight),
            effects=effect_variance(train, main_targets) if task == "binary" else 1.0,
            exact=is_solvable and not is_large,
            stepped=is_solvable and is_large,
        )


def has_large_vocabulary(layout: Layout) -> bool:
    """Whether the shared embedding table is large enough for lazy updates to save time."""
    return layout.num_rows >= LARGE_VOCABULARY


def effect_variance(train: EncodedTable, y: np.ndarray) -> float:
    """The maximum-likelihood variance of a Gaussian prior on first-order weights.

    Empirical Bayes with one Newton step: around the base rate p, a value of a field whose rows have
    the summed residual g and the information i = p (1 - p) sum of x^2 has a log-odds weight of
    about g / i. With a prior of variance t, g is Gaussian with variance i + i^2 t; the t of maximum
    likelihood over all values is returned. Values are treated independently, so correlated fields
    count twice; one step underestimates large weights, so a variance of 2 is found as about 1.2.

    At most 200,000 of the encoded rows, evenly spaced, with their binary targets y [N], are read.
    The variance is between 0.1, or .0001 for a table of many values (`LARGE_VOCABULARY`), and 3;
    1.0, scikit-learn's default, if all targets are equal.
    """
    rows_per_read_row = -(-len(train) // EFFECT_ROWS)
    rows = np.arange(0, len(train), rows_per_read_row)
    weight = np.ones(len(rows))
    if train.weight is not None:
        weight = np.asarray(train.weight[rows], np.float64)
    weight = weight / weight.mean()
    target = np.asarray(y[rows], np.float64)
    rate = float(np.average(target, weights=weight))
    if not 0.0 < rate < 1.0:
        return 1.0

    row_residual = weight * (target - rate)
    row_information = weight * rate * (1 - rate)
    residual = np.zeros(train.layout.num_rows)
    information = np.zeros(train.layout.num_rows)
    for ids, entry_rows, x, squares in _entries_by_field(train, rows):
        residual += np.bincount(ids, x * row_residual[entry_rows], minlength=len(residual))
        information += np.bincount(
            ids, squares * row_information[entry_rows], minlength=len(information)
        )
    residual = train.layout.from_knots(residual)
    information = train.layout.from_knots(information)
    is_seen = information > 0

    candidates = np.geomspace(LEAST_VARIANCE, MOST_VARIANCE, VARIANCE_CANDIDATES)
    if has_large_vocabulary(train.layout):
        candidates = np.geomspace(LEAST_LAZY_VARIANCE, MOST_VARIANCE, LAZY_VARIANCE_CANDIDATES)
    residual = residual[is_seen]
    information = information[is_seen]
    likelihoods = []
    for candidate in candidates:
        variance = information + information**2 * candidate
        likelihoods.append(-np.sum(np.log(variance) + residual**2 / variance))
    return float(candidates[np.argmax(likelihoods)])


def _entries_by_field(
    train: EncodedTable, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """The entries of each field in some rows: their ids, the positions in `rows`, their values x, and these squared.

    A value that a bag repeats has an entry each time; in `design_matrix` these are one, their sum.
    The share of a knot stands for its square.
    """
    # one pass over a table that may be on disk
    ids = train.ids[rows]
    values = train.values[rows]
    positions = np.arange(len(rows))
    value_column = 0
    for column, field in enumerate(train.layout.single_fields):
        x = np.ones(len(rows))
        if field.kind == "value":
            numbers = values[:, value_column].astype(np.float64)
            value_column += 1
            if field.piecewise:
                number_positions, knots, shares = field.knot_entries(numbers)
                yield knots, number_positions, shares, shares
            else:
                x = numbers
        yield ids[:, column], positions, x, x * x

    bag_fields = train.layout.bag_fields
    for number, field in enumerate(bag_fields):
        bag = train.bags.take(torch.from_numpy(rows * len(bag_fields) + number))
        bag_positions = bag.segments.numpy()
        x = np.ones(len(bag_positions))
        if field.pooling == "mean":
            x = (1 / bag.lengths.numpy().clip(1))[bag_positions]
        yield bag.ids.numpy(), bag_positions, x, x * x
