"""The commands and their options, read by `--help`."""

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli import cache as cache_commands
from fieldwise.cli import data as data_commands
from fieldwise.cli import store as store_commands
from fieldwise.cli.options import (
    MAX_SEED,
    Candidates,
    Columns,
    DataDir,
    Encoding,
    ItemColumn,
    KeepSeen,
    Positive,
    Quiet,
    RankedUsers,
    Ranking,
    Reading,
    Separator,
    Threads,
    TopK,
    UseCache,
    UserColumn,
    column_names,
    version_option,
)

__all__ = ["app"]

app = typer.Typer(
    name="fieldwise",
    help="Recommenders built on attention over feature fields: from a raw log to a trained, honestly evaluated model.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_commands.app, name="data")
app.add_typer(cache_commands.app, name="cache")
app.add_typer(store_commands.app, name="store")

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name (`fieldwise recipes` lists them) or a TOML file.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.epochs=3. May be repeated."),
]
Protocol = Annotated[
    str | None,
    typer.Option(help="Divide rows and make features another way, e.g. time or leave-last-out for movielens-1m."),
]
Seed = Annotated[int | None, typer.Option(min=0, max=MAX_SEED, help="Seed of split, negatives, weights and row order.")]
BundleFolder = Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder that `train` saved.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


@app.callback()
def _root(version: Annotated[bool, version_option()] = False) -> None:
    del version


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for the bundles.")] = Path("runs/quickstart"),
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Serve the page until Ctrl-C stops it.")] = True,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0 for any free one.")] = 8000,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything.")] = 0,
    quiet: Quiet = False,
    threads: Threads = None,
) -> None:
    """From an empty folder to a page: train three models on a small simulated film log, and serve the best."""
    from fieldwise.cli.demo import DemoOptions
    from fieldwise.cli.quickstart import run_quickstart

    options = DemoOptions(out=out, seed=seed, data_dir=None, quiet=quiet, threads=threads)
    run_quickstart(options, serve, port, browse)


@app.command()
def demo(
    data: Annotated[str, typer.Option(help="simulated or movielens-1m.")] = "simulated",
    out: Annotated[Path, typer.Option(help="Folder for the bundles.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything.")] = 0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    threads: Threads = None,
) -> None:
    """Train LR, FM, AFM, AutoInt, AutoInt+ and IntTower side by side, compare them, recommend ten items to a user."""
    from fieldwise.cli.demo import DemoOptions, run_demo

    run_demo(data, DemoOptions(out=out, seed=seed, data_dir=data_dir, quiet=quiet, threads=threads))


@app.command()
def init(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet, Arrow or libFM.")],
    label: Annotated[str | None, typer.Option(help="The label's column; guessed by name where left out.")] = None,
    positive: Positive = None,
    schema: Annotated[
        Path | None, typer.Option(help="A schema to use, or the name of the one to write; schema.toml if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the recipe and the schema.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Write over a recipe and a schema that are there.")] = False,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
) -> None:
    """Write a schema and a recipe for a table, with comments, ready to train."""
    from fieldwise.cli.init import InitOptions, run_init

    reading: dict[str, object] = {"separator": separator, "encoding": encoding, "columns": column_names(columns)}
    told = tuple(positive or ())
    run_init(table, InitOptions(label=label, positive=told, reading=reading, out=out, schema=schema, force=force))


@app.command()
def auto(
    context: typer.Context,
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Rows with labels: CSV, TSV, Parquet, Arrow or libFM.")
    ],
    label: Annotated[str | None, typer.Option(help="The label's column; guessed by name where left out.")] = None,
    positive: Positive = None,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Of the whole run, from the command's start to its end.")
    ] = 10.0,
    out: Annotated[Path | None, typer.Option(help="Folder for all results; runs/auto-TABLE where left out.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Replace the result of a former run in that folder.")] = False,
    schema: Annotated[Path | None, typer.Option(help="A schema of your own, in TOML; inferred where left out.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column that stays a field whatever the audit finds. May be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything.")] = 0,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
    json: AsJson = False,
    quiet: Quiet = False,
    threads: Threads = None,
) -> None:
    """Find a good model for a table within some minutes: audit, train, search, measure, save. Ctrl-C ends it early."""
    from fieldwise.automatic import AutoSettings
    from fieldwise.cli.auto import run_auto_command
    from fieldwise.runs.recipe import DataSettings

    settings = AutoSettings(
        label=label,
        positive=positive or (),
        minutes=minutes,
        out=out,
        seed=seed,
        keep=keep or (),
        again=again,
        began=context.obj,
    )
    names = column_names(columns)
    data = DataSettings(
        path=str(table), separator=separator, encoding=encoding, columns=None if names is None else tuple(names)
    )
    run_auto_command(data, settings, schema, json, quiet, threads)


