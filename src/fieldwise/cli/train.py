"""`fieldwise train`."""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.processes import EngineName, launch_processes, train_on_ray
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.runs.recipe import Recipe, load_recipe, protocol_of
from fieldwise.storage.files import check_folder, keep_elsewhere

if TYPE_CHECKING:
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.distributed.process_group import ProcessGroup
    from fieldwise.runs.pipeline import TrainingResult
    from fieldwise.training.checkpoint import CheckpointFolder


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `fieldwise train`."""

    recipe: opt.RecipeName
    settings: opt.Settings = None
    out: Annotated[Path | None, Option(help="Folder for the bundle. Default: runs/RECIPE-seedN.")] = None
    overwrite: opt.Overwrite = False
    json: opt.AsJson = False
    quiet: opt.Quiet = False
    tracker: opt.Tracker = None
    progress: opt.Shown = "text"
    processes: Annotated[int | None, Option(min=1, help="Processes on this machine that share the training.")] = None
    engine: EngineName = "local"

    def folder(self, recipe: Recipe) -> Path:
        """The folder for the bundle."""
        protocol = protocol_of(self.settings or ())
        short = Path(recipe.name).stem if recipe.name.endswith(".toml") else recipe.name.replace("/", "-")
        way = f"-{protocol}" if protocol else ""
        return self.out or Path("runs") / f"{short}{way}-seed{recipe.seed}"


def run(options: TrainOptions) -> None:
    """Train a recipe, evaluate it, and save a bundle.

    It is evaluated on its test rows. Ctrl-C keeps the best model so far. After Ctrl-C or a kill the same command
    resumes from the last checkpoint.
    """
    recipe = load_recipe(options.recipe, options.settings or ())  # PyTorch is loaded only if all else is valid
    if options.engine == "ray" and "FIELDWISE_RAY_WORKER" not in os.environ:
        out = options.folder(recipe).absolute()
        out.parent.mkdir(parents=True, exist_ok=True)
        train_on_ray(options.processes, gpus=recipe.training.device.startswith("cuda"), folder=out.parent)
        return
    if launch_processes(options.processes):
        return
    from fieldwise.distributed.process_group import process_group
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import train_recipe
    from fieldwise.training.checkpoint import CheckpointFolder

    with process_group() as group:
        opt.check_device(recipe.training.device, what=opt.DEVICE)
        if group is None or group.rank == 0:
            _run_here(options, recipe, group)
            return
        # With process 0, which prints and writes.
        with group.first("preparation", on_machine=True):
            prepared = prepare_recipe(recipe, opt.data_folder(recipe.data.name), cache=opt.cache_for(quiet=True))
        with group.active():
            done = train_recipe(recipe, prepared, unfinished=CheckpointFolder.beside(options.folder(recipe)))
        with group.first("end"):
            if done.history.stopped == "interrupted":
                raise KeyboardInterrupt


def _run_here(options: TrainOptions, recipe: Recipe, group: "ProcessGroup | None") -> None:
    """Train in this process, which prints and writes, and in others, if there are any."""
    from fieldwise.bundle.bundle import MANIFEST, stopped_by
    from fieldwise.runs.default_settings import limit_reached
    from fieldwise.training.checkpoint import CheckpointFolder

    folder = options.folder(recipe)
    check_out(folder)
    unfinished = CheckpointFolder.beside(folder, note=show.say)
    # A bundle that Ctrl-C left of an unfinished run may be replaced unasked.
    left = unfinished.exists() and stopped_by(folder) == "interrupted"
    if (folder / MANIFEST).exists() and not (options.overwrite or left):
        raise ConfigError(
            f"{folder} holds a bundle already, which training would replace: give --overwrite, or another --out"
        )
    with unfinished.claimed():
        done, prepared, preparing = _trained(options, recipe, unfinished, group)
        folder, unsaved = save_or_keep(done.bundle.save, folder, "The trained bundle")
        if interrupted := done.history.stopped == "interrupted":
            best = f"the best model so far (after epoch {done.history.best.epoch:.4g})"
            more = "; the same command resumes it" if unfinished.exists() else ""
            show.say(f"interrupted in epoch {done.history.epochs}: {best} is in {folder}{more}")
        elif unsaved is None:
            unfinished.remove()
        if options.json:
            show.print_json({**done.record(), "seconds_preparing": round(preparing, 3), "bundle": str(folder)})
        else:
            _show_run(done, folder, round(preparing))
        if not options.quiet and (check := limit_reached(done.chosen, done.history)):
            show.say(check)
        if done.chosen and not options.quiet and not interrupted:
            _compare_with_baseline(done, prepared)
        if group is not None:  # the others end when all is said: a launcher may end this process by one that has ended
            with group.first("end"):
                pass
    if unsaved is not None:
        raise unsaved
    if not (options.json or options.quiet):
        data = recipe.data
        if {"user", "item"} <= {f.role for f in recipe.schema.fields}:
            reading = show.reading_words(data.separator, data.encoding, data.columns)
            log = [] if data.path is None else ["--log", data.path, *reading]
            what = f"start a server with a web page{' that recommends' if log else ''}"
            show.suggest(what, "serve", folder, *log, needs="uvicorn")
        if not show.suggest_report(done.bundle, folder):
            show.suggest("evaluate on its test rows again", "evaluate", folder)
    if interrupted:
        raise KeyboardInterrupt


def _trained(
    options: TrainOptions, recipe: Recipe, unfinished: "CheckpointFolder", group: "ProcessGroup | None"
) -> "tuple[TrainingResult, Prepared, float]":
    """Prepare the rows and train; returns also the rows, and the seconds that they took."""
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.default_settings import sentence_of
    from fieldwise.runs.pipeline import resolve_defaults, train_recipe
    from fieldwise.training.progress import Reported

    began, quiet, as_json = time.perf_counter(), options.quiet, options.progress == "json"
    callbacks = opt.callbacks_for(options.tracker, quiet=quiet or as_json)(recipe.name)
    with opt.reports_for(options.progress, quiet=quiet) as reports:
        reports.begin("preparation", run=recipe.name)
        cache = opt.cache_for(quiet)
        with nullcontext() if group is None else group.first("preparation", on_machine=True):
            prepared = prepare_recipe(recipe, opt.data_folder(recipe.data.name), cache=cache, reports=reports)
        preparing = time.perf_counter() - began
        if as_json:
            callbacks.append(Reported(reports, recipe.name))
        else:
            reports.begin("")  # the callbacks show the epochs
        chosen = resolve_defaults(recipe, prepared.train)[1]
        lines = [f"{recipe.name}: {show.row_counts(prepared.counts)}"]
        lines += [f"chosen from the data: {sentence_of(chosen)}"] if chosen else []
        for line in () if quiet else lines:
            show.say(line)
        show.say_cautions(recipe, prepared)
        if group is not None and group.size > 1 and not quiet:
            show.say(f"{group.size} processes share this training")
        with nullcontext() if group is None else group.active(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: show.say(f"warning: {message}")
            done = train_recipe(recipe, prepared, callbacks, unfinished)
    if done.warm_start is not None:
        show.say(done.warm_start.sentence())
        if caution := done.warm_start.caution():
            show.say(caution)
    return done, prepared, preparing


def _compare_with_baseline(done: "TrainingResult", prepared: "Prepared") -> None:
    """Train the baseline of a run whose recipe leaves settings to be chosen, and say so if it is the better model."""
    from fieldwise.models.build import model_name
    from fieldwise.runs.pipeline import BASELINE, baseline_rows, fit_baseline

    if model_name(done.recipe.model) == BASELINE:
        return
    rows, every = baseline_rows(prepared, done.history.epochs), len(prepared.train.table)
    if rows < every:
        show.say(f"baseline: {_regression(done)} on a sample of {rows:,} of the {every:,} training rows")
    if below := below_baseline(done, fit_baseline(done.recipe, prepared, rows), rows if rows < every else None):
        show.say(below)


def below_baseline(done: "TrainingResult", baseline: Mapping[str, float], rows: int | None) -> str | None:
    """A warning for a run that is no better than its baseline on the validation rows; None if it is better.

    `rows` is the number of training rows of the baseline's sample; None if it had all.
    """
    metric = "logloss" if done.recipe.schema.label.task == "binary" else "rmse"
    if round(done.valid[metric], 4) <= round(baseline[metric], 4):
        return None
    sample = "" if rows is None else f", trained on a sample of {rows:,} rows,"
    return (
        f"On the validation rows {_regression(done)}{sample} is better than this model: {metric} "
        f"{baseline[metric]:.4f} compared with {done.valid[metric]:.4f}. Try model.name=lr, more rows, or "
        "`fieldwise tune`."
    )


def _regression(done: "TrainingResult") -> str:
    return f"a {'logistic' if done.recipe.schema.label.task == 'binary' else 'linear'} regression"


def _show_run(done: "TrainingResult", folder: Path, preparing: int) -> None:
    """Print the metrics of a finished run."""
    from fieldwise.training.history import STOPPED

    out, best = show.console(), done.best_possible
    own = {"valid": done.valid, "test": done.test}
    show.show_metrics(own | ({} if best is None else {"best possible on test": best}), remarks_on=own)
    if done.refit is not None:
        epochs = show.counted(done.refit.best.epoch, "epoch")
        out.print(
            f"The model was trained again for {epochs} on all {done.refit.rows:,} training and validation rows. The "
            "validation metrics are those of the first training."
        )
    if (share := done.history.interactions) is not None:
        out.print(f"The model is the mean of itself ({share:.0%}) and LR that is best on the validation rows.")
    epoch = f"{done.history.seconds_per_epoch:.1f} s per epoch, " if done.history.seconds_per_epoch else ""
    training = round(done.seconds)
    out.print(
        f"{done.parameters:,} parameters, best after epoch {done.history.best.epoch:.4g} of {done.history.epochs} "
        f"({STOPPED[done.history.stopped]}), {epoch}{preparing + training} s in total "
        f"({preparing} s to read and prepare, {training} s to train and evaluate). Bundle: {folder}"
    )


def check_out(folder: Path) -> None:
    """Check, before any work, that a bundle can be saved to a folder; else raise a BundleError or DataError."""
    from fieldwise.bundle.bundle import BUNDLE

    BUNDLE.check_folder(folder)
    check_folder(folder)


def save_or_keep(save: Callable[[Path], object], folder: Path, what: str) -> tuple[Path, DataError | None]:
    """Save something to a folder, or elsewhere if that folder cannot be written after all.

    Returns the folder that has it, and the error to end with if it is another; an error if no place is writable.
    """
    try:
        save(folder)
    except (FieldwiseError, OSError) as error:
        kept = keep_elsewhere(save)
        if kept is None:
            raise
        return kept, DataError(f"{error}. {what} was saved in {kept}: move it from there")
    return folder, None
