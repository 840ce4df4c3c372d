"""The commands of a recipe: `fieldwise train`, `compare`, `tune`, `prepare` and `describe`."""

import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.evaluate import RANKING_K, RankingOptions, interval_text, show_rankings
from fieldwise.cli.processes import EngineName, engine_for, launch_processes, train_on_ray
from fieldwise.data.reports import memory_mib, peak_mib
from fieldwise.errors import ConfigError, DataError
from fieldwise.runs.recipe import (
    Recipe,
    check_recipe,
    load_recipe,
    protocol_of,
    recipe_names,
    search_space,
    value_at,
)
from fieldwise.storage.cache import Cache, default_cache

if TYPE_CHECKING:
    from torch import nn

    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.distributed.process_group import ProcessGroup
    from fieldwise.layout import Layout
    from fieldwise.runs.default_settings import ResolvedSetting
    from fieldwise.runs.leaderboard import Board, RankingBoard
    from fieldwise.runs.pipeline import TrainingResult
    from fieldwise.runs.records import RunRecord
    from fieldwise.runs.tune import Tuned
    from fieldwise.training.checkpoint import CheckpointFolder

PROGRAM_MIB = 175.0  # Python, PyTorch and Polars, where the system does not tell
SOLUTION = 8 + 4  # bytes of a weight of the solved LR, and of the LR in the mean
FIRST_STEP_MIB = 68.0  # what PyTorch loads for the first gradients and the first update
# memory of a step by its tensors' bytes: freed blocks between used ones, and work space of kernels
HEAP = 1.5
CHECKPOINTS = 3  # two are kept while the next one is written


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `fieldwise train`."""

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
        protocol = protocol_of(self.settings or ())
        short = (
            Path(recipe.name).stem
            if recipe.name.endswith(".toml")
            else recipe.name.replace("/", "-")
        )
        way = f"-{protocol}" if protocol else ""
        return self.out or Path("runs") / f"{short}{way}-seed{recipe.seed}"


def run(options: TrainOptions) -> None:
    """Train a recipe, evaluate it, and save a bundle.

    It is evaluated on its test rows. Ctrl-C keeps the best model so far. After Ctrl-C or a kill the
    same command resumes from the last checkpoint.
    """
    # PyTorch is loaded only if all else is valid
    recipe = load_recipe(options.recipe, options.settings or ())
    if options.engine == "ray" and "FIELDWISE_RAY_WORKER" not in os.environ:
        out = options.folder(recipe).absolute()
        out.parent.mkdir(parents=True, exist_ok=True)
        train_on_ray(
            options.processes, gpus=recipe.training.device.startswith("cuda"), folder=out.parent
        )
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
        # Together with process 0, which alone prints and writes.
        with group.first("preparation", on_machine=True):
            prepared = prepare_recipe(
                recipe, opt.data_folder(recipe.data.name), cache=opt.cache_for(quiet=True)
            )
        with group.active():
            done = train_recipe(
                recipe, prepared, unfinished=CheckpointFolder.beside(options.folder(recipe))
            )
        with group.first("end"):
            if done.history.stopped == "interrupted":
                raise KeyboardInterrupt


def _run_here(options: TrainOptions, recipe: Recipe, group: "ProcessGroup | None") -> None:
    """Train in this process, which alone prints and writes, together with other processes if there are any."""
    from fieldwise.bundle.bundle import stopped_by
    from fieldwise.runs.default_settings import limit_reached
    from fieldwise.training.checkpoint import CheckpointFolder

    folder = options.folder(recipe)
    unfinished = CheckpointFolder.beside(folder, note=show.say)
    # The bundle of an interrupted run that can be resumed is replaced without --overwrite.
    left = unfinished.exists() and stopped_by(folder) == "interrupted"
    opt.check_out(folder, overwrite=options.overwrite or left)
    with unfinished.claimed():
        done, prepared, preparing = _trained(options, recipe, unfinished, group)
        folder, unsaved = opt.save_or_keep(
            partial(done.bundle.save, overwrite=True), folder, "The trained bundle"
        )
        if interrupted := done.history.stopped == "interrupted":
            best = f"the best model so far (after epoch {done.history.best.epoch:.4g})"
            more = "; the same command resumes it" if unfinished.exists() else ""
            show.say(f"interrupted in epoch {done.history.epochs}: {best} is in {folder}{more}")
        elif unsaved is None:
            unfinished.remove()
        if options.json:
            show.print_json(
                {**done.record(), "seconds_preparing": round(preparing, 3), "bundle": str(folder)}
            )
        else:
            _show_run(done, folder, round(preparing))
        if not options.quiet and (check := limit_reached(done.chosen, done.history)):
            show.say(check)
        if done.chosen and not options.quiet and not interrupted:
            _compare_with_baseline(done, prepared)
        # the others wait until here: a launcher may end this process once one has ended
        if group is not None:
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
    options: TrainOptions,
    recipe: Recipe,
    unfinished: "CheckpointFolder",
    group: "ProcessGroup | None",
) -> "tuple[TrainingResult, Prepared, float]":
    """Prepare the rows and train; also returns the rows and the seconds of preparing them."""
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.default_settings import sentence_of
    from fieldwise.runs.pipeline import resolve_defaults, train_recipe
    from fieldwise.training.progress import Reported

    began = time.perf_counter()
    quiet = options.quiet
    as_json = options.progress == "json"
    callbacks = opt.callbacks_for(options.tracker, quiet=quiet or as_json)(recipe.name)
    with opt.reports_for(options.progress, quiet=quiet) as reports:
        reports.begin("preparation", run=recipe.name)
        cache = opt.cache_for(quiet)
        with nullcontext() if group is None else group.first("preparation", on_machine=True):
            prepared = prepare_recipe(
                recipe, opt.data_folder(recipe.data.name), cache=cache, reports=reports
            )
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
    from fieldwise.runs.baseline import BASELINE, baseline_rows, fit_baseline

    if model_name(done.recipe.model) == BASELINE:
        return
    rows = baseline_rows(prepared, done.history.epochs)
    every = len(prepared.train.table)
    if rows < every:
        show.say(
            f"baseline: {_regression(done)} on a sample of {rows:,} of the {every:,} training rows"
        )
    if below := below_baseline(
        done, fit_baseline(done.recipe, prepared, rows), rows if rows < every else None
    ):
        show.say(below)


def below_baseline(
    done: "TrainingResult", baseline: Mapping[str, float], rows: int | None
) -> str | None:
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

    out = show.console()
    best = done.best_possible
    own = {"valid": done.valid, "test": done.test}
    is_exact = done.history.stopped == "converged"
    show.show_metrics(
        own | ({} if best is None else {"best possible on test": best}), remarks_on=own
    )
    if done.refit is not None:
        again = f"trained again for {show.counted(done.refit.best.epoch, 'epoch')}"
        if is_exact:
            again = "solved again"
        out.print(
            f"The model was {again} on all {done.refit.rows:,} training and validation rows. The "
            "validation metrics are those of the first training."
        )
    if done.bundle.mean_sentence is not None:
        out.print(done.bundle.mean_sentence)
    epoch = (
        f"{done.history.seconds_per_epoch:.1f} s per epoch, "
        if done.history.seconds_per_epoch
        else ""
    )
    training = round(done.seconds)
    length = f"best after epoch {done.history.best.epoch:.4g} of {done.history.epochs} "
    length += f"({STOPPED[done.history.stopped]})"
    if is_exact:
        length = f"solved exactly with {show.counted(done.history.epochs, 'prior')}"
    left_out = ""
    if done.parameters_left_out:
        left_out = f" (without {done.parameters_left_out:,} of LR, which has no share in the mean)"
    out.print(
        f"{done.parameters:,} parameters{left_out}, {length}, {epoch}{preparing + training} s in total "
        f"({preparing} s to read and prepare, {training} s to train and evaluate). Bundle: {folder}"
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `fieldwise compare`."""

    recipes: Annotated[
        list[str],
        Argument(metavar="RECIPE", help="Names or TOML files; the first is the baseline."),
    ]
    seeds: Annotated[
        int, Option(min=1, help="Runs of each recipe, with seeds 0, 1, ... and the same rows.")
    ] = 3
    settings: opt.Settings = None
    metric: Annotated[str | None, Option(help="Metric to sort by: auc, logloss, ece or rmse.")] = (
        None
    )
    store: Annotated[
        Path, Option(help="Folder of finished runs, which several processes may share.")
    ] = Path("runs/compare")
    overwrite: opt.Overwrite = False
    ranking: RankingOptions
    json: opt.AsJson = False
    quiet: opt.Quiet = False
    tracker: opt.Tracker = None