@app.command()
def train(
    recipe: RecipeName,
    settings: Settings = None,
    protocol: Protocol = None,
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the bundle; runs/RECIPE-seedN where left out.")] = None,
    data_dir: DataDir = None,
    json: AsJson = False,
    quiet: Quiet = False,
    threads: Threads = None,
    cache: UseCache = True,
) -> None:
    """Train a recipe, evaluate it on its test rows and save a bundle. Ctrl-C keeps the best so far."""
    from fieldwise.runs.recipe import check_recipe

    check_recipe(recipe, settings or [], protocol=protocol)  # before PyTorch is loaded
    from fieldwise.cli.train import run_train

    run_train(recipe, settings or [], protocol, seed, out, data_dir, json, quiet, threads, cache)


@app.command()
def compare(
    recipes: Annotated[
        list[str], typer.Argument(metavar="RECIPE...", help="Recipes by name or TOML file; the first is the baseline.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe, with seeds 0, 1, ... and the same rows.")] = 3,
    settings: Settings = None,
    protocol: Protocol = None,
    base: Annotated[str | None, typer.Option(metavar="RECIPE", help="Another baseline.")] = None,
    metric: Annotated[str | None, typer.Option(help="What the order goes by: auc, logloss, ece or rmse.")] = None,
    store: Annotated[
        Path, typer.Option(help="Folder of runs: what it has is not run again; processes may share it.")
    ] = Path("runs/compare"),
    plot: Annotated[Path | None, typer.Option(help="A picture to write: .png, .svg or .pdf.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Run everything anew.")] = False,
    ranking: Ranking = False,
    k: TopK = None,
    candidates: Candidates = None,
    users: RankedUsers = None,
    user: UserColumn = None,
    item: ItemColumn = None,
    keep_seen: KeepSeen = False,
    data_dir: DataDir = None,
    json: AsJson = False,
    quiet: Quiet = False,
    threads: Threads = None,
    cache: UseCache = True,
) -> None:
    """Train recipes with several seeds and show a leaderboard with intervals and a paired test. Resumes by itself."""
    from fieldwise.runs.recipe import check_recipe

    for recipe in recipes:
        check_recipe(recipe, settings or [], protocol=protocol)  # before PyTorch is loaded
    from fieldwise.cli.compare import run_compare
    from fieldwise.cli.ranking import ranking_settings

    run_compare(
        recipes,
        settings or [],
        protocol,
        seeds,
        base,
        metric,
        store,
        plot,
        again,
        ranking_settings(ranking, k, candidates, users, user, item, keep_seen),
        data_dir,
        json,
        quiet,
        threads,
        cache,
    )


@app.command()
def tune(
    recipe: RecipeName,
    trials: Annotated[int, typer.Option(min=1, help="Trials of the study, those of earlier calls included.")] = 30,
    settings: Settings = None,
    protocol: Protocol = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the search.")] = 0,
    final_seeds: Annotated[int, typer.Option(min=1, help="Runs of the best settings on the test rows.")] = 3,
    store: Annotated[Path, typer.Option(help="Folder of studies; processes may share it.")] = Path("runs/tune"),
    data_dir: DataDir = None,
    json: AsJson = False,
    quiet: Quiet = False,
    threads: Threads = None,
    cache: UseCache = True,
) -> None:
    """Search for better settings on the validation rows; the test rows are looked at once, at the end.

    Ctrl-C keeps the trials that ended, and the same command goes on. The recipe's table `search` says what is searched.
    """
    from fieldwise.runs.recipe import check_recipe

    check_recipe(recipe, settings or [], protocol=protocol)  # before PyTorch is loaded
    from fieldwise.cli.tune import run_tune

    run_tune(recipe, settings or [], protocol, trials, seed, final_seeds, store, data_dir, json, quiet, threads, cache)


