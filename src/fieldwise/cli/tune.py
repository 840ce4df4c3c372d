"""`fieldwise tune`."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import cache_for, existing_data_dir, set_threads
from fieldwise.cli.show import console, say
from fieldwise.config import to_plain
from fieldwise.evaluation.remarks import remarks_on_means
from fieldwise.runs.recipe import Recipe, load_recipe
from fieldwise.runs.tune import Tuned, search_space, tune, value_at
from fieldwise.training.progress import progress_for

__all__ = ["run_tune"]


def run_tune(
    name: str,
    settings: Sequence[str],
    protocol: str | None,
    trials: int,
    seed: int,
    final_seeds: int,
    store: Path,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
    threads: int | None,
    cache: bool,
) -> None:
    """Search, measure the best once, print."""
    set_threads(threads)
    recipe = load_recipe(name, settings, protocol=protocol)
    found = tune(
        recipe,
        trials=trials,
        store=store,
        data_dir=existing_data_dir(data_dir, recipe.data.name),
        cache=cache_for(cache, quiet),
        seed=seed,
        final_seeds=final_seeds,
        note=(lambda _: None) if quiet else say,
        progress=lambda title: progress_for(title, quiet=quiet),
    )
    if as_json:
        json.dump(_plain(found), sys.stdout, indent=1)
        print()
        return
    _show(found, recipe)
    if not quiet:
        suggest("a bundle of the best settings", "train", found.recipe_file, *data_options(data_dir))


def _plain(found: Tuned) -> dict[str, object]:
    plain = {f.name: getattr(found, f.name) for f in dataclasses.fields(found) if f.name not in ("recipe", "runs")}
    texts = {"study": str(found.study), "recipe_file": str(found.recipe_file)}
    runs = [{"folder": str(run.folder), "seed": run.about["seed"], "test": run.about["test"]} for run in found.runs]
    return {**{key: to_plain(value) for key, value in plain.items() if key not in texts}, **texts, "runs": runs}


def _show(found: Tuned, recipe: Recipe) -> None:
    screen = console()
    ended = ", ".join(f"{count} {how}" for how, count in found.trials.items())
    screen.print(f"{recipe.name}: best {found.metric} on validation rows {found.value:.4f} of {ended} trials")
    table = Table("setting", "was", "best", box=None)
    for path in search_space(recipe):
        table.add_row(path, _shown(value_at(recipe, path)), _shown(found.values.get(path)))
    screen.print(table)
    tests = [run.about["test"] for run in found.runs]
    for metric in ("auc", "logloss", "rmse"):
        values = [test[metric] for test in tests if metric in test]
        if values:
            spread = f" (seeds {min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
            screen.print(f"test {metric} {np.mean(values):.4f}{spread}")
    for sentence in remarks_on_means(tests, "test rows"):
        screen.print(sentence)
    after, ended_now = found.test_looks[0]["after_trials"], sum(found.trials.values())
    if len(found.test_looks) == 1 and ended_now > after:
        screen.print(
            f"This study looked at the test rows for these settings alone, after {after} trials; the search then went "
            f"on to {ended_now}, and they are still its best."
        )
    elif len(found.test_looks) == 1:
        screen.print("This study looked at the test rows for these settings alone, after the search.")
    else:
        screen.print(
            f"This search went on after a look at the test rows: it has looked at them for {len(found.test_looks)} "
            f"settings by now ({found.study.with_suffix('.test.json')})."
        )
    screen.print(f"recipe: {found.recipe_file}, study: {found.study}")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
