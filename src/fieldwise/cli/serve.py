"""`fieldwise serve`."""

import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.listening import Listening
from fieldwise.cli.options import Reading, Threads, set_threads
from fieldwise.cli.show import say
from fieldwise.cli.signals import usual_ends
from fieldwise.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from fieldwise.serving.gate import ServerSettings

__all__ = ["ServeOptions", "run"]

SWITCH = 0.001  # seconds until the model's thread lets the one that listens and asks stores go on; Python's are 0.005
GRACE = 10  # seconds for answers that are under way when the server stops


@dataclass(frozen=True, kw_only=True)
class LogReading(Reading):
    """How the log is read."""

    separator: Annotated[
        str | None,
        typer.Option(help="Of --log, a text file: what stands between its cells, if its suffix does not tell."),
    ] = None
    encoding: Annotated[str, typer.Option(help="Of --log, a text file.")] = "utf-8"
    columns: Annotated[
        str | None, typer.Option(help="Of --log, a text file without a header: its columns, as user,item,click.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What `fieldwise serve` is asked for."""

    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="The bundle that scores, ranks and explains.")
    ] = None
    prerank: Annotated[Path | None, typer.Option(help="The IntTower that made the index.")] = None
    index: Annotated[Path | None, typer.Option(help="Folder of the index, to recommend from.")] = None
    nprobe: Annotated[
        int | None,
        typer.Option(min=1, help="Score only items near to the user: clusters of item heads for each user head."),
    ] = None
    users: Annotated[
        str | None,
        typer.Option(
            envvar="FIELDWISE_USERS",
            show_envvar=True,
            help="Users with their fields: a table, redis://HOST/0#users or postgresql://HOST/DATABASE#users.",
        ),
    ] = None
    user_id: Annotated[
        str | None,
        typer.Option(help="The column of --users, or --log, that names a user; the schema's where left out."),
    ] = None
    items: Annotated[
        str | None,
        typer.Option(
            envvar="FIELDWISE_ITEMS",
            show_envvar=True,
            help="Items with their fields, likewise, for rows that name an item alone; else the index's are taken. "
            "A table is also what is recommended from: with --prerank and no --index by an index made of it, with one "
            "bundle by ranking every item.",
        ),
    ] = None
    item_id: Annotated[
        str | None,
        typer.Option(help="The column of --items, or --log, that names an item; the schema's where left out."),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(
            help="A log of what users have used; items and users are taken from it too, with their latest values, "
            "for want of --items, --index and --users."
        ),
    ] = None
    reading: LogReading
    exclude_seen: Annotated[
        bool | None,
        typer.Option(
            "--exclude-seen/--include-seen",
            help="Whether items that a user has used, by --log, are left out of recommendations; they are by default.",
        ),
    ] = None
    max_items: Annotated[
        int, typer.Option(min=1, help="Items that one bundle may rank for a request; for more, --prerank.")
    ] = 20_000
    title: Annotated[
        str | None, typer.Option(help="The item column that the page names items by; found by rule where left out.")
    ] = None
    store_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds that a question to --users or --items may take.")
    ] = 0.1
    on_store_failure: Annotated[
        str, typer.Option(help="refuse: 503 while a store fails; degrade: answer without its fields, and say so.")
    ] = "refuse"
    listening: Listening
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of a prediction.")] = 1000
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1 << 20
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds that an answer may take.")] = 10.0
    batch_window: Annotated[
        float, typer.Option(min=0, help="Milliseconds that a request waits for others to be answered with it.")
    ] = 0.0
    watch: Annotated[
        float, typer.Option(min=0, help="Seconds between looks for a newer bundle or index on disk; 0: never.")
    ] = 2.0
    threads: Threads = None

    @property
    def folders(self) -> list[Path]:
        """Of the bundles."""
        return [folder for folder in (self.bundle, self.prerank) if folder is not None]

    def server_settings(self) -> "ServerSettings":
        """The limits and the token."""
        from fieldwise.serving.gate import ServerSettings

        return ServerSettings(
            token=self.listening.token,
            allow_hosts=self.listening.hosts,
            max_rows=self.max_rows,
            max_body=self.max_body,
            timeout=self.timeout,
            batch_window=self.batch_window / 1000,
        )


def run(options: ServeOptions) -> None:
    """Serve predictions, recommendations and explanations over HTTP, with a page. Ctrl-C or SIGTERM stops it."""
    try:
        import uvicorn

        from fieldwise.serving.connections import Connections, limited_protocol
        from fieldwise.serving.http import create_app
    except ImportError as e:
        raise MissingExtraError(f"a server needs {e.name}: pip install 'fieldwise[serve]'") from None
    from fieldwise.cli.serve_sources import Loader, open_stores
    from fieldwise.serving.replacement import Live, Watcher

    _check_sources(options)
    options.listening.check()
    limits = options.listening.limits(options.max_body)
    usual_ends()  # uvicorn stops gracefully by itself
    set_threads(options.threads)
    load = Loader(options)
    state = Watcher.state(load.manifests)
    live = Live(load())
    live.service.warm_up()
    watcher = Watcher(live, load, load.manifests, every=options.watch, note=say, state=state)
    app = create_app(live, options.server_settings(), open_stores(options, load.tables), title=options.title)
    sys.setswitchinterval(SWITCH)
    listening = options.listening.listen()
    place = f"http://{options.listening.host}:{listening.getsockname()[1]}"
    say(f"serving at {place} (a page to look at; {place}/docs is the API's reference; Ctrl-C stops it)")
    protocol = limited_protocol(Connections(limits, app.state.registry))
    keep = max(1, round(limits.idle_timeout))
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=protocol, ws="none", log_level="warning", timeout_keep_alive=keep, timeout_graceful_shutdown=GRACE
        )
    )
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it for garbage would hold all requests for 0.3 s at times
    if options.watch:
        watcher.start()
    try:
        server.run(sockets=[listening])
    finally:
        watcher.stop()


def _check_sources(options: ServeOptions) -> None:
    if options.prerank is None and options.index is not None:
        raise ConfigError("--index is for recommendations by two bundles: give --prerank, an IntTower, too")
    if options.prerank is not None and options.index is None and options.items is None and options.log is None:
        raise ConfigError("--prerank needs items to recommend: give --index, or --items, or a --log that has them")
    if options.prerank is not None and options.index is None and options.items is not None and "://" in options.items:
        raise ConfigError("an index is made of a table: give --index, or a file as --items")
    if options.reading.given and options.log is None:
        raise ConfigError("--separator, --encoding and --columns say how to read --log, which is not given")
    if options.exclude_seen and options.log is None:
        raise ConfigError("--exclude-seen needs to know what users have used: give --log")