def run_compare(options: CompareOptions) -> None:
    """Train recipes with several seeds; a leaderboard with intervals.

    It has a paired test of each recipe against the first. Finished runs are kept, and the same
    command resumes.
    """
    given = options.settings or []
    for name in options.recipes:
        check_recipe(name, given)  # before PyTorch is loaded
    from fieldwise.data.prepare.row_fingerprints import repeat_sentences
    from fieldwise.runs.leaderboard import check_base_and_metric, leaderboards, ranking_boards
    from fieldwise.runs.records import Store, recorded_runs

    ranking = options.ranking.settings()
    recipes = [load_recipe(name, given) for name in options.recipes]
    opt.check_device(*(recipe.training.device for recipe in recipes), what=opt.DEVICE)
    check_base_and_metric(
        [r.name for r in recipes], {r.schema.label.task for r in recipes}, None, options.metric
    )
    for recipe in recipes:
        folder = opt.data_folder(recipe.data.name)
    try:
        context = opt.run_context(folder, options.tracker, quiet=options.quiet)
        store = Store(options.store)
        again = options.overwrite
        seeds = range(options.seeds)
        runs = recorded_runs(
            recipes, seeds, store=store, context=context, again=again, ranking=ranking
        )
    except KeyboardInterrupt:
        show.say(f"finished runs are kept in {options.store}: the same command resumes from there")
        raise
    boards = leaderboards(runs, metric=options.metric)
    ranked = []  # the rankings of each board's recipes, in the order given
    for board in boards:
        own = {line.recipe for line in board.lines}
        results = {
            name: [one for record in of if (one := record.ranked)]
            for name, of in runs.items()
            if name in own
        }
        ranked.append(
            ranking_boards(results, k=options.ranking.k or RANKING_K, base=board.base)
            if ranking
            else []
        )
    if options.json:
        shown = [
            {
                **board.to_plain(),
                **({"rankings": [one.to_plain() for one in of_board]} if of_board else {}),
            }
            for board, of_board in zip(boards, ranked, strict=True)
        ]
        show.print_json({"settings": given, "boards": shown})
    else:
        _show_boards(boards, ranked, runs, options)
    facts = [record.about for records in runs.values() for record in records]
    devices = sorted({str(about.get("environment", {}).get("device", "cpu")) for about in facts})
    if len(devices) > 1:
        show.say(
            f"these runs were trained on several devices ({'; '.join(devices)}): their seconds do not compare"
        )
    for sentence in dict.fromkeys(
        one for about in facts for one in repeat_sentences(about.get("counts", {}))
    ):
        show.say(f"WARNING: {sentence}")
    if not (options.json or options.quiet):
        what = "train and save the best recipe"
        verb = "train"
        if find_spec("optuna") is not None:
            what = "tune the best recipe on its validation rows"
            verb = "tune"
        show.suggest(what, verb, boards[0].lines[0].recipe, *opt.setting_words(given))


