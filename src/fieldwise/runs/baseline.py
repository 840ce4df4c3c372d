"""The baseline of a training: a logistic or linear regression on the same rows, or on a sample of a large table's."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.models import LR
from fieldwise.runs.fit_parts import FitInputs, fit_parts
from fieldwise.runs.fit_settings import FitSettings
from fieldwise.runs.recipe import Recipe
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.settings import TrainingSettings

__all__ = ["Baseline", "baseline_rows", "fit_baseline"]

EPOCHS = 20
LEAST_ROWS = 50_000  # training rows: about a second
WORK = 0.1  # of the training's, counted in rows that are trained on


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A baseline's metrics on all validation rows, and the training rows of its sample, or None if it had all."""

    valid: Mapping[str, float]
    rows: int | None


def baseline_rows(prepared: Prepared, epochs: int) -> int:
    """The number of training rows of the baseline: its epochs read at most a tenth of what the training has read.

    Tables of at most 50,000 training rows are read whole.

    Args:
        prepared: the training's rows.
        epochs: of the training.
    """
    rows = len(prepared.train.table)
    return min(rows, max(LEAST_ROWS, int(WORK * epochs * rows / EPOCHS)))


def fit_baseline(recipe: Recipe, prepared: Prepared, rows: int) -> Baseline:
    """The baseline, with default settings and the main label's task. The test rows are not used.

    Args:
        recipe: the schema and the seed are used.
        prepared: its rows.
        rows: number of training rows, at most; a sample of all, if there are more. Early stopping then uses a sample
            of as many validation rows.
    """
    settings = FitSettings(schema=recipe.schema, model=LR(), training=TrainingSettings(epochs=EPOCHS), seed=recipe.seed)
    train, valid = (_sample(part, rows, recipe.seed) for part in (prepared.train, prepared.valid))
    fitted = fit_parts(settings, FitInputs(encoder=prepared.encoder, train=train, valid=valid))
    metrics: Mapping[str, float] = fitted.result.best.metrics
    if valid is not prepared.valid:
        objective = Objective.of(*fitted.settings.schema.labels)
        metrics = evaluate(fitted.network, prepared.valid.table, objective, prepared.valid.group)
    return Baseline(valid=metrics, rows=None if train is prepared.train else len(train.table))


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
