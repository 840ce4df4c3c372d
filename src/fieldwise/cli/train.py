"""`fieldwise train`."""

import dataclasses
import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import Device, check_device, with_device
from fieldwise.cli.engines import EngineName, RayAddress, check_engine
from fieldwise.cli.options import (
    MAX_SEED,
    AsJson,
    DataDir,
    Protocol,
    Quiet,
    RecipeName,
    Settings,
    Shown,
    Threads,
    Tracker,
    UseCache,
    cache_for,
    callbacks_for,
    existing_data_dir,
    reports_for,
    set_threads,
)
from fieldwise.cli.processes import in_process_group, launch_processes, run_on_ray
from fieldwise.cli.show import say
from fieldwise.cli.train_words import show_run, suggest_next, tell_baseline, tell_processes, tell_rows
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.data.reports import Reports
    from fieldwise.distributed.process_group import ProcessGroup
    from fieldwise.runs.pipeline import Run
    from fieldwise.runs.recipe import Recipe
    from fieldwise.training.callbacks import Callback
    from fieldwise.training.unfinished import Unfinished

__all__ = ["TrainOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `fieldwise train`."""

    recipe: RecipeName
    settings: Settings = None
    protocol: Protocol = None
    seed: Annotated[
        int | None, typer.Option(min=0, max=MAX_SEED, help="Seed of the split, negatives, weights and row order.")
    ] = None
    out: Annotated[Path | None, typer.Option(help="Folder for the bundle. Default: runs/RECIPE-seedN.")] = None
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over, even if the folder has an unfinished run.")
    ] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished bundle in the folder.")] = False
    data_dir: DataDir = None
    json: AsJson = False
    quiet: Quiet = False
    tracker: Tracker = None
    progress: Shown = "text"
    device: Device = None
    threads: Threads = None
    cache: UseCache = True
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes on this machine that share the training; torchrun starts them on several."),
    ] = None
    engine: EngineName = "local"
    ray_address: RayAddress = None


def run(options: TrainOptions) -> None:
    """Train a recipe, evaluate it on its test rows and save a bundle.

    Ctrl-C keeps the best model so far. After Ctrl-C or a kill the same command resumes from the last checkpoint.
    """
    from fieldwise.runs.recipe import check_recipe

    settings = with_device(options.settings, options.device)
    check_recipe(options.recipe, settings, protocol=options.protocol)  # before PyTorch is loaded
    check_engine(options.engine, options.ray_address)
    if options.engine == "ray" and "FIELDWISE_RAY_WORKER" not in os.environ:
        _run_on_ray(options)
        return
    if launch_processes(options.processes):
        return
    with in_process_group() as group:
        set_threads(options.threads)
        recipe = _recipe(options)
        check_device(options.device, recipe.training.device)
        if group is None or group.is_main_process:
            _run_here(options, recipe, group)
        else:
            _share(options, recipe, group)


def _run_on_ray(options: TrainOptions) -> None:
    """Train in processes on a Ray cluster."""
    from fieldwise.distributed.ray_train import RayJob

    if options.processes is None:
        raise ConfigError("--engine ray needs the number of processes: add --processes N")
    recipe = _recipe(options)
    out = (options.out or _folder(recipe, options.protocol)).absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    files = [options.recipe, recipe.data.path]
    reads = tuple(Path(name).absolute() for name in files if name is not None and Path(name).exists())
    gpus = recipe.training.device.partition(":")[0] == "cuda"
    job = RayJob(processes=options.processes, cores=options.threads or 1, gpus=gpus, folder=out.parent)
    run_on_ray(options.ray_address, job, reads)


def _run_here(options: TrainOptions, recipe: "Recipe", group: "ProcessGroup | None") -> None:
    """Train in this process, which prints and writes, and in others, if there are any."""
    from fieldwise.cli.saving import check_out, check_replaced
    from fieldwise.training.unfinished import Unfinished

    folder = options.out or _folder(recipe, options.protocol)
    check_out(folder)
    unfinished = Unfinished.beside(folder, remedy="give --restart to start over", note=say)
    check_replaced(folder, overwrite=options.overwrite, unfinished=unfinished.exists())
    with unfinished.claimed():
        if options.restart:
            unfinished.clear()
        with reports_for(options.progress, quiet=True) as reports:
            _run(options, recipe, folder, _Beside(unfinished=unfinished, reports=reports, group=group))


