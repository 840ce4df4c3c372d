"""`fieldwise train`: train a recipe in one process or several, and save a bundle."""

import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, saving, show
from fieldwise.cli.processes import EngineName, launch_processes, train_on_ray
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import load_recipe
from fieldwise.runs.setting_paths import protocol_of

if TYPE_CHECKING:
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.distributed.process_group import ProcessGroup
    from fieldwise.runs.pipeline import TrainingResult
    from fieldwise.training.checkpoint import CheckpointFolder


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `fieldwise train`."""

    context: typer.Context  # holds the Invocation
    recipe: opt.RecipeName
    settings: opt.Settings = None
    out: Annotated[
        Path | None, Option(help="Folder for the bundle. Default: runs/RECIPE-seedN.")
    ] = None
    overwrite: opt.Overwrite = False
    json: opt.AsJson = False
    quiet: opt.Quiet = False
    tracker: opt.Tracker = None
    progress: opt.Shown = "text"
    processes: Annotated[
        int | None, Option(min=1, help="Processes on this machine that share the training.")
    ] = None
    engine: EngineName = "local"

    def folder(self, recipe: Recipe) -> Path:
        """The folder for the bundle."""
        if self.out is not None:
            return self.out
        name = recipe.title.replace("/", "-")
        protocol = protocol_of(self.settings or ())
        if protocol:
            name = f"{name}-{protocol}"
        return Path("runs") / f"{name}-seed{recipe.seed}"


def run(options: TrainOptions) -> None:
    """Train a recipe, evaluate it, and save a bundle.

    It is evaluated on its test rows. Ctrl-C keeps the best model so far. After Ctrl-C or a kill the
    same command resumes from the last checkpoint.
    """
    # PyTorch is loaded only if all else is valid
    recipe = load_recipe(options.recipe, options.settings or ())
    resources.check_library(recipe)
    is_ray_worker = "FIELDWISE_RAY_WORKER" in os.environ
    if options.engine == "ray" and not is_ray_worker:
        out = options.folder(recipe).absolute()
        out.parent.mkdir(parents=True, exist_ok=True)
        on_gpus = recipe.training.device.startswith("cuda")
        train_on_ray(options.context.obj, options.processes, gpus=on_gpus, folder=out.parent)
        return
    if launch_processes(options.context.obj.arguments, options.processes):
        return

    from fieldwise.distributed.process_group import process_group

    with process_group() as group:
        resources.check_device(recipe.training.device, what=opt.DEVICE)
        if group is None or group.rank == 0:
            _train_in_main_process(options, recipe, group)
        else:
            _train_in_further_process(options, recipe, group)


def _train_in_further_process(options: TrainOptions, recipe: Recipe, group: "ProcessGroup") -> None:
    """Train together with process 0, which alone prints and writes."""
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import train_recipe
    from fieldwise.training.checkpoint import CheckpointFolder

    with group.first("preparation", on_machine=True):
        folder = resources.data_folder(recipe.data.name)
        prepared = prepare_recipe(recipe, folder, cache=resources.cache_for(quiet=True))
    with group.active():
        checkpoints = CheckpointFolder.beside(options.folder(recipe))
        trained = train_recipe(recipe, prepared, unfinished=checkpoints)
    with group.first("end"):
        if trained.history.stopped == "interrupted":
            raise KeyboardInterrupt


def _train_in_main_process(
    options: TrainOptions, recipe: Recipe, group: "ProcessGroup | None"
) -> None:
    """Train, save and print, together with other processes if there are any."""
    from fieldwise.bundle.bundle import stopped_by
    from fieldwise.training.checkpoint import CheckpointFolder

    folder = options.folder(recipe)
    checkpoints = CheckpointFolder.beside(folder, note=show.say)
    # The bundle of an interrupted run that can be resumed is replaced without --overwrite.
    resumes = checkpoints.exists() and stopped_by(folder) == "interrupted"
    saving.check_out(folder, overwrite=options.overwrite or resumes)

    with checkpoints.claimed():
        trained, prepared, seconds_preparing = _prepare_and_train(
            options, recipe, checkpoints, group
        )
        save = partial(trained.bundle.save, overwrite=True)
        folder, save_error = saving.save_or_keep(save, folder, "The trained bundle")
        is_interrupted = trained.history.stopped == "interrupted"
        if is_interrupted:
            best = f"the best model so far (after {trained.history.unit} {trained.history.best.epoch:.4g})"
            remedy = "; the same command resumes it" if checkpoints.exists() else ""
            show.say(
                f"interrupted in {trained.history.unit} {trained.history.epochs}: {best} is in {folder}{remedy}"
            )
        elif save_error is None:
            checkpoints.remove()

        if options.json:
            preparing = {"seconds_preparing": round(seconds_preparing, 3)}
            show.print_json({**trained.record(), **preparing, "bundle": str(folder)})
        else:
            _show_run(trained, folder, round(seconds_preparing))
        if not options.quiet:
            _say_checks(trained, prepared)
        # the others wait until here: a launcher may end this process once one has ended
        if group is not None:
            with group.first("end"):
                pass

    if save_error is not None:
        raise save_error
    if not (options.json or options.quiet):
        _suggest_next(recipe, trained, folder)
    if is_interrupted:
        raise KeyboardInterrupt


def _prepare_and_train(
    options: TrainOptions,
    recipe: Recipe,
    checkpoints: "CheckpointFolder",
    group: "ProcessGroup | None",
) -> "tuple[TrainingResult, Prepared, float]":
    """Prepare the rows and train; also returns the rows and the seconds of preparing them."""
    from fieldwise.auditing.table import of_prepared
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.default_settings import sentence_of
    from fieldwise.runs.pipeline import resolve_defaults, train_recipe
    from fieldwise.training.progress import Reported

    began = time.perf_counter()
    quiet = options.quiet
    as_json = options.progress == "json"
    callbacks = resources.callbacks_for(options.tracker, quiet=quiet or as_json)(recipe.name)
    with resources.reports_for(options.progress, quiet=quiet) as reports:
        reports.begin("preparation", run=recipe.name)
        cache = resources.cache_for(quiet)
        with nullcontext() if group is None else group.first("preparation", on_machine=True):
            folder = resources.data_folder(recipe.data.name)
            prepared = prepare_recipe(recipe, folder, cache=cache, reports=reports)
        seconds_preparing = time.perf_counter() - began

        if as_json:
            callbacks.append(Reported(reports, recipe.name))
        else:
            reports.begin("")  # the callbacks show the epochs
        _, choices = resolve_defaults(recipe, prepared.train)
        if not quiet:
            show.say(f"{recipe.name}: {show.row_counts(prepared.counts)}")
            if choices:
                show.say(f"chosen from the data: {sentence_of(choices)}")
        show.say_cautions(recipe, prepared)
        audited = of_prepared(prepared, recipe.schema, recipe.split)
        for sentence in show.strong_sentences(audited):
            show.say(f"WARNING: {sentence}")
        if group is not None and group.size > 1 and not quiet:
            show.say(f"{group.size} processes share this training")

        with nullcontext() if group is None else group.active(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: show.say(f"warning: {message}")
            trained = train_recipe(recipe, prepared, callbacks, checkpoints)

    if trained.warm_start is not None:
        show.say(trained.warm_start.sentence())
        caution = trained.warm_start.caution()
        if caution:
            show.say(caution)
    return trained, prepared, seconds_preparing


def _say_checks(trained: "TrainingResult", prepared: "Prepared") -> None:
    """Say if a chosen setting was reached as a limit, or if the baseline is the better model."""
    from fieldwise.runs.baseline import compare_with_baseline
    from fieldwise.runs.default_settings import limit_reached

    check = limit_reached(trained.chosen, trained.history)
    if check:
        show.say(check)
    is_whole = trained.history.stopped != "interrupted"
    has_losses = trained.recipe.training.gives_probabilities  # to compare with the baseline's
    if trained.chosen and is_whole and has_losses:
        warning = compare_with_baseline(trained, prepared, show.say)
        if warning is not None:
            show.say(warning)


def _show_run(trained: "TrainingResult", folder: Path, seconds_preparing: int) -> None:
    """Print the metrics of a finished run."""
    out = show.console()
    metrics = {"valid": trained.valid, "test": trained.test}
    columns = dict(metrics)
    if trained.best_possible is not None:
        columns["best possible on test"] = trained.best_possible
    show.show_metrics(columns, remarks_on=metrics)

    is_exact = trained.history.stopped == "converged"
    if trained.refit is not None:
        how = f"trained again for {show.counted(trained.refit.best.epoch, trained.refit.unit)}"
        if is_exact:
            how = "solved again"
        out.print(
            f"The model was {how} on all {trained.refit.rows:,} training and validation rows. The "
            "validation metrics are those of the first training."
        )
    if trained.bundle.mean_sentence is not None:
        out.print(trained.bundle.mean_sentence)

    left_out = ""
    if trained.parameters_left_out:
        left_out = (
            f" (without {trained.parameters_left_out:,} of LR, which has no share in the mean)"
        )
    seconds_training = round(trained.seconds)
    out.print(
        f"{trained.parameters:,} parameters{left_out}, {_training_length(trained)}, "
        f"{seconds_preparing + seconds_training} s in total "
        f"({seconds_preparing} s to read and prepare, {seconds_training} s to train and evaluate). Bundle: {folder}"
    )


def _training_length(trained: "TrainingResult") -> str:
    """How long a training was in epochs, why it ended, and the time of an epoch."""
    from fieldwise.training.history import STOPPED

    history = trained.history
    if history.stopped == "converged":
        length = f"solved exactly with {show.counted(history.epochs, 'prior')}"
    else:
        length = f"best after {history.unit} {history.best.epoch:.4g} of {history.epochs} "
        length += f"({STOPPED[history.stopped]})"
    if history.seconds_per_epoch:
        length += f", {history.seconds_per_epoch:.1f} s per epoch"
    return length


def _suggest_next(recipe: Recipe, trained: "TrainingResult", folder: Path) -> None:
    """Suggest a server, if the model can recommend, and a report or an evaluation."""
    if recipe.features:
        _suggest_features(recipe, folder)
    elif recipe.schema.has_both_sides:
        log: list[str] = []
        purpose = "start a server with a web page"
        data = recipe.data
        if data.path is not None:
            log = ["--log", data.path]
            log += data.text().words()
            purpose += " that recommends"
        show.suggest(purpose, "serve", folder, *log, needs="uvicorn")
    if not show.suggest_report(trained.bundle, folder):
        show.suggest("evaluate on its test rows again", "evaluate", folder)


def _suggest_features(recipe: Recipe, folder: Path) -> None:
    """Suggest what a server needs first: the features of users and items."""
    sides = {"users": recipe.schema.user, "items": recipe.schema.item}
    for side, column in sides.items():
        if recipe.data.path is None or all(
            feature.keys != (column,) for feature in recipe.features
        ):
            continue
        words = [recipe.data.path, *recipe.data.text().words(), "--bundle", folder, "--id", column]
        purpose = f"write the features of {side} for `fieldwise serve --{side}`"
        show.suggest(purpose, "features", "latest", *words, "--out", f"{side}.parquet")