@app.command()
def evaluate(
    bundle: BundleFolder,
    data: Annotated[
        Path | None, typer.Option(help="A table with labels; the recipe's test rows where left out.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
    ranking: Ranking = False,
    k: TopK = None,
    candidates: Candidates = None,
    users: RankedUsers = None,
    user: UserColumn = None,
    item: ItemColumn = None,
    keep_seen: KeepSeen = False,
    data_dir: DataDir = None,
    json: AsJson = False,
    threads: Threads = None,
    cache: UseCache = True,
) -> None:
    """Measure a saved bundle on its recipe's test rows, or on a table of one's own."""
    from fieldwise.cli.bundles import run_evaluate
    from fieldwise.cli.ranking import ranking_settings

    wanted = ranking_settings(ranking, k, candidates, users, user, item, keep_seen)
    names = column_names(columns)
    run_evaluate(bundle, data, separator, encoding, names, wanted, data_dir, json, threads, cache)


@app.command()
def predict(
    bundle: BundleFolder,
    data: Annotated[Path, typer.Option(help="Rows to score: CSV, TSV, Parquet, Arrow or libFM.")],
    out: Annotated[Path, typer.Option(help="Where to write keys and predictions: .csv, .tsv, .parquet or .arrow.")],
    column: Annotated[str, typer.Option(help="Name of the column of predictions.")] = "prediction",
    logit: Annotated[bool, typer.Option("--logit", help="Write the log-odds too, in a column `logit`.")] = False,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
    threads: Threads = None,
) -> None:
    """Predict the rows of a file; the output has their keys and a column `prediction`, in the file's order.

    A prediction is a probability, or a number for a regression label. A bundle of several labels gives a column each:
    the main label's, and the others' as prediction.NAME.
    """
    from fieldwise.cli.bundles import run_predict

    run_predict(bundle, data, out, column, logit, separator, encoding, column_names(columns), threads)


@app.command()
def calibrate(
    bundle: BundleFolder,
    method: Annotated[str, typer.Option(help="platt, isotonic, or none to remove the one that it keeps.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the calibrated bundle; the same where left out.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Rows with labels that trained nothing; the recipe's validation rows where left out."),
    ] = None,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
    data_dir: DataDir = None,
    json: AsJson = False,
    threads: Threads = None,
    cache: UseCache = True,
) -> None:
    """Fit a calibration on validation rows and keep it in the bundle, whose probabilities it then corrects."""
    from fieldwise.cli.calibrate import run_calibrate

    run_calibrate(bundle, method, out, data, Reading.of(separator, encoding, columns), data_dir, json, threads, cache)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Bundles of `train`, or kept runs of `compare`; the first is the baseline."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write, one HTML file.")] = Path("report.html"),
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="FIELD", help="Measure by the values of a field or column. May be repeated."),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Column of users; the schema's group, if left out.")] = None,
    item: Annotated[str | None, typer.Option(help="Column of items; the first item category's, if left out.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="So many test rows at most, drawn, are explained.")] = 500,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of rows drawn and of the bootstrap.")] = 0,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    threads: Threads = None,
    cache: UseCache = True,
) -> None:
    """Write a page about runs that works offline: metrics, curves, calibration, slices, cold start, explanations."""
    from fieldwise.cli.report import run_report

    run_report(runs, out, slices or [], user, item, rows, seed, data_dir, quiet, threads, cache)


