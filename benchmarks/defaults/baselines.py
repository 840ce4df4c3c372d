"""Baselines on the same rows and fields as our models that are no models here: a constant, scikit-learn's LR."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.table import EncodedTable
from fieldwise.evaluation import logloss_from_logits
from fieldwise.schema import Schema

__all__ = ["BASELINE_FITS", "CHOICES", "Fit", "constant", "one_hot", "scikit_learn"]

CHOICES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
STEPS = 1000


@dataclass(frozen=True)
class Fit:
    """The result of a baseline.

    Args:
        valid: logits of the validation rows.
        test: logits of the test rows.
        seconds: seconds of training and choosing settings, without building the matrix.
        about: the chosen settings.
    """

    valid: np.ndarray
    test: np.ndarray
    seconds: float
    about: dict[str, Any] = field(default_factory=dict)


def constant(prepared: Prepared, schema: Schema, threads: int) -> Fit:
    """The training rows' base rate."""
    del schema, threads
    rate = float(prepared.train.main.mean())
    logit = np.log(rate) - np.log1p(-rate)
    valid, test = (np.full(len(part.table), logit) for part in (prepared.valid, prepared.test))
    return Fit(valid, test, 0.0, {"rate": rate})


def one_hot(table: EncodedTable) -> sparse.csr_matrix:
    """The encoded rows as a matrix [N, rows of the embedding table], the features of our LR.

    A category or bin is a 1, a number its value; a bag's values share a 1 (`mean`) or have one
    each.
    """
    rows, singles = table.ids.shape
    weights = np.ones((rows, singles))
    layout = table.layout
    kinds = [f.kind for f in layout.fields if f.kind != "bag"]
    weights[:, [k == "value" for k in kinds]] = table.values
    bags = [f for f in layout.fields if f.kind == "bag"]
    lengths = np.diff(table.bag_offsets)
    bag_row = np.repeat(np.repeat(np.arange(rows), len(bags)), lengths)
    means = np.tile([f.pooling == "mean" for f in bags], rows).astype(bool)
    share = np.repeat(np.where(means, 1 / np.maximum(lengths, 1), 1.0), lengths)
    values = np.concatenate([weights.ravel(), share])
    row = np.concatenate([np.repeat(np.arange(rows), singles), bag_row])
    column = np.concatenate([table.ids.ravel(), table.bag_ids])
    return sparse.csr_matrix((values, (row, column)), shape=(rows, layout.num_rows))


def scikit_learn(prepared: Prepared, schema: Schema, threads: int) -> Fit:
    """`LogisticRegression` on the one-hot rows, with the C in `CHOICES` of the lowest validation logloss."""
    del schema, threads
    train, valid, test = (
        one_hot(part.table) for part in (prepared.train, prepared.valid, prepared.test)
    )
    y = prepared.train.main
    y_valid = np.asarray(prepared.valid.main, dtype=np.float64)
    began = time.perf_counter()
    best = None
    limit = []
    for c in CHOICES:
        model = LogisticRegression(C=c, max_iter=STEPS)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(train, y)
        limit += [c] if said else []
        loss = logloss_from_logits(y_valid, model.decision_function(valid))
        if best is None or loss < best[0]:
            best = loss, c, model
    assert best is not None
    seconds = time.perf_counter() - began
    about = {"C": best[1], "tried": list(CHOICES), "not_converged": limit}
    return Fit(best[2].decision_function(valid), best[2].decision_function(test), seconds, about)


BASELINE_FITS: dict[str, Callable[[Prepared, Schema, int], Fit]] = {
    "constant": constant,
    "sklearn-lr": scikit_learn,
}
