"""Options of `fieldwise serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import BundleDevice
from fieldwise.cli.listening import Listening
from fieldwise.cli.options import Reading, Threads

if TYPE_CHECKING:
    from fieldwise.serving.middleware import ServerSettings

__all__ = ["LogReading", "ServeOptions"]


@dataclass(frozen=True, kw_only=True)
class LogReading(Reading):
    """Options for reading the log."""

    separator: Annotated[
        str | None,
        typer.Option(help="Delimiter of the text file given as --log. Default: detected."),
    ] = None
    encoding: Annotated[str, typer.Option(help="Encoding of the text file given as --log.")] = "utf-8"
    columns: Annotated[
        str | None,
        typer.Option(help="Column names of a text file without a header given as --log, e.g. user,item,click."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `fieldwise serve`."""

    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="The bundle that scores, ranks and explains.")
    ] = None
    prerank: Annotated[Path | None, typer.Option(help="The IntTower that made the index.")] = None
    index: Annotated[Path | None, typer.Option(help="Folder of the item index.")] = None
    map_index: Annotated[
        bool,
        typer.Option(
            "--map-index",
            help="Map the index's files instead of reading them: processes share the memory. Nobody may write into the "
            "files then; `fieldwise index` puts others in their place.",
        ),
    ] = False
    nprobe: Annotated[
        int | None,
        typer.Option(
            min=1, help="Approximate search: item-head clusters probed per user head. Default: score all items."
        ),
    ] = None
    users: Annotated[
        str | None,
        typer.Option(
            envvar="FIELDWISE_USERS",
            show_envvar=True,
            help="User features: a table, redis://HOST/0#users or postgresql://HOST/DATABASE#users.",
        ),
    ] = None
    user_id: Annotated[
        str | None,
        typer.Option(help="Column of user ids in --users or --log. Default: the schema's."),
    ] = None
    items: Annotated[
        str | None,
        typer.Option(
            envvar="FIELDWISE_ITEMS",
            show_envvar=True,
            help="Item features, likewise, to complete rows that only have an item id. Default: the index's catalogue. "
            "A table is also the catalogue to recommend from: with --prerank and no --index it is indexed at the "
            "start; "
            "with one bundle every item is ranked.",
        ),
    ] = None
    item_id: Annotated[
        str | None,
        typer.Option(help="Column of item ids in --items or --log. Default: the schema's."),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(
            help="A log of interactions. Without --items, --index and --users, the latest values of items and users "
            "are taken from it too."
        ),
    ] = None
    reading: LogReading
    exclude_seen: Annotated[
        bool | None,
        typer.Option(
            "--exclude-seen/--include-seen",
            help="Exclude all items of a user's rows in --log, or none. Default: those of positive rows.",
        ),
    ] = None
    max_items: Annotated[
        int,
        typer.Option(min=1, help="Maximum number of items that one bundle ranks per request; use --prerank for more."),
    ] = 20_000
    title: Annotated[str | None, typer.Option(help="Item column that the page shows as title. Default: detected.")] = (
        None
    )
    store_timeout: Annotated[
        float, typer.Option(min=0.001, help="Timeout in seconds of a lookup in --users or --items.")
    ] = 0.1
    on_store_failure: Annotated[
        str,
        typer.Option(
            help="refuse: respond with 503 while a store fails; degrade: answer without its features and report it."
        ),
    ] = "refuse"
    listening: Listening
    max_rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows per prediction.")] = 1000
    max_body: Annotated[int, typer.Option(min=1, help="Maximum size of a request in bytes.")] = 1 << 20
    timeout: Annotated[float, typer.Option(min=0.01, help="Timeout in seconds of a request.")] = 10.0
    batch_window: Annotated[
        float, typer.Option(min=0, help="Milliseconds to wait for more requests to form a batch.")
    ] = 0.0
    workers: Annotated[
        int, typer.Option(min=1, help="Number of processes that answer requests; they share the memory of the model.")
    ] = 1
    watch: Annotated[
        float, typer.Option(min=0, help="Seconds between checks for a newer bundle or index on disk; 0: never.")
    ] = 2.0
    device: BundleDevice = "cpu"
    threads: Threads = None

    @property
    def folders(self) -> list[Path]:
        """Folders of the bundles."""
        return [folder for folder in (self.bundle, self.prerank) if folder is not None]

    def server_settings(self) -> "ServerSettings":
        """Limits and token for the server."""
        from fieldwise.serving.middleware import ServerSettings

        return ServerSettings(
            token=self.listening.token,
            allow_hosts=self.listening.hosts,
            max_rows=self.max_rows,
            max_body=self.max_body,
            timeout=self.timeout,
            batch_window=self.batch_window / 1000,
        )
