"""`fieldwise features`: features of a bundle's recipe for a server, and for the rows of a log."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.errors import ConfigError
from fieldwise.storage.outputs import check_output

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.charts import Chart
    from fieldwise.features.log_features import LogFeatures
    from fieldwise.runs.recipe import Recipe

ON_TIME = "on time"
HOUR_US = 3600 * 10**6
INSTEAD = "train a recipe with [[features]]"


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Options of both commands."""

    log: Annotated[Path, Argument(metavar="LOG", help=f"The rows: {opt.READ_FORMATS}.")]
    bundle: Annotated[Path, Option(help="The folder that `train` saved.")]
    out: Annotated[Path, Option(help=f"File to write: {opt.WRITTEN_FORMATS}.")]
    reading: opt.Reading
    overwrite: opt.Overwrite = False


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Options of `fieldwise features latest`."""

    id_column: Annotated[str, Option("--id", help="The key: the column of user or item ids.")]
    at: Annotated[
        str | None,
        Option(help="Moment in UTC. Default: a second after the log's last row."),
    ] = None
    ttl: Annotated[
        str | None, Option(help="Age at which a server takes them as missing, such as 1d.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Range:
    """Options of `fieldwise features backfill`."""

    since: Annotated[str | None, Option(help="First moment, in UTC.")] = None
    until: Annotated[str | None, Option(help="Moment that the rows come before, in UTC.")] = None


def latest(options: FeatureOptions, moment: Moment) -> None:
    """Write the present features of all users or items.

    `fieldwise serve --users FILE` reads the file, and `fieldwise store load` writes it into Redis or
    PostgreSQL.
    """
    from fieldwise.features.latest import latest_features

    table, features = _log_and_features(options)
    rows = latest_features(table, features, moment.id_column, at=moment.at, ttl=moment.ttl)
    _write(rows, options.out)


def backfill(options: FeatureOptions, moments: Range) -> None:
    """Write the rows of a log with their features, each as of its own time."""
    from fieldwise.features.latest import backfilled

    table, features = _log_and_features(options)
    _write(backfilled(table, features, since=moments.since, until=moments.until), options.out)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of `fieldwise features check`."""

    logged: Annotated[
        Path, Argument(metavar="LOGGED", help="Requests: keys, times, and features as served.")
    ]
    log: Annotated[Path, Option(help="The rows from which they are computed.")]
    bundle: Annotated[Path, Option(help="The folder that `train` saved.")]
    share: Annotated[float, Option(min=0, max=1, help="Share of the keys to compare.")] = 1.0
    reading: opt.Reading
    json: opt.AsJson = False


def check(options: CheckOptions) -> None:
    """Compare features that a server logged with those of the same moments in a log."""
    from fieldwise.features.latest import skew

    recipe, features = _features_of(options.bundle)
    logged = options.reading.table(options.logged, recipe.text_columns)
    table = options.reading.table(options.log, recipe.text_columns)
    figures = skew(logged, table, features, share=options.share)
    if options.json:
        show.print_json({"features": figures.to_dicts()})
        return
    compared = figures.get_column("feature").to_list()
    others = [name for name in features.made if name not in compared]
    if others:
        show.say(f"not compared, since {options.logged} has no such columns: {', '.join(others)}")
    for row in figures.iter_rows(named=True):
        largest = f", by up to {row['largest']:.6g}" if row["largest"] else ""
        print(f"{row['feature']}: {row['unequal']:,} of {row['rows']:,} rows differ{largest}")


@dataclass(frozen=True, kw_only=True)
class DelayOptions:
    """Options of `fieldwise features delay`."""

    bundle: opt.BundleFolder
    by: Annotated[str, Option(help="How late the features are, such as 1h,1d.")] = "1h,1d"
    picture: Annotated[
        Path | None, Option(help="SVG file of the main metric by hours of delay to write.")
    ] = None
    overwrite: opt.Overwrite = False
    json: opt.AsJson = False