def _show_boards(
    boards: "Sequence[Board]",
    ranked: "Sequence[Sequence[RankingBoard]]",
    runs: "Mapping[str, Sequence[RunRecord]]",
    options: CompareOptions,
) -> None:
    """Print leaderboards, their rankings, what the intervals mean, and remarks."""
    from fieldwise.evaluation.metrics import compared, shown_name
    from fieldwise.evaluation.words import remarks_on_means
    from fieldwise.runs.leaderboard import p_text

    screen = show.console()
    several = options.seeds > 1
    for board, of_board in zip(boards, ranked, strict=True):
        mean = f"mean of {show.counted(options.seeds, 'seed')} [95 % interval]"
        screen.print(f"{board.title}: {show.counted(board.rows, 'test row')}, {mean}")
        # File names without folder and suffix, if these are unique.
        files = [line.recipe for line in board.lines]
        stems = {name: Path(name).stem if name.endswith(".toml") else name for name in files}
        names = {
            name: stem if list(stems.values()).count(stem) == 1 else name
            for name, stem in stems.items()
        }
        metrics = compared(board.task)
        by_auc = board.metric == "auc"
        rows = []
        for line in board.lines:
            against = ["baseline", *[""] * (1 + by_auc)]
            if line.against is not None:
                result = line.against[board.metric]
                delong = "-" if result.delong_p is None else p_text(result.delong_p)
                against = [
                    interval_text(result.estimate, "+"),
                    p_text(result.estimate.p),
                    *[delong] * by_auc,
                ]
            epoch = "-" if line.seconds_per_epoch is None else f"{line.seconds_per_epoch:.1f}"
            cost = [f"{line.parameters:,}", f"{line.epochs:.1f}", epoch]
            rows.append(
                [
                    names[line.recipe],
                    *(interval_text(line.metrics[m]) for m in metrics),
                    *against,
                    *cost,
                ]
            )
        gain = f"{shown_name(board.metric)} minus {names[board.base].rpartition('/')[2]}'s"
        heads = ["recipe", *map(shown_name, metrics), gain, "p", *["DeLong p"] * by_auc]
        show.print_table([*heads, "parameters", "epochs", "s/epoch"], rows, right=True)
        for line in board.lines:
            if line.mean_sentence is not None:
                screen.print(line.mean_sentence)
        show_rankings(of_board, f"{mean} for other users{' and seeds' * several}", names)
    if options.settings:
        screen.print(f"All recipes ran with {', '.join(options.settings)}.")
    alone = "other test rows; one seed does not show how results vary with the seed"
    over = "other test rows and seeds" if several else alone
    screen.print(
        f"Intervals and p: paired, for {over}. DeLong's p: for AUC and other test rows only."
    )
    if len(boards) > 1:
        screen.print(
            "Recipes with other benchmarks, protocols or test rows are in separate tables."
        )
    for name, records in runs.items():
        for sentence in remarks_on_means(
            [record["test"] for record in records], f"{name}'s test rows"
        ):
            print(sentence)


