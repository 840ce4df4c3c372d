"""`fieldwise quickstart`: models of a public or simulated log, and the best one served, in one command."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, saving
from fieldwise.cli.serve import ITEMS, TOKEN, USERS, ServeOptions
from fieldwise.cli.serve import run as run_server
from fieldwise.cli.show import console, print_table, row_counts, say, suggest
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.storage.outputs import check_output

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.runs.pipeline import TrainingResult
    from fieldwise.runs.recipe import Recipe

PACKAGES_OF_SERVER = ("uvicorn", "fastapi", "prometheus_client")
MODELS = ("lr", "fm", "afm", "autoint", "autoint-plus", "inttower")
DEMOS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "small": (
        ("simulated/lr", "simulated/fm", "simulated/autoint"),
        ("data.rows=20_000", "data.users=200", "data.items=200", "training.epochs=10"),
    ),
    "simulated": ([f"simulated/{model}" for model in MODELS], ()),
    "movielens-1m": (
        [*(f"movielens-1m/{model}-ids" for model in MODELS[:-1]), "movielens-1m/inttower"],
        ("training.epochs=2", "training.batch_size=4096"),
    ),
}
"""Recipes, and settings that keep their training short."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The model that recommends, and its log."""

    bundle: Path
    log: Path

    @property
    def serving(self) -> list[object]:
        """The command that serves the model, as words."""
        return ["serve", self.bundle, "--log", self.log]


def run(
    *,
    data: Annotated[
        str,
        Option(
            help="Simulated films: small (3 models) or simulated (6); or movielens-1m (6), once fetched."
        ),
    ] = "small",
    out: Annotated[Path, Option(help="Folder for the bundles.")] = Path("runs/quickstart"),
    serve: Annotated[
        bool, Option("--serve/--no-serve", help="Serve the page until Ctrl-C.")
    ] = True,
    port: Annotated[
        int, Option(min=0, max=65535, help="Port of the page; 0: any free port.")
    ] = 8000,
    seed: opt.Seed = 0,
    overwrite: opt.Overwrite = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train models on one log and serve the best with a web page.

    They are compared on test rows, and the best one recommends ten items to a user.
    """
    if data not in DEMOS:
        raise ConfigError(
            f"--data must be a data set of the demo, found {data!r}: {nearest(data, DEMOS)}"
        )
    absent = [name for name in PACKAGES_OF_SERVER if find_spec(name) is None]
    if serve and absent:  # reported before any work
        raise MissingExtraError(
            f"the page needs {absent[0]}: pip install 'fieldwise[serve]' (or give --no-serve to only train and "
            "recommend)"
        )
    demo = _train(data, out, seed, overwrite=overwrite, quiet=quiet)
    if not serve:
        purpose = "start a web page with recommendations and explanations for each user"
        suggest(purpose, *demo.serving)
        return
    suggest("start the page again later", *demo.serving, "--port", port)
    # The variables have the effect that they have on `fieldwise serve`.
    run_server(
        ServeOptions(
            bundle=demo.bundle,
            log=demo.log,
            reading=opt.Reading(),
            port=port,
            users=os.environ.get(USERS) or None,
            items=os.environ.get(ITEMS) or None,
            token=os.environ.get(TOKEN) or None,
        )
    )


def _train(data: str, out: Path, seed: int, *, overwrite: bool, quiet: bool) -> Demo:
    """Train, compare, save and recommend; returns the model that is best on the validation rows.

    Errors:
        KeyboardInterrupt: Ctrl-C; the models trained so far are saved and shown.
    """
    from fieldwise.data.read.table_writer import write_table
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.raw_table import load_frame
    from fieldwise.runs.recipe_files import load_recipe

    names, overrides = DEMOS[data]
    recipes = [replace(load_recipe(name, overrides), seed=seed) for name in names]
    folders = {recipe.name: out / recipe.name.split("/")[1] for recipe in recipes}
    for folder in folders.values():
        saving.check_out(folder, overwrite=overwrite)
    log = out / "log.parquet"
    check_output(log, overwrite=overwrite)

    first = recipes[0]
    frame = load_frame(first.data, resources.data_folder(first.data.name))
    prepared = prepare_recipe(first, Path(), frame)
    say(f"{first.data.name}: {row_counts(prepared.counts)}")
    trained_models: list[TrainingResult] = []
    is_interrupted = False
    for recipe in recipes:
        recipe_rows = prepared
        row_settings = (recipe.schema, recipe.split, recipe.rows_seed)
        if row_settings != (first.schema, first.split, first.rows_seed):
            recipe_rows = prepare_recipe(recipe, Path(), frame)
        trained = _train_and_save(recipe, recipe_rows, folders[recipe.name], quiet=quiet)
        trained_models.append(trained)
        is_interrupted = trained.history.stopped == "interrupted"
        if is_interrupted:
            say("interrupted: this model and those before it are saved, the others are skipped")
            break

    _show_models(trained_models)
    best = max(trained_models, key=lambda trained: trained.valid["auc"])
    _show_recommendations(best, frame, known=prepared.train.frame)
    console().print(f"bundles: {out}/")
    if is_interrupted:
        raise KeyboardInterrupt
    write_table(frame, log)
    return Demo(bundle=folders[best.recipe.name], log=log)


def _train_and_save(
    recipe: "Recipe", prepared: "Prepared", folder: Path, *, quiet: bool
) -> "TrainingResult":
    from fieldwise.runs.pipeline import train_recipe
    from fieldwise.training.progress import progress_for

    trained = train_recipe(recipe, prepared, [progress_for(recipe.name, quiet=quiet)])
    save = partial(trained.bundle.save, overwrite=True)
    _, save_error = saving.save_or_keep(save, folder, "The trained bundle")
    if save_error is not None:
        raise save_error
    return trained


def _show_models(trained_models: "Sequence[TrainingResult]") -> None:
    """Print the models with their metrics and times, and the best metrics that a model can have, if known."""
    rows = []
    for trained in trained_models:
        seconds_per_epoch = trained.history.seconds_per_epoch
        rows.append(
            [
                trained.recipe.name,
                f"{trained.test['auc']:.4f}",
                f"{trained.test['logloss']:.4f}",
                f"{trained.parameters:,}",
                "-" if seconds_per_epoch is None else f"{seconds_per_epoch:.1f}",
                f"{trained.history.epochs}",
                f"{trained.seconds:.0f}",
            ]
        )
    limit = trained_models[-1].best_possible
    if limit is not None:
        metrics = [f"{limit['auc']:.4f}", f"{limit['logloss']:.4f}"]
        rows.append(["best possible (true probability)", *metrics, "", "", "", ""])
    heads = ["model", "test AUC", "logloss", "parameters", "s/epoch", "epochs", "seconds"]
    print_table(heads, rows, right=True)


def _show_recommendations(
    trained: "TrainingResult", log: "pl.DataFrame", *, known: "pl.DataFrame"
) -> None:
    """Print ten items for the user with most training rows (`known`)."""
    from fieldwise.data.encode.columns import as_text
    from fieldwise.schema.ids import id_column
    from fieldwise.scoring.recommend import IdColumns, recommend

    user_column = id_column("user", [trained.bundle.schema], known.columns)
    user = as_text(known.get_column(user_column)).mode().sort()[0]
    recommended = recommend(trained.bundle, log, IdColumns(title="title"), user).drop("source")
    console().print(
        f"\nten films for user {user} by {trained.recipe.name} (best on validation rows), without films already liked:"
    )
    print_table(recommended.columns, map(_shown_cells, recommended.iter_rows()))


def _shown_cells(row: Sequence[object]) -> list[str]:
    return [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row]
