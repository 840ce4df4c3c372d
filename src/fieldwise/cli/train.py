"""`fieldwise train`."""

import dataclasses
import json
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from fieldwise.cli.next import data_options, suggest, suggest_report, text_options
from fieldwise.cli.options import cache_for, existing_data_dir, set_threads
from fieldwise.cli.saving import check_out, save_or_keep
from fieldwise.cli.show import console, row_counts, say, show_metrics
from fieldwise.data.prepare.repeats import repeat_sentences
from fieldwise.models import LR
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.defaults import sentence_of
from fieldwise.runs.fitting import lr_on_valid, settled
from fieldwise.runs.pipeline import Run, train_recipe
from fieldwise.runs.recipe import load_recipe
from fieldwise.training.progress import progress_for

__all__ = ["below_lr", "run_train"]

STOPPED = {
    "patience": "no gain since",
    "epochs": "all epochs done",
    "interrupted": "interrupted",
    "time": "out of time",
}


def run_train(
    name: str,
    settings: Sequence[str],
    protocol: str | None,
    seed: int | None,
    out: Path | None,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
    threads: int | None,
    cache: bool,
) -> None:
    """Train, save, print.

    Errors:
        KeyboardInterrupt: Ctrl-C ended training early; the best so far is saved and shown by then.
        DataError: the bundle could not be saved; it is kept elsewhere, as the sentence says, and shown by then.
    """
    set_threads(threads)
    recipe = load_recipe(name, settings, protocol=protocol)
    if seed is not None:
        recipe = dataclasses.replace(recipe, seed=seed)
    short = Path(recipe.name).stem if recipe.name.endswith(".toml") else recipe.name.replace("/", "-")
    way = f"-{protocol}" if protocol else ""
    folder = out or Path("runs") / f"{short}{way}-seed{recipe.seed}"
    check_out(folder)
    began = time.perf_counter()
    prepared = prepare_recipe(recipe, existing_data_dir(data_dir, recipe.data.name), cache=cache_for(cache, quiet))
    preparing = time.perf_counter() - began
    if not quiet:
        say(f"{recipe.name}: {row_counts(prepared.counts)}")
    for sentence in repeat_sentences(prepared.counts):
        say(f"WARNING: {sentence}")
    chosen = settled(recipe, prepared)[1]
    if chosen and not quiet:
        say(f"by the data: {sentence_of(chosen)}")
    if recipe.mean_labels is not None and (caution := recipe.mean_labels.caution()):
        say(caution)
    with warnings.catch_warnings():  # which puts back what showed them before
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        run = train_recipe(recipe, prepared, progress_for(recipe.name, quiet=quiet))
    if run.warm_start is not None:
        say(run.warm_start.sentence())
        if caution := run.warm_start.caution():
            say(caution)
    folder, unsaved = save_or_keep(run.bundle, folder)
    if run.result.stopped == "interrupted":
        best = f"the best so far (after epoch {run.result.best.epoch:.4g})"
        say(f"interrupted in epoch {run.result.epochs}: {best} is in {folder}")
    _show(run, folder, preparing, as_json)
    judged = chosen and not quiet and run.result.stopped != "interrupted"
    if judged and (below := below_lr(run, lr_on_valid(recipe, prepared))):
        say(below)
    if unsaved is not None:
        raise unsaved
    if not (as_json or quiet):
        _suggest(run, folder, data_dir)
    if run.result.stopped == "interrupted":
        raise KeyboardInterrupt


def _suggest(run: Run, folder: Path, data_dir: Path | None) -> None:
    """Name the commands worth typing next: a server where there are users and items, and a report."""
    data, schema = run.recipe.data, run.recipe.schema
    if {"user", "item"} <= {f.role for f in schema.fields} and find_spec("uvicorn") is not None:
        reading = text_options(data.separator, data.encoding, data.columns)
        log = [] if data.path is None else ["--log", data.path, *reading]
        suggest("a page that recommends, and a server" if log else "a page and a server", "serve", folder, *log)
    if not suggest_report(run.bundle, folder, data_dir):
        suggest("its test rows again", "evaluate", folder, *data_options(data_dir))


def below_lr(run: Run, lr: Mapping[str, float]) -> str | None:
    """What to say of a run that is no better than a linear model on its validation rows; None for one that is.

    Args:
        run: of a recipe that left settings open.
        lr: the validation metrics of LR by its defaults.
    """
    metric = "logloss" if run.recipe.schema.label.task == "binary" else "rmse"
    if isinstance(run.recipe.model, LR) or run.valid[metric] <= lr[metric]:
        return None
    kind = "logistic" if metric == "logloss" else "linear"
    return (
        f"On the validation rows a {kind} regression is better than this model: {metric} {lr[metric]:.4f} against "
        f"{run.valid[metric]:.4f}. Try model.name=lr, more rows, or `fieldwise tune`."
    )


def _show(run: Run, folder: Path, preparing: float, as_json: bool) -> None:
    if as_json:
        json.dump(
            {**run.record(), "seconds_preparing": round(preparing, 3), "bundle": str(folder)}, sys.stdout, indent=1
        )
        print()
        return
    out = console()
    columns = {"valid": run.valid, "test": run.test}
    if run.best_possible is not None:
        columns["best possible on test"] = run.best_possible
    show_metrics(columns, remarks_on=("valid", "test"))
    epoch = f"{run.result.seconds_per_epoch:.1f} s an epoch, " if run.result.seconds_per_epoch else ""
    out.print(
        f"{run.parameters:,} parameters, best after epoch {run.result.best.epoch:.4g} of {run.result.epochs} "
        f"({STOPPED[run.result.stopped]}), {epoch}{preparing + run.seconds:.0f} s in all "
        f"({preparing:.0f} s to read and prepare, {run.seconds:.0f} s to train and evaluate). Bundle: {folder}",
    )