def run_tune(
    *,
    recipe: opt.RecipeName,
    settings: opt.Settings = None,
    trials: Annotated[
        int, Option(min=1, help="Total trials of the study, including those of earlier calls.")
    ] = 30,
    seed: opt.Seed = 0,
    seeds: Annotated[
        int, Option(min=1, help="Seeds with which the best settings are evaluated on test rows.")
    ] = 3,
    store: Annotated[
        Path, Option(help="Folder of studies. Several processes may share it.")
    ] = Path("runs/tune"),
    json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    tracker: opt.Tracker = None,
) -> None:
    """Search for better settings on the validation rows.

    The test rows are evaluated once, at the end. Ctrl-C keeps the finished trials, and the same
    command resumes. The recipe's table `search` defines the search space.
    """
    loaded = load_recipe(recipe, settings or ())
    from fieldwise.config import to_plain
    from fieldwise.runs.tune import tune

    opt.check_device(loaded.training.device, what=opt.DEVICE)
    context = opt.run_context(opt.data_folder(loaded.data.name), tracker, quiet=quiet)
    result = tune(loaded, trials=trials, store=store, context=context, seed=seed, final_seeds=seeds)
    if json:
        plain = {
            f.name: to_plain(getattr(result, f.name))
            for f in fields(result)
            if f.name not in ("recipe", "runs")
        }
        runs = [
            {"folder": str(run.folder), "seed": run["seed"], "test": dict(run["test"])}
            for run in result.runs
        ]
        show.print_json(
            {
                **plain,
                "study": str(result.study),
                "recipe_file": str(result.recipe_file),
                "runs": runs,
            }
        )
        return
    _show_tuned(result, loaded)
    if not quiet:
        show.suggest("train a bundle with the best settings", "train", result.recipe_file)


