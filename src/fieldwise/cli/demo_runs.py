"""The work of `fieldwise demo` and `fieldwise quickstart`: train recipes on one log, compare, save and recommend."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from fieldwise.cli.demo import DemoOptions
from fieldwise.cli.options import existing_data_dir, set_threads
from fieldwise.cli.saving import check_out, save_or_keep
from fieldwise.cli.show import console, row_counts, say
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.read.tables import write_table
from fieldwise.runs.data import load_frame, prepare_recipe
from fieldwise.runs.pipeline import Run, train_recipe
from fieldwise.runs.recipe import Recipe, load_recipe
from fieldwise.schema.ids import id_column
from fieldwise.scoring.recommend import Catalogue, recommend
from fieldwise.training.progress import progress_for

__all__ = ["DEMOS", "QUICK", "Demo", "train_demo"]

MODELS = ("lr", "fm", "afm", "autoint", "autoint-plus", "inttower")


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A data set of the demo: its recipes, and settings that keep it short."""

    recipes: tuple[str, ...]
    settings: tuple[str, ...] = ()


DEMOS = {
    "simulated": Demo(
        recipes=tuple(f"simulated/{model}" for model in MODELS),
    ),
    "movielens-1m": Demo(
        recipes=(*(f"movielens-1m/{model}-ids" for model in MODELS[:-1]), "movielens-1m/inttower"),
        settings=("training.epochs=2", "training.batch_size=4096"),
    ),
}
QUICK = Demo(
    recipes=("simulated/lr", "simulated/fm", "simulated/autoint"),
    settings=("data.rows=20_000", "data.users=200", "data.items=200", "training.epochs=10"),
)


def train_demo(demo: Demo, options: DemoOptions) -> list[object]:
    """Train, compare, save and recommend; returns the command that serves the recommending model, as a list of words.

    Errors:
        KeyboardInterrupt: Ctrl-C; the models trained so far are saved and shown.
    """
    set_threads(options.threads)
    recipes = [dataclasses.replace(load_recipe(name, demo.settings), seed=options.seed) for name in demo.recipes]
    for recipe in recipes:
        check_out(_folder(options.out, recipe))
    frame = load_frame(recipes[0].data, existing_data_dir(options.data_dir, recipes[0].data.name))
    prepared = prepare_recipe(recipes[0], Path(), frame)
    say(f"{options.data}: {row_counts(prepared.counts)}")
    runs = []
    for recipe in recipes:
        rows = _prepared_for(recipe, recipes[0], prepared, frame)
        run = train_recipe(recipe, rows, [progress_for(recipe.name, quiet=options.quiet)])
        _, unsaved = save_or_keep(run.bundle, _folder(options.out, recipe))
        if unsaved is not None:
            raise unsaved
        runs.append(run)
        if run.result.stopped == "interrupted":
            say("interrupted: this model and those before it are saved, the others are skipped")
            break
    screen = console()
    screen.print(leaderboard(runs))
    best = max(runs, key=lambda run: run.valid["auc"])
    _recommendations(screen, best, prepared.train.frame, frame)
    screen.print(f"bundles: {options.out}/")
    if runs[-1].result.stopped == "interrupted":
        raise KeyboardInterrupt
    log = options.out / "log.parquet"
    write_table(frame, log)
    return ["serve", _folder(options.out, best.recipe), "--log", log]


def _folder(out: Path, recipe: Recipe) -> Path:
    return out / recipe.name.split("/")[1]


def leaderboard(runs: Sequence[Run]) -> Table:
    """Test metrics of the runs, and of the true probabilities if they are known."""
    table = Table("model", "test AUC", "logloss", "parameters", "s/epoch", "epochs", "seconds", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for run in runs:
        table.add_row(
            run.recipe.name,
            f"{run.test['auc']:.4f}",
            f"{run.test['logloss']:.4f}",
            f"{run.parameters:,}",
            "-" if run.result.seconds_per_epoch is None else f"{run.result.seconds_per_epoch:.1f}",
            f"{run.result.epochs}",
            f"{run.seconds:.0f}",
        )
    best = runs[-1].best_possible
    if best is not None:
        table.add_row(
            "best possible (true probability)", f"{best['auc']:.4f}", f"{best['logloss']:.4f}", "", "", "", ""
        )
    return table


def _prepared_for(recipe: Recipe, first: Recipe, prepared: Prepared, frame: pl.DataFrame) -> Prepared:
    same = (recipe.schema, recipe.split, recipe.rows_seed) == (first.schema, first.split, first.rows_seed)
    return prepared if same else prepare_recipe(recipe, Path(), frame)


def _recommendations(screen: Console, best: Run, known: pl.DataFrame, frame: pl.DataFrame) -> None:
    column = id_column("user", [best.bundle.schema], known.columns)
    user = str(as_text(known.get_column(column)).mode().sort()[0])
    top = recommend(best.bundle, frame, Catalogue(title="title"), user).drop("source")
    screen.print(
        f"\nten films for user {user} by {best.recipe.name} (best on validation rows), without films already seen:"
    )
    table = Table(*top.columns, box=None)
    for row in top.iter_rows():
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row))
    screen.print(table)
