"""The baseline of a run: LR with default settings, trained in a fraction of the run's time."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from fieldwise.data.prepare.prepared import Prepared, SplitPart
from fieldwise.evaluation.metrics import LOSSES
from fieldwise.models.registry import as_settings
from fieldwise.models.serialise import model_name
from fieldwise.runs.pipeline import TrainingResult, fit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.settings import TrainingSettings

BASELINE = "lr"
"""The model that other models of a run without fixed settings are compared with."""
BASELINE_EPOCHS = 20
LEAST_BASELINE_ROWS = 50_000
"""Training rows: about a second."""
BASELINE_SHARE_OF_WORK = 0.1
"""Of the training's work, counted in rows that are trained on."""


def compare_with_baseline(
    trained: TrainingResult, prepared: Prepared, note: Callable[[str], None] = lambda _: None
) -> str | None:
    """A sentence if the baseline is better than a trained model on the validation rows; None if it is not.

    `note` is called with a message if the baseline is trained on a sample of the rows.
    """
    if model_name(trained.recipe.model) == BASELINE:
        return None
    sample_rows = baseline_rows(prepared, trained.history.epochs)
    training_rows = len(prepared.train.table)
    is_sample = sample_rows < training_rows
    if is_sample:
        note(
            f"baseline: {_regression(trained)} on a sample of {sample_rows:,} of the {training_rows:,} training rows"
        )
    baseline = fit_baseline(trained.recipe, prepared, sample_rows)
    return below_baseline(trained, baseline, sample_rows if is_sample else None)


def below_baseline(
    trained: TrainingResult, baseline: Mapping[str, float], rows: int | None
) -> str | None:
    """A sentence for a model that is worse than its baseline on the validation rows; None for a better one.

    `rows` is the number of training rows of the baseline's sample; None if it had all.
    """
    metric = LOSSES[trained.recipe.schema.label.task]
    if round(trained.valid[metric], 4) <= round(baseline[metric], 4):
        return None
    sample = "" if rows is None else f", trained on a sample of {rows:,} rows,"
    return (
        f"On the validation rows {_regression(trained)}{sample} is better than this model: {metric} "
        f"{baseline[metric]:.4f} compared with {trained.valid[metric]:.4f}. Try model.name=lr, more rows, or "
        "`fieldwise tune`."
    )


def _regression(trained: TrainingResult) -> str:
    if trained.recipe.schema.label.task == "binary":
        return "a logistic regression"
    return "a linear regression"


def baseline_rows(prepared: Prepared, epochs: int) -> int:
    """The number of training rows of the baseline: its epochs read at most a tenth of what the training has read.

    Tables of at most 50,000 training rows are read whole.
    """
    rows = len(prepared.train.table)
    affordable_rows = int(BASELINE_SHARE_OF_WORK * epochs * rows / BASELINE_EPOCHS)
    return min(rows, max(LEAST_BASELINE_ROWS, affordable_rows))


def fit_baseline(recipe: Recipe, prepared: Prepared, rows: int) -> Mapping[str, float]:
    """The metrics on all validation rows of the baseline, with default settings and the main label's task.

    The test rows are not used. With more than `rows` training rows it trains and stops early on
    samples of as many (`_sampled`).
    """
    baseline = dataclasses.replace(
        recipe,
        model=as_settings(BASELINE),
        training=TrainingSettings(epochs=BASELINE_EPOCHS),
        defaults="data",
        warm_start=None,
    )
    train = _sampled(prepared.train, rows, recipe.seed)
    valid = _sampled(prepared.valid, rows, recipe.seed)
    trained = fit_recipe(baseline, prepared.encoder, train, valid)
    if valid is prepared.valid:
        return trained.valid

    objective = Objective.of(*trained.recipe.schema.labels)
    return evaluate(trained.bundle.network, prepared.valid.table, objective, prepared.valid.group)


def _sampled(part: SplitPart, rows: int, seed: int) -> SplitPart:
    """A part, or about `rows` of its rows if it has more.

    These are a random row of each of `rows` equal stretches, and those of the least and the largest
    targets, so that both classes are there.
    """
    all_rows = len(part.table)
    if all_rows <= rows:
        return part

    bounds = np.linspace(0, all_rows, rows + 1).astype(np.int64)
    drawn = np.random.default_rng(seed).integers(bounds[:-1], bounds[1:])
    extremes = np.concatenate([part.y.argmin(axis=0), part.y.argmax(axis=0)])
    row_numbers = np.unique(np.concatenate([drawn, extremes]))
    return dataclasses.replace(
        part,
        rows=partial(part.frame.__getitem__, row_numbers),
        table=part.table.take(row_numbers),
        group=None if part.group is None else part.group[row_numbers],
    )