def _show_tuned(tuned: "Tuned", recipe: Recipe) -> None:
    from fieldwise.evaluation.words import remarks_on_means

    screen = show.console()
    now = sum(tuned.trials.values())
    tests = [run["test"] for run in tuned.runs]
    ended = (
        ", ".join(f"{count} {how}" for how, count in tuned.trials.items())
        + f" trial{'s' * (now != 1)}"
    )
    screen.print(
        f"{recipe.name}: best {tuned.metric} on validation rows {tuned.value:.4f} of {ended}"
    )
    rows = []
    for path in search_space(recipe):
        values = value_at(recipe, path), tuned.values.get(path)
        texts = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
        rows.append([path, *("-" if text == "None" else text for text in texts)])
    show.print_table(["setting", "was", "best"], rows)
    for metric in ("auc", "logloss", "rmse"):
        if of := [test[metric] for test in tests if metric in test]:
            spread = f" (seeds {min(of):.4f} to {max(of):.4f})" if len(of) > 1 else ""
            screen.print(f"test {metric} {sum(of) / len(of):.4f}{spread}")
    for sentence in [
        *remarks_on_means(tests, "test rows"),
        *([tuned.caution] if tuned.caution else []),
    ]:
        screen.print(sentence)
    after = tuned.test_evaluations[0].after_trials
    times = len(tuned.test_evaluations)
    if times == 1:
        then = "after the search."
        if now > after:
            first = show.counted(after, "trial")
            then = f"after {first}; the search then went on to {now} trials, and they are still the best."
        screen.print(f"This study evaluated only these settings on the test rows, {then}")
    else:
        screen.print(
            f"This search continued after an evaluation on the test rows: {times} settings have been evaluated on them "
            f"by now ({tuned.study.with_suffix('.test.json')})."
        )
    screen.print(f"recipe: {tuned.recipe_file}, study: {tuned.study}")


