"""`fieldwise tune`: search for better settings of a recipe."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import load_recipe
from fieldwise.runs.search_space import search_space
from fieldwise.runs.setting_paths import value_at

if TYPE_CHECKING:
    from fieldwise.runs.tune import Tuned


def run(
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
    resources.check_library(loaded)
    from fieldwise.runs.tune import tune

    resources.check_device(loaded.training.device, what=opt.DEVICE)
    context = resources.run_context(resources.data_folder(loaded.data.name), tracker, quiet=quiet)
    tuned = tune(loaded, trials=trials, store=store, context=context, seed=seed, final_seeds=seeds)
    if json:
        show.print_json(_plain(tuned))
        return
    _show_tuned(tuned, loaded)
    if not quiet:
        show.suggest("train a bundle with the best settings", "train", tuned.recipe_file)


def _plain(tuned: "Tuned") -> dict[str, Any]:
    """The result of a search as plain values for JSON."""
    from fieldwise.config import to_plain

    plain: dict[str, Any] = {}
    for field in fields(tuned):
        if field.name not in ("recipe", "runs"):
            plain[field.name] = to_plain(getattr(tuned, field.name))
    plain["study"] = str(tuned.study)
    plain["recipe_file"] = str(tuned.recipe_file)
    plain["runs"] = [
        {"folder": str(run.folder), "seed": run["seed"], "test": dict(run["test"])}
        for run in tuned.runs
    ]
    return plain


def _show_tuned(tuned: "Tuned", recipe: Recipe) -> None:
    """Print the best settings, their metrics on the test rows, and how far these may be trusted."""
    from fieldwise.evaluation.words import remarks_on_means

    screen = show.console()
    trial_count = sum(tuned.trials.values())
    states = ", ".join(f"{count} {state}" for state, count in tuned.trials.items())
    noun = "trial" if trial_count == 1 else "trials"
    screen.print(
        f"{recipe.name}: best {tuned.metric} on validation rows {tuned.value:.4f} of {states} {noun}"
    )

    rows = []
    for path in search_space(recipe):
        before = _shown_value(value_at(recipe, path))
        best = _shown_value(tuned.values.get(path))
        rows.append([path, before, best])
    show.print_table(["setting", "was", "best"], rows)

    test_metrics = [run["test"] for run in tuned.runs]
    for line in _metric_lines(test_metrics):
        screen.print(line)
    for sentence in remarks_on_means(test_metrics, "test rows"):
        screen.print(sentence)
    if tuned.caution:
        screen.print(tuned.caution)
    screen.print(_test_rows_sentence(tuned, trial_count))
    screen.print(f"recipe: {tuned.recipe_file}, study: {tuned.study}")


def _shown_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return "-" if text == "None" else text


def _metric_lines(test_metrics: list[dict[str, float]]) -> Iterator[str]:
    """The means of the main metrics over the seeds, with their ranges."""
    from fieldwise.evaluation.metrics import main_metrics

    for metric in main_metrics():
        values = [metrics[metric] for metrics in test_metrics if metric in metrics]
        if not values:
            continue
        spread = ""
        if len(values) > 1:
            spread = f" (seeds {min(values):.4f} to {max(values):.4f})"
        yield f"test {metric} {sum(values) / len(values):.4f}{spread}"


def _test_rows_sentence(tuned: "Tuned", trial_count: int) -> str:
    """How often this study has evaluated settings on the test rows."""
    evaluations = len(tuned.test_evaluations)
    if evaluations > 1:
        return (
            f"This search continued after an evaluation on the test rows: {evaluations} settings have been evaluated "
            f"on them by now ({tuned.study.with_suffix('.test.json')})."
        )
    trials_before = tuned.test_evaluations[0].after_trials
    when = "after the search."
    if trial_count > trials_before:
        when = (
            f"after {show.counted(trials_before, 'trial')}; the search then went on to {trial_count} trials, and they "
            "are still the best."
        )
    return f"This study evaluated only these settings on the test rows, {when}"
