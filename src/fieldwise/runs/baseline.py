"""The baseline of a training: a logistic or linear regression on the same rows, or on a sample of a large table's."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.models import LR
from fieldwise.runs.pipeline import fit_parts
from fieldwise.runs.recipe import Recipe
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.settings import TrainingSettings

__all__ = ["baseline_rows", "fit_baseline"]

EPOCHS = 20
LEAST_ROWS = 50_000  # training rows: about a second
WORK = 0.1  # of the training's, counted in rows that are trained on


def baseline_rows(prepared: Prepared, epochs: int) -> int:
    """The number of training rows of the baseline: its epochs read at most a tenth of what the training has read.

    Tables of at most 50,000 training rows are read whole.
    """
    rows = len(prepared.train.table)
    return min(rows, max(LEAST_ROWS, int(WORK * epochs * rows / EPOCHS)))


def fit_baseline(recipe: Recipe, prepared: Prepared, rows: int) -> Mapping[str, float]:
    """The metrics on all validation rows of the baseline, with default settings and the main label's task.

    The test rows are not used. With more than `rows` training rows it trains and stops early on samples of as many.
    """
    baseline = Recipe(
        name="baseline",
        data=recipe.data,
        schema=recipe.schema,
        model=LR(),
        training=TrainingSettings(epochs=EPOCHS),
        seed=recipe.seed,
    )
    train, valid = (_sample(part, rows, recipe.seed) for part in (prepared.train, prepared.valid))
    trained = fit_parts(baseline, prepared.encoder, train, valid)
    if valid is prepared.valid:
        return trained.valid
    objective = Objective.of(*trained.recipe.schema.labels)
    return evaluate(trained.bundle.network, prepared.valid.table, objective, prepared.valid.group)


def _sample(part: Part, rows: int, seed: int) -> Part:
    """A random row of each of `rows` equal stretches of a part, and those of the least and the largest targets."""
    every = len(part.table)
    if every <= rows:
        return part
    ends = np.linspace(0, every, rows + 1).astype(np.int64)
    drawn = np.random.default_rng(seed).integers(ends[:-1], ends[1:])
    extremes = np.concatenate([part.y.argmin(axis=0), part.y.argmax(axis=0)])  # so that both classes are there
    numbers = np.unique(np.concatenate([drawn, extremes]))
    return dataclasses.replace(
        part,
        rows=lambda: part.frame[numbers],
        table=part.table.take(numbers),
        group=None if part.group is None else part.group[numbers],
    )
