"""The comparison of a trained model with its baseline, a regression on the same validation rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fieldwise.cli import show

if TYPE_CHECKING:
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.runs.pipeline import TrainingResult


def compare_with_baseline(trained: "TrainingResult", prepared: "Prepared") -> None:
    """Train the baseline of a run whose recipe leaves settings to be chosen, and say so if it is the better model."""
    from fieldwise.models.build import model_name
    from fieldwise.runs.baseline import BASELINE, baseline_rows, fit_baseline

    if model_name(trained.recipe.model) == BASELINE:
        return

    sample_rows = baseline_rows(prepared, trained.history.epochs)
    training_rows = len(prepared.train.table)
    is_sample = sample_rows < training_rows
    if is_sample:
        show.say(
            f"baseline: {_regression(trained)} on a sample of {sample_rows:,} of the {training_rows:,} training rows"
        )

    baseline = fit_baseline(trained.recipe, prepared, sample_rows)
    warning = below_baseline(trained, baseline, sample_rows if is_sample else None)
    if warning is not None:
        show.say(warning)


def below_baseline(
    trained: "TrainingResult", baseline: Mapping[str, float], rows: int | None
) -> str | None:
    """A warning for a run that is no better than its baseline on the validation rows; None if it is better.

    `rows` is the number of training rows of the baseline's sample; None if it had all.
    """
    is_binary = trained.recipe.schema.label.task == "binary"
    metric = "logloss" if is_binary else "rmse"
    if round(trained.valid[metric], 4) <= round(baseline[metric], 4):
        return None
    sample = "" if rows is None else f", trained on a sample of {rows:,} rows,"
    return (
        f"On the validation rows {_regression(trained)}{sample} is better than this model: {metric} "
        f"{baseline[metric]:.4f} compared with {trained.valid[metric]:.4f}. Try model.name=lr, more rows, or "
        "`fieldwise tune`."
    )


def _regression(trained: "TrainingResult") -> str:
    if trained.recipe.schema.label.task == "binary":
        return "a logistic regression"
    return "a linear regression"
