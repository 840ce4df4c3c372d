"""`fieldwise tune`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import Device, check_device
from fieldwise.cli.next import suggest
from fieldwise.cli.options import MAX_SEED, AsJson, Quiet, RecipeOptions, Tracker, data_folder, run_context
from fieldwise.cli.show import console, print_json, print_table

if TYPE_CHECKING:
    from fieldwise.runs.recipe import Recipe
    from fieldwise.runs.tune import Tuned

__all__ = ["TuneOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of `fieldwise tune`."""

    recipe: RecipeOptions
    trials: Annotated[int, typer.Option(min=1, help="Total trials of the study, including those of earlier calls.")] = (
        30
    )
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the search.")] = 0
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds with which the best settings are evaluated on the test rows.")
    ] = 3
    store: Annotated[Path, typer.Option(help="Folder of studies. Several processes may share it.")] = Path("runs/tune")
    json: AsJson = False
    quiet: Quiet = False
    tracker: Tracker = None
    device: Device = None


def run(options: TuneOptions) -> None:
    """Search for better settings on the validation rows; the test rows are evaluated once, at the end.

    Ctrl-C keeps the finished trials, and the same command resumes. The recipe's table `search` defines the search
    space.
    """
    recipe = options.recipe.load(options.device)
    from fieldwise.config import to_plain
    from fieldwise.runs.tune import tune

    check_device(options.device, recipe.training.device)
    found = tune(
        recipe,
        trials=options.trials,
        store=options.store,
        context=run_context(data_folder(recipe.data.name), options.tracker, quiet=options.quiet),
        seed=options.seed,
        final_seeds=options.seeds,
    )
    if options.json:
        plain = {f.name: getattr(found, f.name) for f in fields(found)}
        runs = [
            {"folder": str(run.folder), "seed": run["seed"], "test": dict(run["test"])} for run in plain.pop("runs")
        ]
        plain |= {"study": str(found.study), "recipe_file": str(found.recipe_file)}
        print_json({**{name: to_plain(value) for name, value in plain.items() if name != "recipe"}, "runs": runs})
        return
    _show(found, recipe)
    if not options.quiet:
        suggest("train a bundle with the best settings", "train", found.recipe_file)


def _show(found: "Tuned", recipe: "Recipe") -> None:
    import numpy as np

    from fieldwise.evaluation.words import remarks_on_means
    from fieldwise.runs.recipe import search_space, value_at

    screen = console()
    ended = ", ".join(f"{count} {how}" for how, count in found.trials.items())
    screen.print(f"{recipe.name}: best {found.metric} on validation rows {found.value:.4f} of {ended} trials")
    rows = ([path, _shown(value_at(recipe, path)), _shown(found.values.get(path))] for path in search_space(recipe))
    print_table(["setting", "was", "best"], rows)
    tests = [run["test"] for run in found.runs]
    for metric in ("auc", "logloss", "rmse"):
        values = [test[metric] for test in tests if metric in test]
        if values:
            spread = f" (seeds {min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
            screen.print(f"test {metric} {np.mean(values):.4f}{spread}")
    for sentence in remarks_on_means(tests, "test rows"):
        screen.print(sentence)
    after, times = found.test_evaluations[0]["after_trials"], len(found.test_evaluations)
    now = sum(found.trials.values())
    if times == 1:
        then = "after the search."
        if now > after:
            then = f"after {after} trials; the search then went on to {now} trials, and they are still the best."
        screen.print(f"This study evaluated only these settings on the test rows, {then}")
    else:
        screen.print(
            f"This search continued after an evaluation on the test rows: {times} settings have been evaluated on them "
            f"by now ({found.study.with_suffix('.test.json')})."
        )
    screen.print(f"recipe: {found.recipe_file}, study: {found.study}")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