@app.command()
def explain(
    bundle: BundleFolder,
    data: Annotated[Path, typer.Option(help="Rows to explain: CSV, TSV, Parquet, Arrow or libFM.")],
    row: Annotated[int | None, typer.Option(min=0, help="Explain this row alone, counted from 0.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Without --row, so many rows at most, drawn.")] = 1000,
    background: Annotated[
        Path | None,
        typer.Option(help="Rows that stand for what is usual; where left out, the sample rows in the bundle."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="terms, integrated_gradients or occlusion; the model's most exact one where left out."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Of a bundle of several labels; the main one if left out.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many pairs and attention weights to print.")] = 10,
    faithfulness: Annotated[
        bool, typer.Option("--faithfulness", help="Judge explanations by deletion and insertion curves.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of rows and background rows drawn.")] = 0,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
    json: AsJson = False,
    threads: Threads = None,
) -> None:
    """Show why rows have their scores, by field and pair of fields: one row, or what holds for a set of them."""
    from fieldwise.cli.explain import run_explain

    run_explain(
        bundle,
        data,
        row,
        rows,
        background,
        method,
        label,
        top,
        faithfulness,
        seed,
        Reading.of(separator, encoding, columns),
        json,
        threads,
    )


@app.command()
def index(
    bundle: BundleFolder,
    out: Annotated[Path, typer.Option(help="Folder of the index; one that is there is updated.")],
    items: Annotated[
        Path | None, typer.Option(help="The catalogue, one row an item: CSV, TSV, Parquet or Arrow.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column that names an item; the first item category's if left out.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or int8; as the index has it, or float32, where left out.")
    ] = None,
    changes: Annotated[
        bool, typer.Option("--changes", help="--items holds new and changed items alone; the others stay.")
    ] = False,
    remove: Annotated[Path | None, typer.Option(help="A table whose ids leave the index.")] = None,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
    json: AsJson = False,
    threads: Threads = None,
) -> None:
    """Store the item heads of an IntTower for a whole catalogue; an update computes new and changed items alone."""
    from fieldwise.cli.serving import run_index

    reading = Reading.of(separator, encoding, columns)
    run_index(bundle, items, out, id_column, storage, changes, remove, reading, json, threads)


@app.command("evaluate-cascade")
def evaluate_cascade(
    prerank: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The IntTower that made the index.")],
    ranker: Annotated[Path, typer.Argument(metavar="RANKER", help="The bundle that ranks what is left.")],
    index: Annotated[Path, typer.Option(help="Folder of the index.")],
    data: Annotated[Path, typer.Option(help="Rows whose users and contexts are asked for.")],
    k: Annotated[int, typer.Option(min=1, help="Items returned.")] = 20,
    size: Annotated[int, typer.Option("--prerank", min=1, help="Items that the ranking bundle sees.")] = 200,
    probe: Annotated[
        int | None,
        typer.Option(min=1, help="Score only items near to the user: clusters of item heads for each user head."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="So many contexts at most, drawn.")] = 200,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the contexts drawn.")] = 0,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
    json: AsJson = False,
    threads: Threads = None,
) -> None:
    """Measure what pre-ranking loses against ranking every item, and what each stage costs."""
    from fieldwise.cli.serving import run_evaluate_cascade

    reading = Reading.of(separator, encoding, columns)
    run_evaluate_cascade(prerank, ranker, index, data, k, size, probe, rows, seed, reading, json, threads)


@app.command()
def serve(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="The bundle that scores, ranks and explains.")
    ] = None,
    prerank: Annotated[Path | None, typer.Option(help="The IntTower that made the index.")] = None,
    index: Annotated[Path | None, typer.Option(help="Folder of the index, to recommend from.")] = None,
    probe: Annotated[
        int | None,
        typer.Option(min=1, help="Score only items near to the user: clusters of item heads for each user head."),
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(
            envvar="FIELDWISE_USERS",
            show_envvar=True,
            help="Users with their fields: a table, redis://HOST/0#users or postgresql://HOST/DATABASE#users.",
        ),
    ] = None,
    user_id: Annotated[
        str | None,
        typer.Option(help="The column of --users, or --log, that names a user; the schema's where left out."),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            envvar="FIELDWISE_ITEMS",
            show_envvar=True,
            help="Items with their fields, likewise, for rows that name an item alone; else the index's are taken. "
            "A table is also what is recommended from: with --prerank and no --index by an index made of it, with one "
            "bundle by ranking every item.",
        ),
    ] = None,
    item_id: Annotated[
        str | None,
        typer.Option(help="The column of --items, or --log, that names an item; the schema's where left out."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            help="A log of what users have used; items and users are taken from it too, with their latest values, "
            "for want of --items, --index and --users."
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(help="Of --log, a text file: what stands between its cells, if its suffix does not tell."),
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of --log, a text file.")] = "utf-8",
    columns: Annotated[
        str | None, typer.Option(help="Of --log, a text file without a header: its columns, as user,item,click.")
    ] = None,
    exclude_seen: Annotated[
        bool | None,
        typer.Option(
            "--exclude-seen/--include-seen",
            help="Whether items that a user has used, by --log, are left out of recommendations; they are by default.",
        ),
    ] = None,
    max_items: Annotated[
        int, typer.Option(min=1, help="Items that one bundle may rank for a request; for more, --prerank.")
    ] = 20_000,
    title: Annotated[
        str | None, typer.Option(help="The item column that the page names items by; found by rule where left out.")
    ] = None,
    store_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds that a question to --users or --items may take.")
    ] = 0.1,
    on_store_failure: Annotated[
        str, typer.Option(help="refuse: 503 while a store fails; degrade: answer without its fields, and say so.")
    ] = "refuse",
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0: all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="FIELDWISE_TOKEN", show_envvar=True, help="What requests must bear.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of a prediction.")] = 1000,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1 << 20,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds that an answer may take.")] = 10.0,
    batch_window: Annotated[
        float, typer.Option(min=0, help="Milliseconds that a request waits for others to be answered with it.")
    ] = 0.0,
    watch: Annotated[
        float, typer.Option(min=0, help="Seconds between looks for a newer bundle or index on disk; 0: never.")
    ] = 2.0,
    threads: Threads = None,
) -> None:
    """Serve predictions, recommendations and explanations over HTTP, with a page. Ctrl-C or SIGTERM stops it."""
    from fieldwise.cli.serve import ServeOptions, run_serve

    run_serve(
        ServeOptions(
            bundle=bundle,
            prerank=prerank,
            index=index,
            probe=probe,
            max_items=max_items,
            users=users,
            user_id=user_id,
            items=items,
            item_id=item_id,
            log=log,
            reading=Reading.of(separator, encoding, columns),
            exclude_seen=exclude_seen,
            title=title,
            store_timeout=store_timeout,
            on_store_failure=on_store_failure,
            host=host,
            port=port,
            token=token,
            max_rows=max_rows,
            max_body=max_body,
            timeout=timeout,
            batch_window=batch_window,
            watch=watch,
            threads=threads,
        )
    )