def delay(options: DelayOptions) -> None:
    """Score the test rows with features as they would have been some time before, without training."""
    from fieldwise.cli.resources import data_folder, load_bundle, rows_of_bundle
    from fieldwise.data.prepare.labels import labelled_rows
    from fieldwise.evaluation.words import remarks
    from fieldwise.features.definitions import microseconds
    from fieldwise.features.latest import late_features
    from fieldwise.runs.raw_table import load_frame
    from fieldwise.storage.scratch import NO_LIMIT

    if options.picture is not None:
        check_output(
            options.picture,
            overwrite=options.overwrite,
            inputs=[options.bundle],
            argument="picture",
        )
    bundle = load_bundle(options.bundle, "cpu")
    recipe, features = _features_of_bundle(bundle, options.bundle)
    _, (test,) = rows_of_bundle(bundle, options.bundle, ["test"], INSTEAD)
    log = load_frame(recipe.data, data_folder(recipe.data.name), recipe.text_columns)
    rows = labelled_rows(test, bundle.schema, budget=NO_LIMIT)
    metrics = {}
    delays = ["0s", *options.by.split(",")]
    for by in delays:
        late = replace(rows, frame=late_features(rows.frame, log, features, by))
        title = ON_TIME if by == "0s" else f"{by} late"
        metrics[title] = bundle.metrics(late, one_class=True)
    if options.picture is not None:
        hours = [microseconds(by, "--by") / HOUR_US for by in delays]
        _picture(hours, list(metrics.values()), bundle.schema.label.task).save(options.picture)
    if options.json:
        show.print_json({"bundle": str(options.bundle), "metrics": metrics})
        return
    show.show_metrics(metrics, remarks_on=())
    for sentence in remarks(metrics[ON_TIME], "test rows"):
        show.say(sentence)


def _picture(hours: list[float], metrics: list[dict[str, float]], task: str) -> "Chart":
    """The main metric of the test rows by how late the features were."""
    from fieldwise.charts import Axis, Line, line_chart
    from fieldwise.evaluation.metrics import compared

    name = compared(task)[0]
    order = sorted(range(len(hours)), key=hours.__getitem__)
    line = Line(
        name="",
        x=[hours[number] for number in order],
        y=[metrics[number][name] for number in order],
    )
    title = f"{name} by the delay of the features"
    return line_chart([line], Axis(label="hours late"), Axis(label=name), title=title)


def _log_and_features(options: FeatureOptions) -> "tuple[pl.DataFrame, LogFeatures]":
    """The log, and the features of the bundle's recipe, once it is known that the result can be written."""
    check_output(options.out, overwrite=options.overwrite, inputs=[options.bundle, options.log])
    recipe, features = _features_of(options.bundle)
    return options.reading.table(options.log, recipe.text_columns), features


def _features_of(folder: Path) -> "tuple[Recipe, LogFeatures]":
    """The recipe of a bundle and its features; a ConfigError if it has none."""
    from fieldwise.bundle.bundle import Bundle

    return _features_of_bundle(Bundle.load(folder), folder)


def _features_of_bundle(bundle: "Bundle", folder: Path) -> "tuple[Recipe, LogFeatures]":
    from fieldwise.features.log_features import LogFeatures
    from fieldwise.runs.rows_of_run import recipe_of

    recipe = recipe_of(bundle, folder, INSTEAD)
    if not recipe.features:
        raise ConfigError(f"the recipe of the bundle {folder} has no features: {INSTEAD}")
    return recipe, LogFeatures(features=recipe.features, schema=recipe.schema)


def _write(rows: "pl.DataFrame", out: Path) -> None:
    from fieldwise.data.read.table_writer import write_table

    write_table(rows, out)
    show.say(f"{show.counted(rows.height, 'row')} written to {out} ({', '.join(rows.columns)})")
