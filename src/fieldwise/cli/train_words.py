"""What `fieldwise train` says of its rows and of the run."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fieldwise.cli.next import data_options, suggest, suggest_report, text_options
from fieldwise.cli.show import console, print_json, row_counts, say, show_metrics

if TYPE_CHECKING:
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.runs.baseline import Baseline
    from fieldwise.runs.defaults import Chosen
    from fieldwise.runs.pipeline import Run
    from fieldwise.runs.recipe import Recipe

__all__ = ["below_baseline", "show_run", "suggest_next", "tell_baseline", "tell_processes", "tell_rows"]

STOPPED = {
    "patience": "no improvement since",
    "epochs": "all epochs completed",
    "interrupted": "interrupted",
    "time": "time limit reached",
    "converged": "solved exactly",
}


def tell_rows(recipe: "Recipe", prepared: "Prepared", chosen: Sequence["Chosen"], quiet: bool) -> None:
    """Report the row counts, warnings and the settings chosen from the data."""
    from fieldwise.data.prepare.repeats import repeat_sentences
    from fieldwise.runs.defaults import sentence_of

    if not quiet:
        say(f"{recipe.name}: {row_counts(prepared.counts)}")
    for sentence in repeat_sentences(prepared.counts):
        say(f"WARNING: {sentence}")
    if chosen and not quiet:
        say(f"chosen from the data: {sentence_of(chosen)}")
    if recipe.target_encoding is not None and (caution := recipe.target_encoding.caution()):
        say(caution)


def tell_processes(processes: int, quiet: bool) -> None:
    """Report how many processes share a training."""
    if processes > 1 and not quiet:
        say(f"{processes} processes share this training")


def suggest_next(done: "Run", folder: Path, data_dir: Path | None) -> None:
    """Print useful next commands: a server if there are users and items, and a report."""
    data, schema = done.recipe.data, done.recipe.schema
    if {"user", "item"} <= {f.role for f in schema.fields} and find_spec("uvicorn") is not None:
        reading = text_options(data.separator, data.encoding, data.columns)
        log = [] if data.path is None else ["--log", data.path, *reading]
        suggest(
            "start a server with a web page that recommends" if log else "start a server with a web page",
            "serve",
            folder,
            *log,
        )
    if not suggest_report(done.bundle, folder, data_dir):
        suggest("evaluate on its test rows again", "evaluate", folder, *data_options(data_dir))


def tell_baseline(done: "Run", prepared: "Prepared") -> None:
    """Train the baseline of a run whose recipe leaves settings to be chosen, and say so if it is the better model."""
    from fieldwise.models import LR
    from fieldwise.runs.baseline import baseline_rows, fit_baseline

    if isinstance(done.recipe.model, LR):
        return
    rows, every = baseline_rows(prepared, done.result.epochs), len(prepared.train.table)
    if rows < every:
        say(f"baseline: {_regression(done)} on a sample of {rows:,} of the {every:,} training rows")
    if below := below_baseline(done, fit_baseline(done.recipe, prepared, rows)):
        say(below)


def below_baseline(done: "Run", baseline: "Baseline") -> str | None:
    """A warning for a run that is no better than its baseline on the validation rows; None if it is better."""
    metric = "logloss" if done.recipe.schema.label.task == "binary" else "rmse"
    if done.valid[metric] <= baseline.valid[metric]:
        return None
    sample = "" if baseline.rows is None else f", trained on a sample of {baseline.rows:,} rows,"
    return (
        f"On the validation rows {_regression(done)}{sample} is better than this model: {metric} "
        f"{baseline.valid[metric]:.4f} compared with {done.valid[metric]:.4f}. Try model.name=lr, more rows, or "
        "`fieldwise tune`."
    )


def _regression(done: "Run") -> str:
    return f"a {'logistic' if done.recipe.schema.label.task == 'binary' else 'linear'} regression"


def show_run(done: "Run", folder: Path, preparing: float, as_json: bool) -> None:
    """Print the metrics of a finished run, or all of its record as JSON."""
    if as_json:
        print_json({**done.record(), "seconds_preparing": round(preparing, 3), "bundle": str(folder)})
        return
    out = console()
    columns = {"valid": done.valid, "test": done.test}
    if done.best_possible is not None:
        columns["best possible on test"] = done.best_possible
    show_metrics(columns, remarks_on=("valid", "test"))
    if done.refit is not None:
        out.print(
            f"The model was trained again for {done.refit.epochs:.4g} epochs on all {done.refit.rows:,} training and "
            "validation rows. The validation metrics are those of the first training."
        )
    epoch = f"{done.result.seconds_per_epoch:.1f} s per epoch, " if done.result.seconds_per_epoch else ""
    before, then = round(preparing), round(done.seconds)
    out.print(
        f"{done.parameters:,} parameters, best after epoch {done.result.best.epoch:.4g} of {done.result.epochs} "
        f"({STOPPED[done.result.stopped]}), {epoch}{before + then} s in total "
        f"({before} s to read and prepare, {then} s to train and evaluate). Bundle: {folder}",
    )