@app.command()
def export(
    bundle: BundleFolder,
    out: Annotated[Path, typer.Option(help="Folder for the network, sample rows and an example that runs it.")],
    to: Annotated[str, typer.Option(help="onnx, or aoti: a library compiled for this kind of processor.")] = "onnx",
) -> None:
    """Write a bundle's network for ONNX Runtime or for PyTorch without fieldwise, run it there, and compare."""
    from fieldwise.cli.bundles import run_export

    run_export(bundle, out, to)


@app.command()
def describe(
    recipe: RecipeName,
    settings: Settings = None,
    protocol: Protocol = None,
    data_dir: DataDir = None,
    json: AsJson = False,
    cache: UseCache = True,
) -> None:
    """Show a recipe's fields, sizes, parameter count and memory estimate. Nothing is trained."""
    from fieldwise.runs.recipe import check_recipe

    check_recipe(recipe, settings or [], protocol=protocol)  # before PyTorch is loaded
    from fieldwise.cli.describe import run_describe

    run_describe(recipe, settings or [], protocol, data_dir, json, cache)


@app.command()
def recipes() -> None:
    """List the recipes in the package."""
    from fieldwise.cli.next import suggest
    from fieldwise.runs.recipe import recipe_names

    for name in recipe_names():
        print(name)
    suggest("what one of them means", "describe", "simulated/afm")


@app.command()
def doctor(
    data_dir: DataDir = None,
    json: AsJson = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read versions alone; import nothing and try nothing.")
    ] = False,
) -> None:
    """Show packages, extras and what each is for, devices, compilers, data sets at hand, and what is missing."""
    from fieldwise.cli.doctor import run_doctor

    run_doctor(data_dir, json, quick)