def run_prepare(
    *,
    recipe: opt.RecipeName = "",
    settings: opt.Settings = None,
    clear: Annotated[bool, Option(help="Remove all entries of the cache.")] = False,
    json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    progress: opt.Shown = "text",
    engine: EngineName = "local",
) -> None:
    """Prepare a recipe's rows in the cache, or list the cache.

    All commands read the rows from there. Without RECIPE the entries are listed; --clear removes
    them. With --engine ray the machines of a Ray cluster share the work; the result is the same to
    the bit.
    """
    cache = default_cache() if quiet else default_cache(show.say)
    if clear or not recipe:
        if clear and recipe:
            raise ConfigError(
                f"--clear removes all entries, found the recipe {recipe} too: give one of them"
            )
        _check_unused(settings)
        if engine != "local":
            raise ConfigError(
                f"--engine {engine} prepares a recipe, which is not given: name one, or omit --engine"
            )
        if not clear:
            _list_cache(cache, json)
            return
        removed = cache.clear()
        size = sum(entry.size for entry in removed)
        number = show.counted(len(removed), "entry", "entries")
        if json:
            show.print_json({"cache": str(cache.folder), "removed": len(removed), "bytes": size})
        else:
            show.say(f"{number} removed, {size / show.MIB:,.1f} MiB, from {cache.folder}")
        return
    loaded = load_recipe(recipe, settings or ())  # PyTorch is loaded only if all else is valid
    from fieldwise.runs.data import prepare_recipe

    began = time.time()
    with engine_for(engine) as cluster, opt.reports_for(progress, quiet=quiet) as reports:
        reports.begin("preparation", run=loaded.name)
        prepared = prepare_recipe(
            loaded, opt.data_folder(loaded.data.name), cache=cache, reports=reports, engine=cluster
        )
    if not any(entry.used >= began - 1 for entry in cache.entries()):
        raise DataError(
            f"the prepared rows could not be stored in the cache {cache.folder}: free some space there, or set "
            "FIELDWISE_CACHE to another folder"
        )
    seconds = round(time.time() - began, 1)
    if json:
        show.print_json(
            {
                "recipe": loaded.name,
                "counts": prepared.counts,
                "cache": str(cache.folder),
                "seconds": seconds,
            }
        )
        return
    show.say(
        f"{loaded.name}: {show.row_counts(prepared.counts)}; prepared in {seconds:,.1f} s, in the cache {cache.folder}"
    )
    if not quiet:
        show.suggest("train on them", "train", recipe, *opt.setting_words(settings))


def _list_cache(cache: Cache, as_json: bool) -> None:
    """List the entries of the cache, most recently used first."""
    entries = cache.entries()
    if as_json:
        shown = [
            {"title": e.title, "bytes": e.size, "used": e.used, "folder": str(e.folder)}
            for e in entries
        ]
        show.print_json({"cache": str(cache.folder), "limit": cache.limit, "entries": shown})
        return
    rows = []
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)) if entry.used else ""
        rows.append([entry.title, f"{entry.size / show.MIB:,.1f}", used, entry.folder.name[:12]])
    if rows:
        show.print_table(["prepared", "MiB", "last used", "entry"], rows)
    size = sum(entry.size for entry in entries) / show.MIB
    number = show.counted(len(entries), "entry", "entries")
    show.console().print(
        f"{number}, {size:,.1f} of at most {cache.limit / show.MIB:,.0f} MiB, in {cache.folder}"
    )


def _check_unused(settings: Sequence[str] | None) -> None:
    if settings:
        raise ConfigError("--set changes a recipe, which is not given: name one, or omit --set")


def run_describe(
    *, recipe: opt.RecipeName = "", settings: opt.Settings = None, json: opt.AsJson = False
) -> None:
    """Show a recipe's fields, parameters and memory, or list all.

    Nothing is trained. Without RECIPE the names of the package's recipes are listed.
    """
    if not recipe:
        _check_unused(settings)
        if json:
            show.print_json({"recipes": recipe_names()})
            return
        print(*recipe_names(), sep="\n")
        show.suggest("see what a recipe trains", "describe", "simulated/afm")
        return
    loaded = load_recipe(recipe, settings or ())
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.config import to_plain
    from fieldwise.models.build import model_to_dict
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import resolve_defaults

    program = memory_mib() or PROGRAM_MIB
    cache = opt.cache_for()
    # Files of the cache are not checked: that takes longer than all else, and training checks them.
    unchecked = None if cache is None else replace(cache, verify=False)
    prepared = prepare_recipe(loaded, opt.data_folder(loaded.data.name), cache=unchecked)
    peak = peak_mib()  # of preparing the data, or of reading them from the cache
    start = None if loaded.warm_start is None else Bundle.load(Path(loaded.warm_start))
    complete, chosen = resolve_defaults(loaded, prepared.train, start)
    unseen = prepared.unseen["test"]
    encoder = prepared.encoder
    facts = {
        "recipe": complete.name,
        "protocol": complete.protocol,
        "model": model_to_dict(complete.model),
        "training": to_plain(complete.training),
        "defaults": to_plain(chosen),
        "fields": [
            {name: getattr(f, name) for name in ("name", "role", "rows", "shares")}
            | {"kind": field.kind, "unseen_in_test": unseen.get(f.name)}
            for f, field in zip(encoder.layout.fields, encoder.fields, strict=True)
        ],
        "labels": [
            {"name": one.name, "task": one.task, "weight": one.weight}
            for one in complete.schema.labels
        ],
        **_sizes(complete, prepared, program, None if start is None else start.network),
    }
    if json:
        show.print_json(facts)
        return
    out = show.console()
    out.print(f"{loaded.name}: {loaded.description}".rstrip(": "))
    if loaded.protocol:
        out.print(f"protocol: {loaded.protocol}")
    show.say_cautions(loaded, prepared)
    _show_facts(facts, chosen)
    if peak is not None:
        out.print(
            f"peak memory of reading or preparing the rows, mapped files included: {peak:,.0f} MiB"
        )
    show.suggest("train it", "train", recipe, *opt.setting_words(settings))


