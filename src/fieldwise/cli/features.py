"""`fieldwise features`: features of a bundle's recipe for a server, and for the rows of a log."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import show

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.features.log_features import LogFeatures


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Options of both commands."""

    log: Annotated[Path, Argument(metavar="LOG", help=f"The rows: {opt.READ_FORMATS}.")]
    bundle: Annotated[Path, Option(help="The folder that `train` saved.")]
    out: Annotated[Path, Option(help=f"File to write: {opt.WRITTEN_FORMATS}.")]
    reading: opt.Reading


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


def _log_and_features(options: FeatureOptions) -> "tuple[pl.DataFrame, LogFeatures]":
    """The log, and the features of the bundle's recipe."""
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.features.log_features import LogFeatures
    from fieldwise.runs.rows_of_run import recipe_of

    instead = "train a recipe with [[features]]"
    recipe = recipe_of(Bundle.load(options.bundle), options.bundle, instead)
    table = options.reading.table(options.log, recipe.text_columns)
    return table, LogFeatures(features=recipe.features, schema=recipe.schema)


def _write(rows: "pl.DataFrame", out: Path) -> None:
    from fieldwise.data.read.table_writer import write_table

    write_table(rows, out)
    show.say(f"{show.counted(rows.height, 'row')} written to {out} ({', '.join(rows.columns)})")
