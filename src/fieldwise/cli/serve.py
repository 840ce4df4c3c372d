"""`fieldwise serve`."""

import contextlib
import gc
import importlib
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import typer

from fieldwise.cli.listening import accepting
from fieldwise.cli.options import command_again, set_threads
from fieldwise.cli.processes import check_count
from fieldwise.cli.serve_options import ServeOptions
from fieldwise.cli.show import say
from fieldwise.cli.signals import usual_ends
from fieldwise.cli.workers import Supervisor, Worker
from fieldwise.errors import ConfigError, FieldwiseError, MissingExtraError
from fieldwise.storage.cores import available_cores

if TYPE_CHECKING:
    from fieldwise.cli.serve_sources import Loader
    from fieldwise.serving.replacement import Live

__all__ = ["ServeOptions", "run"]

SWITCH = 0.001  # seconds until the model's thread yields to the event loop (Python's default: 0.005)
LATE = ("pyarrow", "pydantic.v1", "uvicorn.lifespan.on", "uvicorn.loops.uvloop")  # modules that a server loads itself
GRACE = 8  # seconds to finish open requests when the server stops: container runtimes kill it after 10


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
    check_count("--workers", options.workers)
    usual_ends()
    listening = options.listening.listen()
    fork = sys.platform == "linux"  # macOS ends a process that uses its frameworks after a fork
    kept: list[object] = []  # alive as long as workers are forked
    supervisor = Supervisor(
        command=command_again(),
        count=options.workers,
        listening=listening,
        grace=GRACE,
        say=say,
        ready=lambda: _say_where(options, listening),
        work=partial(_work, options) if fork else None,
        prepare=partial(_prepare, options) if fork else None,
        load=partial(_load_all, options, kept) if fork else lambda: None,
    )
    status = supervisor.run()
    if status:
        raise typer.Exit(status)


def _work(options: ServeOptions, worker: Worker) -> int:
    from fieldwise.cli import ended

    return ended(lambda: _serve(options, worker))


def _prepare(options: ServeOptions, worker: Worker) -> int:
    """Make what workers share. What else this leaves in memory, such as parts of tables, ends with its process."""
    from fieldwise.cli import ended
    from fieldwise.cli.serve_sources import Loader, open_stores

    def make() -> None:
        usual_ends()
        set_threads(_threads(options, worker))
        load = Loader(options, _say_nothing, worker.shared)
        load()
        open_stores(options, load.tables)

    return ended(make)


def _threads(options: ServeOptions, worker: Worker | None) -> int | None:
    """Threads of PyTorch; None for its default."""
    return options.threads or (None if worker is None else max(1, available_cores() // worker.of))


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


def _load_all(options: ServeOptions, kept: list[object]) -> None:
    """Load what forked workers have in common: the modules of a server, and the bundles' vocabularies.

    Nothing here computes with PyTorch or Polars, whose threads a forked process lacks.
    """
    _load_server()
    import fieldwise.serving.balanced
    import fieldwise.serving.connections  # noqa: F401
    from fieldwise.cli.serve_sources import known_values
    from fieldwise.storage.memory import return_freed_memory

    for name in LATE:
        with contextlib.suppress(ImportError):  # not installed
            importlib.import_module(name)
    for folder in options.folders:
        with contextlib.suppress(FieldwiseError, OSError):  # the process that prepares says it
            kept.append(known_values(folder))
    gc.collect()
    return_freed_memory()  # free places would be filled, and so copied, by each worker


def _serve(options: ServeOptions, worker: Worker | None) -> None:
    """Answer requests until the server is stopped, alone or as one of several workers."""
    _load_server()
    import uvicorn

    from fieldwise.cli.serve_sources import artifacts, open_stores
    from fieldwise.serving.balanced import BalancedServer, OpenCounts
    from fieldwise.serving.connection_limits import Connections
    from fieldwise.serving.connections import limited_protocol
    from fieldwise.serving.http import create_app
    from fieldwise.serving.replacement import Watcher
    from fieldwise.storage.memory import return_freed_memory

    of = 1 if worker is None else worker.of
    limits = options.listening.limits(options.max_body, of)
    usual_ends()  # uvicorn stops gracefully by itself
    set_threads(_threads(options, worker))
    tell = say if worker is None or worker.number == 1 else _say_nothing  # all workers would say the same
    manifests = [folder / kind.manifest for folder, kind in artifacts(options).items()]
    state = Watcher.state(manifests)
    load, live = _load_first(options, tell, worker)
    watcher = Watcher(live, load, manifests, every=options.watch, note=tell, state=state)
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
    connections.stops = lambda: server.should_exit
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


def _load_first(options: ServeOptions, tell: Callable[[str], None], worker: Worker | None) -> "tuple[Loader, Live]":
    """The first service; that of a worker started again is the last good one if what is on disk cannot be loaded."""
    from fieldwise.cli.serve_sources import Loader, last_generation
    from fieldwise.serving.replacement import Live

    shared = None if worker is None else worker.shared
    try:
        load = Loader(options, tell, shared)
        return load, Live(load())
    except FieldwiseError as e:
        if shared is None or (kept := last_generation(shared)) is None:
            raise
        load = Loader(options, tell, shared, kept)
        live = Live(load())
        live.refused = str(e)
        say(f"{e}; the last good one is served")
        return load, live


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