def _show_facts(facts: dict[str, Any], choices: "Sequence[ResolvedSetting]") -> None:
    """Print the facts as tables."""
    out = show.console()
    rows = []
    for f in facts["fields"]:
        own = f"{f['rows']:,}" if f["shares"] is None else f"shared with {f['shares']}"
        unseen = f["unseen_in_test"]
        rows.append(
            [f["name"], f["role"], f["kind"], own, "" if unseen is None else f"{unseen:.1%}"]
        )
    show.print_table(["field", "role", "kind", "embedding rows", "unseen in test"], rows)
    if len(facts["labels"]) > 1:
        out.print(
            "labels: "
            + ", ".join(f"{label['name']} ({label['task']})" for label in facts["labels"])
        )
    rows = [
        [p["name"], " x ".join(map(str, p["shape"])), f"{p['numbers']:,}"]
        for p in facts["parameters"]
    ]
    show.print_table(["parameter", "shape", "numbers"], rows)
    if facts["defaults"]:
        chosen = ([choice.setting, choice.shown, choice.reason] for choice in choices)
        show.print_table(["chosen from the data", "value", "why"], chosen)
    counts = ", ".join(
        f"{count:,} {part.replace('_', ' ')}" for part, count in facts["counts"].items()
    )
    of_lr = (
        f", {facts['lr_parameter_count']:,} of them LR's in the mean"
        if facts["lr_parameter_count"]
        else ""
    )
    out.print(f"{facts['parameter_count']:,} parameters{of_lr}; {counts}")
    for name, words in (
        ("memory_mib", "memory estimate for training"),
        ("disk_mib", "disk estimate"),
    ):
        sizes = ", ".join(
            f"{what.replace('_', ' ')} {size:,.1f}" for what, size in facts[name].items()
        )
        out.print(f"{words} in MiB: {sizes}")