def _share(options: TrainOptions, recipe: "Recipe", group: "ProcessGroup") -> None:
    """Train in this process with process 0, which prints and writes."""
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import train_recipe
    from fieldwise.training.unfinished import Unfinished

    data_dir = existing_data_dir(options.data_dir, recipe.data.name)
    with group.local_main_first("preparation"):
        prepared = prepare_recipe(recipe, data_dir, cache=cache_for(options.cache, quiet=True))
    unfinished = Unfinished.beside(options.out or _folder(recipe, options.protocol))
    with group.active():
        done = train_recipe(recipe, prepared, unfinished=unfinished)
    group.wait_for_main_process()
    if done.result.stopped == "interrupted":
        raise KeyboardInterrupt


@dataclass(frozen=True, kw_only=True)
class _Beside:
    """What a training has beside its recipe: its checkpoints, who is told of it, and who shares it."""

    unfinished: "Unfinished"
    reports: "Reports"
    group: "ProcessGroup | None"


def _run(options: TrainOptions, recipe: "Recipe", folder: Path, beside: "_Beside") -> None:
    from fieldwise.cli.saving import save_or_keep
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.defaults import limit_reached
    from fieldwise.runs.fitting import settled

    unfinished, reports, group = beside.unfinished, beside.reports, beside.group
    began = time.perf_counter()
    callbacks = _callbacks(options, recipe, reports)
    data_dir = existing_data_dir(options.data_dir, recipe.data.name)
    with nullcontext(reports) if options.progress == "json" else reports_for("text", quiet=options.quiet) as told:
        told.begin("preparation", run=recipe.name)
        cache = cache_for(options.cache, options.quiet)
        with nullcontext() if group is None else group.local_main_first("preparation"):
            prepared = prepare_recipe(recipe, data_dir, cache=cache, reports=told)
    preparing = time.perf_counter() - began
    chosen = settled(recipe, prepared)[1]
    tell_rows(recipe, prepared, chosen, options.quiet)
    tell_processes(1 if group is None else group.size, options.quiet)
    with nullcontext() if group is None else group.active():
        done = _trained(recipe, prepared, callbacks, unfinished)
    folder, unsaved = save_or_keep(done.bundle, folder)
    interrupted = done.result.stopped == "interrupted"
    if interrupted:
        best = f"the best model so far (after epoch {done.result.best.epoch:.4g})"
        more = "; the same command resumes it" if unfinished.exists() else ""
        say(f"interrupted in epoch {done.result.epochs}: {best} is in {folder}{more}")
    elif unsaved is None:
        unfinished.remove()
    show_run(done, folder, preparing, options.json)
    if not options.quiet and (check := limit_reached(done.chosen, done.result)):
        say(check)
    if chosen and not options.quiet and not interrupted:
        tell_baseline(done, prepared)
    if group is not None:  # the others end when all is said: a launcher may end this process by one that has ended
        group.wait_for_main_process()
    if unsaved is not None:
        raise unsaved
    if not (options.json or options.quiet):
        suggest_next(done, folder, options.data_dir)
    if interrupted:
        raise KeyboardInterrupt


def _recipe(options: TrainOptions) -> "Recipe":
    """The recipe, with the seed from the options."""
    from fieldwise.runs.recipe import load_recipe

    recipe = load_recipe(options.recipe, with_device(options.settings, options.device), protocol=options.protocol)
    return recipe if options.seed is None else dataclasses.replace(recipe, seed=options.seed)


def _folder(recipe: "Recipe", protocol: str | None) -> Path:
    """The default folder for a bundle."""
    short = Path(recipe.name).stem if recipe.name.endswith(".toml") else recipe.name.replace("/", "-")
    way = f"-{protocol}" if protocol else ""
    return Path("runs") / f"{short}{way}-seed{recipe.seed}"


def _callbacks(options: TrainOptions, recipe: "Recipe", reports: "Reports") -> "list[Callback]":
    """What shows the epochs, as reports for machines, or a bar or lines; and the tracker."""
    from fieldwise.training.reported import Reported

    as_json = options.progress == "json"
    callbacks = callbacks_for(options.tracker, quiet=options.quiet or as_json)(recipe.name)
    return [*callbacks, Reported(reports, recipe.name)] if as_json else callbacks


def _trained(recipe: "Recipe", prepared: "Prepared", callbacks: "list[Callback]", unfinished: "Unfinished") -> "Run":
    """Train; warnings are printed as sentences."""
    from fieldwise.runs.pipeline import train_recipe

    with warnings.catch_warnings():  # restores warnings.showwarning on exit
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        done = train_recipe(recipe, prepared, callbacks, unfinished)
    if done.warm_start is not None:
        say(done.warm_start.sentence())
        if caution := done.warm_start.caution():
            say(caution)
    return done
