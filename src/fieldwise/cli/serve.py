"""`fieldwise serve`."""

import gc
import os
import socket
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import BundleDevice
from fieldwise.cli.listening import Listening, accepting
from fieldwise.cli.options import Reading, Threads, command_again, set_threads
from fieldwise.cli.show import say
from fieldwise.cli.signals import usual_ends
from fieldwise.cli.workers import Supervisor, Worker
from fieldwise.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from fieldwise.serving.gate import ServerSettings

__all__ = ["ServeOptions", "run"]

SWITCH = 0.001  # seconds until the model's thread yields to the event loop (Python's default: 0.005)
GRACE = 10  # seconds to finish open requests when the server stops


@dataclass(frozen=True, kw_only=True)
class LogReading(Reading):
    """Options for reading the log."""

    separator: Annotated[
        str | None,
        typer.Option(help="Delimiter of the text file given as --log. Default: by its suffix."),
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
            help="Whether to exclude items that a user has interacted with in --log. Default: exclude.",
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
    """Serve predictions, recommendations and explanations over HTTP, with a web page. Stop with Ctrl-C or SIGTERM."""
    _check_sources(options)
    options.listening.check()
    worker = Worker.current()
    if worker is None and options.workers > 1:
        _start_workers(options)
    else:
        _serve(options, worker)


def _start_workers(options: ServeOptions) -> None:
    """Run as the first process, which starts and watches those that answer requests."""
    if sys.platform == "win32":
        raise ConfigError("--workers needs Linux or macOS: leave it out, and start several servers behind a proxy")
    usual_ends()
    listening = options.listening.listen()
    fork = sys.platform == "linux"  # macOS ends a process that uses its frameworks after a fork
    supervisor = Supervisor(
        command=command_again(),
        count=options.workers,
        listening=listening,
        grace=GRACE,
        say=say,
        ready=lambda: _say_where(options, listening),
        work=partial(_work, options) if fork else None,
        load=_load_server if fork else lambda: None,
    )
    status = supervisor.run()
    if status:
        raise typer.Exit(status)


def _work(options: ServeOptions, worker: Worker) -> int:
    from fieldwise.cli import ended

    return ended(lambda: _serve(options, worker))


def _say_where(options: ServeOptions, listening: socket.socket) -> None:
    place = f"http://{options.listening.host}:{listening.getsockname()[1]}"
    workers = f", {options.workers} workers" if options.workers > 1 else ""
    say(f"serving at {place} (web page; API reference: {place}/docs; stop with Ctrl-C{workers})")


def _load_server() -> None:
    """Load the modules of a server.

    Errors:
        MissingExtraError: one is not installed.
    """
    try:
        import uvicorn  # noqa: F401

        import fieldwise.serving.http
    except ImportError as e:
        raise MissingExtraError(f"a server needs {e.name}: pip install 'fieldwise[serve]'") from None
    import fieldwise.cli.serve_sources  # noqa: F401


def _serve(options: ServeOptions, worker: Worker | None) -> None:
    """Answer requests until the server is stopped, alone or as one of several workers."""
    _load_server()
    import uvicorn

    from fieldwise.cli.serve_sources import Loader, open_stores
    from fieldwise.serving.balanced import BalancedServer, OpenCounts
    from fieldwise.serving.connection_limits import Connections
    from fieldwise.serving.connections import limited_protocol
    from fieldwise.serving.http import create_app
    from fieldwise.serving.replacement import Live, Watcher
    from fieldwise.storage.memory import return_freed_memory

    of = 1 if worker is None else worker.of
    limits = options.listening.limits(options.max_body, of)
    usual_ends()  # uvicorn stops gracefully by itself
    set_threads(options.threads or (None if of == 1 else max(1, (os.cpu_count() or 1) // of)))
    tell = say if worker is None or worker.number == 1 else _say_nothing  # all workers would say the same
    load = Loader(options, tell, None if worker is None else worker.shared)
    state = Watcher.state(load.manifests)
    live = Live(load())
    live.service.warm_up()
    watcher = Watcher(live, load, load.manifests, every=options.watch, note=tell, state=state)
    app = create_app(live, options.server_settings(), open_stores(options, load.tables), title=options.title)
    sys.setswitchinterval(SWITCH)
    connections = Connections(limits, app.state.registry, app.state.shares, app.state.early)
    keep = max(1, round(limits.idle_timeout))
    config = uvicorn.Config(
        app,
        http=limited_protocol(connections),
        ws="none",
        log_level="warning",
        timeout_keep_alive=keep,
        timeout_graceful_shutdown=GRACE,
    )
    if worker is None:
        listening = options.listening.listen()
        _say_where(options, listening)
        server, sockets = uvicorn.Server(config), accepting(listening)
    else:
        counts = OpenCounts(worker.counts, worker.of, worker.number - 1)
        connections.told = counts.tell
        server, sockets = BalancedServer(config, worker.socket(), counts), []
    gc.collect()
    return_freed_memory()  # of reading the tables
    gc.freeze()  # long-lived: otherwise garbage collection blocks all requests for 0.3 s at times
    if options.watch:
        watcher.start()
    if worker is not None:
        worker.begin()  # the socket has listened all along
    try:
        server.run(sockets=sockets)
    finally:
        watcher.stop()


def _say_nothing(_: str) -> None:
    """Say nothing."""


def _check_sources(options: ServeOptions) -> None:
    if options.prerank is None and options.index is not None:
        raise ConfigError("--index is for recommendations with two bundles: also give --prerank, an IntTower")
    if options.prerank is not None and options.index is None and options.items is None and options.log is None:
        raise ConfigError("--prerank needs items to recommend: give --index, --items, or a --log with items")
    if options.prerank is not None and options.index is None and options.items is not None and "://" in options.items:
        raise ConfigError("an index is built from a table: give --index, or a file as --items")
    if options.reading.given and options.log is None:
        raise ConfigError("--separator, --encoding and --columns apply to --log, which is not given")
    if options.exclude_seen and options.log is None:
        raise ConfigError("--exclude-seen needs a log of interactions: give --log")
