"""A model in one command: `fieldwise quickstart` of a public or simulated log, `fieldwise auto` of your own table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fieldwise.automatic.settings import AutoSettings
from fieldwise.cli import options as opt
from fieldwise.cli.show import console, print_json, print_table, row_counts, say, suggest
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.storage.files import check_output

if TYPE_CHECKING:
    from fieldwise.automatic.result import AutoResult

SERVER = ("uvicorn", "fastapi", "prometheus_client")
MODELS = ("lr", "fm", "afm", "autoint", "autoint-plus", "inttower")
# recipes, and settings that keep their training short
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
    absent = [name for name in SERVER if find_spec(name) is None]
    if serve and absent:  # reported before any work
        raise MissingExtraError(
            f"the page needs {absent[0]}: pip install 'fieldwise[serve]' (or give --no-serve to only train and "
            "recommend)"
        )
    words = _train(data, out, seed, overwrite=overwrite, quiet=quiet)
    if not serve:
        suggest("start a web page with recommendations and explanations for each user", *words)
        return
    words += ["--port", port]
    suggest("start the page again later", *words)
    from fieldwise.cli.app import app

    app(args=[str(word) for word in words], prog_name="fieldwise", standalone_mode=False)


def _train(data: str, out: Path, seed: int, *, overwrite: bool, quiet: bool) -> list[object]:
    """Train, compare, save and recommend; returns the command that serves the recommending model, as a list of words.

    Errors:
        KeyboardInterrupt: Ctrl-C; the models trained so far are saved and shown.
    """
    from fieldwise.data.encode.columns import as_text
    from fieldwise.data.read.tables import write_table
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import train_recipe
    from fieldwise.runs.raw_table import load_frame
    from fieldwise.runs.recipe_files import load_recipe
    from fieldwise.schema.ids import id_column
    from fieldwise.scoring.recommend import Catalogue, recommend
    from fieldwise.training.progress import progress_for

    recipes = [replace(load_recipe(name, DEMOS[data][1]), seed=seed) for name in DEMOS[data][0]]
    folders = {recipe.name: out / recipe.name.split("/")[1] for recipe in recipes}
    for folder in folders.values():
        opt.check_out(folder, overwrite=overwrite)
    log = out / "log.parquet"
    check_output(log, overwrite=overwrite)
    first = recipes[0]
    runs = []
    rows = []
    frame = load_frame(first.data, opt.data_folder(first.data.name))
    prepared = prepare_recipe(first, Path(), frame)
    say(f"{first.data.name}: {row_counts(prepared.counts)}")
    for recipe in recipes:
        same = (recipe.schema, recipe.split, recipe.rows_seed) == (
            first.schema,
            first.split,
            first.rows_seed,
        )
        own = prepared if same else prepare_recipe(recipe, Path(), frame)
        done = train_recipe(recipe, own, [progress_for(recipe.name, quiet=quiet)])
        _, unsaved = opt.save_or_keep(
            partial(done.bundle.save, overwrite=True), folders[recipe.name], "The trained bundle"
        )
        if unsaved is not None:
            raise unsaved
        runs.append(done)
        epoch = done.history.seconds_per_epoch
        cells = [f"{done.test['auc']:.4f}", f"{done.test['logloss']:.4f}", f"{done.parameters:,}"]
        cells += [
            "-" if epoch is None else f"{epoch:.1f}",
            f"{done.history.epochs}",
            f"{done.seconds:.0f}",
        ]
        rows.append([recipe.name, *cells])
        if interrupted := done.history.stopped == "interrupted":
            say("interrupted: this model and those before it are saved, the others are skipped")
            break
    if (limit := done.best_possible) is not None:
        rows.append(
            [
                "best possible (true probability)",
                f"{limit['auc']:.4f}",
                f"{limit['logloss']:.4f}",
                *[""] * 4,
            ]
        )
    print_table(
        ["model", "test AUC", "logloss", "parameters", "s/epoch", "epochs", "seconds"],
        rows,
        right=True,
    )
    best = max(runs, key=lambda run: run.valid["auc"])
    known = prepared.train.frame
    user = (
        as_text(known.get_column(id_column("user", [best.bundle.schema], known.columns)))
        .mode()
        .sort()[0]
    )
    top = recommend(best.bundle, frame, Catalogue(title="title"), user).drop("source")
    name = best.recipe.name
    console().print(
        f"\nten films for user {user} by {name} (best on validation rows), without films already liked:"
    )
    print_table(
        top.columns,
        ([f"{x:.3f}" if isinstance(x, float) else str(x) for x in row] for row in top.iter_rows()),
    )
    console().print(f"bundles: {out}/")
    if interrupted:
        raise KeyboardInterrupt
    write_table(frame, log)
    return ["serve", folders[name], "--log", log]


@dataclass(frozen=True, kw_only=True)
class AutoOptions:
    """Options of `fieldwise auto`."""

    context: typer.Context  # holds the start time of the command
    table: Annotated[
        Path, Argument(metavar="TABLE", help="Rows with labels: CSV, TSV, Parquet, Arrow or libFM.")
    ]
    label: opt.Label = None
    positive: opt.Positive = None
    minutes: Annotated[float, Option(min=0.01, help="Time budget of the whole run.")] = (
        AutoSettings.minutes
    )
    out: Annotated[
        Path | None, Option(help="Folder for all results. Default: runs/auto-TABLE.")
    ] = None
    overwrite: opt.Overwrite = False
    schema: Annotated[
        Path | None, Option(help="Your own schema (TOML). Default: inferred from the table.")
    ] = None
    split_column: Annotated[
        str | None, Option(metavar="COLUMN", help="A column with train, valid or test.")
    ] = None
    keep: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN", help="Keep this column whatever the audit finds. May be repeated."
        ),
    ] = None
    seed: opt.Seed = AutoSettings.seed
    reading: opt.Reading
    json: opt.AsJson = False
    quiet: opt.Quiet = False
    device: opt.BundleDevice = AutoSettings.device


def run_auto(options: AutoOptions) -> None:
    """Find a good model for a table in a given time.

    It audits the columns, trains, tunes, evaluates and saves. Ctrl-C ends it early.
    """
    from fieldwise.automatic import run as automatic
    from fieldwise.data.prepare.settings import ColumnSplit
    from fieldwise.runs.data_settings import DataSettings
    from fieldwise.schema import Schema

    opt.check_device(options.device)
    out = options.out or Path("runs") / f"auto-{options.table.name.partition('.')[0] or 'table'}"
    same = {
        name: getattr(options, name) for name in ("label", "minutes", "seed", "overwrite", "device")
    }
    settings = AutoSettings(
        **same,
        positive=options.positive or (),
        out=out,
        keep=options.keep or (),
        began=options.context.obj,
        split=None if options.split_column is None else ColumnSplit(column=options.split_column),
        schema=None if options.schema is None else Schema.from_toml(options.schema),
    )
    reading = options.reading.arguments
    names = reading.pop("columns")
    data = DataSettings(
        path=str(options.table), columns=None if names is None else tuple(names), **reading
    )
    result = automatic.run_auto(data, settings, (lambda _: None) if options.quiet else say)
    if options.json:
        print_json(result.to_plain(), default=str)
    else:
        _show_auto(result)
    if not options.quiet:
        folder = result.folder or Path()
        how = options.reading.options()
        bundle = folder / "bundle"
        rows = ["--data", options.table, *how]
        suggest(
            "predict (--data may hold new rows)",
            "predict",
            bundle,
            *rows,
            "--out",
            folder / "predictions.csv",
        )
        recommends = {"user", "item"} <= {field.role for field in result.schema.fields}
        log = ["--log", options.table, *how] if recommends else []
        suggest("start a server with a web page", "serve", bundle, *log)
        suggest("see what the scores depend on", "explain", bundle, *rows)
        suggest("train the same model again, or change it", "train", folder / "recipe.toml")
    if result.interrupted:
        raise KeyboardInterrupt


def _show_auto(result: "AutoResult") -> None:
    out = console()
    heads, rows = result.rows(short=True)
    print_table(heads, rows, right=True)
    out.print(
        f"{result.test_rows:,} test rows; * the model in the bundle; ± half the width of the 95 % interval. "
        f"{result.legend}"
    )
    out.print("")
    for sentence in result.sentences():
        out.print(f"- {sentence}")
    assert result.folder is not None, "the command always writes"
    names = "schema.toml, recipe.toml, leaderboard.json and .md, bundle" + (
        ", report.html" if result.report else ""
    )
    out.print(f"\n{result.seconds:.0f} s. In {result.folder}: {names}")
