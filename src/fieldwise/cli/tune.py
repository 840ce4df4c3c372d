"""`fieldwise tune`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import Device, check_device, with_device
from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import (
    MAX_SEED,
    AsJson,
    DataDir,
    Protocol,
    Quiet,
    RecipeName,
    Settings,
    Threads,
    Tracker,
    UseCache,
    cache_for,
    callbacks_for,
    existing_data_dir,
    set_threads,
)
from fieldwise.cli.show import console, print_json, say

if TYPE_CHECKING:
    from fieldwise.runs.recipe import Recipe
    from fieldwise.runs.tune import Tuned

__all__ = ["TuneOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of `fieldwise tune`."""

    recipe: RecipeName
    trials: Annotated[int, typer.Option(min=1, help="Total trials of the study, including those of earlier calls.")] = (
        30
    )
    settings: Settings = None
    protocol: Protocol = None
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the search.")] = 0
    final_seeds: Annotated[
        int, typer.Option(min=1, help="Seeds with which the best settings are evaluated on the test rows.")
    ] = 3
    store: Annotated[Path, typer.Option(help="Folder of studies. Several processes may share it.")] = Path("runs/tune")
    data_dir: DataDir = None
    json: AsJson = False
    quiet: Quiet = False
    tracker: Tracker = None
    device: Device = None
    threads: Threads = None
    cache: UseCache = True


def run(options: TuneOptions) -> None:
    """Search for better settings on the validation rows; the test rows are evaluated once, at the end.

    Ctrl-C keeps the finished trials, and the same command resumes. The recipe's table `search` defines the search
    space.
    """
    from fieldwise.runs.recipe import check_recipe, load_recipe

    settings = with_device(options.settings, options.device)
    check_recipe(options.recipe, settings, protocol=options.protocol)  # before PyTorch is loaded
    from fieldwise.runs.fits import RunContext
    from fieldwise.runs.tune import tune

    set_threads(options.threads)
    recipe = load_recipe(options.recipe, settings, protocol=options.protocol)
    check_device(options.device, recipe.training.device)
    found = tune(
        recipe,
        trials=options.trials,
        store=options.store,
        context=RunContext(
            data_dir=existing_data_dir(options.data_dir, recipe.data.name),
            cache=cache_for(options.cache, options.quiet),
            note=(lambda _: None) if options.quiet else say,
            callbacks=callbacks_for(options.tracker, quiet=options.quiet),
        ),
        seed=options.seed,
        final_seeds=options.final_seeds,
    )
    if options.json:
        print_json(_plain(found))
        return
    _show(found, recipe)
    if not options.quiet:
        suggest("train a bundle with the best settings", "train", found.recipe_file, *data_options(options.data_dir))


def _plain(found: "Tuned") -> dict[str, object]:
    from fieldwise.config import to_plain

    plain = {f.name: getattr(found, f.name) for f in fields(found) if f.name not in ("recipe", "runs")}
    texts = {"study": str(found.study), "recipe_file": str(found.recipe_file)}
    runs = [{"folder": str(run.folder), "seed": run.facts.seed, "test": dict(run.facts.test)} for run in found.runs]
    return {**{key: to_plain(value) for key, value in plain.items() if key not in texts}, **texts, "runs": runs}


def _show(found: "Tuned", recipe: "Recipe") -> None:
    import numpy as np
    from rich.table import Table

    from fieldwise.evaluation.remarks import remarks_on_means
    from fieldwise.runs.recipe_space import search_space, value_at

    screen = console()
    ended = ", ".join(f"{count} {how}" for how, count in found.trials.items())
    screen.print(f"{recipe.name}: best {found.metric} on validation rows {found.value:.4f} of {ended} trials")
    table = Table("setting", "was", "best", box=None)
    for path in search_space(recipe):
        table.add_row(path, _shown(value_at(recipe, path)), _shown(found.values.get(path)))
    screen.print(table)
    tests = [run.facts.test for run in found.runs]
    for metric in ("auc", "logloss", "rmse"):
        values = [test[metric] for test in tests if metric in test]
        if values:
            spread = f" (seeds {min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
            screen.print(f"test {metric} {np.mean(values):.4f}{spread}")
    for sentence in remarks_on_means(tests, "test rows"):
        screen.print(sentence)
    after, ended_now = found.test_evaluations[0]["after_trials"], sum(found.trials.values())
    if len(found.test_evaluations) == 1 and ended_now > after:
        screen.print(
            f"This study evaluated only these settings on the test rows, after {after} trials; the search then went "
            f"on to {ended_now} trials, and they are still the best."
        )
    elif len(found.test_evaluations) == 1:
        screen.print("This study evaluated only these settings on the test rows, after the search.")
    else:
        screen.print(
            f"This search continued after an evaluation on the test rows: {len(found.test_evaluations)} settings have "
            f"been evaluated on them by now ({found.study.with_suffix('.test.json')})."
        )
    screen.print(f"recipe: {found.recipe_file}, study: {found.study}")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