def _sizes(
    recipe: Recipe, prepared: "Prepared", program_mib: float, former: "nn.Module | None"
) -> dict[str, Any]:
    """Parameters, rows, and estimates of memory and disk in MiB, by purpose, of training complete settings on rows.

    `former` is the network of a warm start's bundle. Parameters include LR's, if the training may
    end as a mean with it (`mean_with_lr`).
    """
    from fieldwise.data.encode.fitted_fields import Vocabulary
    from fieldwise.layers import FirstOrder
    from fieldwise.models.build import as_former, build_network
    from fieldwise.runs.data import large_table
    from fieldwise.training.memory import (
        bytes_of_parameters,
        bytes_of_regression,
        bytes_of_rows,
        bytes_of_step,
        first_lr_of,
    )
    from fieldwise.training.objective import Objective
    from fieldwise.training.stepped_lr import settings_of_lr

    training = recipe.training
    labels = recipe.schema.labels
    train = prepared.train
    layout = prepared.encoder.layout
    valid = prepared.valid
    parts = (train, prepared.valid, prepared.test)

    def build(layout: "Layout") -> "nn.Module":
        new = build_network(recipe.model, layout, recipe.seed, labels=len(labels))
        return as_former(new, layout, former)

    network = build(layout)
    named_parameters = list(network.named_parameters())
    lr_parameters = []
    if training.mean_with_lr:
        lr_parameters = [
            (f"lr.{name}", parameter) for name, parameter in FirstOrder(layout).named_parameters()
        ]
    raw = sum(part.raw_bytes for part in parts)
    encoded = sum(part.table.nbytes for part in parts)
    texts = {id(f): f.values for f in prepared.encoder.fitted if isinstance(f, Vocabulary)}
    weights = sum(p.nbytes for p in network.parameters())
    lr_weights = sum(parameter.nbytes for _, parameter in lr_parameters)
    parameters, checkpoint = bytes_of_parameters(network, training)
    checkpointed = checkpoint + weights  # with the best weights so far
    if (lr := first_lr_of(network, training)) is not None:
        _, of_lr = bytes_of_parameters(lr, settings_of_lr(training))
        checkpointed += of_lr + sum(p.numel() * p.element_size() for p in lr.parameters())
    mapped = (
        large_table(recipe.data, text_columns=recipe.schema.text_columns) is not None
    )  # else a training that makes the rows itself has them in memory
    memory: dict[str, float] = {
        "program": (program_mib + FIRST_STEP_MIB) * show.MIB,
        "raw_rows": 0 if mapped else raw,
        "encoded_rows": 0 if mapped else encoded,
        "vocabularies": sum(
            sum(map(sys.getsizeof, one)) + sys.getsizeof(one) for one in texts.values()
        ),
        "windows_and_order_of_rows": bytes_of_rows(train.table, len(valid.table), training),
        "parameters_gradients_and_optimizer": parameters,
        "step": HEAP * bytes_of_step(build, train.table, training, Objective.of(*labels)),
        "copy_for_a_checkpoint": checkpoint if training.checkpoint_minutes else 0,
    }
    # exactly, before there are gradients and states
    if training.solves_lr and training.l2_of_lr is None:
        memory["lr_solution"] = SOLUTION * (layout.num_rows + 1)
        names = (
            "windows_and_order_of_rows",
            "parameters_gradients_and_optimizer",
            "step",
            "copy_for_a_checkpoint",
        )
        copies = 2 if training.average else 1
        more = (
            copies * weights
            + bytes_of_regression(train.table, valid.table)
            - sum(memory[name] for name in names)
        )
        memory["more_while_lr_is_solved"] = max(0, more)
    disk: dict[str, float] = {
        "encoded_rows": encoded,
        "cached_raw_rows": raw,
        "checkpoints": CHECKPOINTS * checkpointed if training.checkpoint_minutes else 0,
        "bundle": weights + lr_weights,
    }
    sizes = {
        "memory_mib": memory | {"sum": sum(memory.values())},
        "disk_mib": disk | {"sum": sum(disk.values())},
    }
    # beside the rows of the parts, before any is encoded; encoded, then saved
    if train.bound is not None:
        sizes["disk_mib"]["more_while_preparing"] = max(raw - encoded, train.table.nbytes)
    return {
        "parameters": [
            {"name": name, "shape": list(parameter.shape), "numbers": parameter.numel()}
            for name, parameter in (*named_parameters, *lr_parameters)
        ],
        "parameter_count": sum(
            parameter.numel() for _, parameter in (*named_parameters, *lr_parameters)
        ),
        "lr_parameter_count": sum(parameter.numel() for _, parameter in lr_parameters),
        "counts": dict(prepared.counts),
        **{
            name: {what: size / show.MIB for what, size in result.items()}
            for name, result in sizes.items()
        },
    }
