"""`fieldwise serve`."""

import gc
import glob
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fieldwise.cli.options import set_threads
from fieldwise.cli.processes import check_count
from fieldwise.cli.serve_options import ServeOptions
from fieldwise.cli.show import say
from fieldwise.cli.signals import end_with_parent, usual_ends
from fieldwise.errors import ConfigError, FieldwiseError, MissingExtraError
from fieldwise.storage.cores import available_cores
from fieldwise.storage.folders import scratch_folder

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Config

    from fieldwise.cli.serve_sources import Loader
    from fieldwise.serving.replacement import Live

__all__ = ["ServeOptions", "run"]

SWITCH = 0.001  # seconds until the model's thread yields to the event loop (Python's default: 0.005)
GRACE = 8  # seconds to finish open requests when the server stops: container runtimes kill it after 10
PAUSE = 1.0  # seconds before a worker that cannot start again ends, and is tried once more
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
METRICS_FOLDER, SHARED = "metrics", "shared"


def run(options: ServeOptions) -> None:
    """Serve predictions, recommendations and explanations over HTTP, with a web page. Stop with Ctrl-C or SIGTERM."""
    _check_sources(options)
    options.listening.check()
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
        from uvicorn.config import STARTUP_FAILURE
        from uvicorn.supervisors import Multiprocess
    except ImportError as e:
        raise MissingExtraError(f"a server needs {e.name}: pip install 'fieldwise[serve]'") from None
    usual_ends()  # uvicorn stops gracefully by itself
    if options.workers == 1:
        app = _application(options, None)
        with options.listening.listen() as listening:
            _say_where(options, listening)
            uvicorn.Server(_configured(options, app)).run(sockets=[listening])
        return
    if sys.platform == "win32":
        raise ConfigError("--workers needs Linux or macOS: leave it out, and start several servers behind a proxy")
    check_count("--workers", options.workers)
    with scratch_folder() as folder, options.listening.listen() as listening:
        for name in (METRICS_FOLDER, SHARED):
            (folder / name).mkdir()
        os.environ[METRICS] = str(folder / METRICS_FOLDER)
        _prepare(options, folder)
        _say_where(options, listening)
        config = _configured(options, partial(_worker_application, options, folder), factory=True)
        supervisor = Multiprocess(config, sockets=[listening])
        supervisor.run()
        if any(one.exitcode == STARTUP_FAILURE for one in supervisor.processes):
            raise typer.Exit(1)


def _configured(options: ServeOptions, app: "Callable[[], FastAPI] | FastAPI", *, factory: bool = False) -> "Config":
    """Uvicorn's settings."""
    import uvicorn

    return uvicorn.Config(
        app,
        factory=factory,
        workers=options.workers,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=options.listening.max_connections,
        timeout_keep_alive=options.listening.idle_timeout,
        timeout_graceful_shutdown=GRACE,
        timeout_worker_healthcheck=GRACE,
    )


def _prepare(options: ServeOptions, folder: Path) -> None:
    """Make what workers share, in a process of its own: what else this leaves in memory ends with it."""
    preparing = multiprocessing.get_context("spawn").Process(target=_make_shared, args=(options, folder))
    preparing.start()
    preparing.join()
    if preparing.exitcode:
        code = preparing.exitcode
        if code < 0:
            say(f"the process that loads the model ended with signal {-code}; memory may have run out")
        raise typer.Exit(code if code > 0 else 128 - code)


def _make_shared(options: ServeOptions, folder: Path) -> None:
    from fieldwise.cli import ended
    from fieldwise.cli.serve_sources import Loader, open_stores

    def make() -> None:
        set_threads(_threads(options))
        load = Loader(options, say, folder / SHARED)
        load()
        open_stores(options, load.tables)

    end_with_parent()
    sys.exit(ended(make))


def _worker_application(options: ServeOptions, folder: Path) -> "FastAPI":
    """The application of one of several workers.

    uvicorn ends the server if it cannot be made at the start; one that is started again is tried again.
    """
    from uvicorn.config import STARTUP_FAILURE

    from fieldwise.cli.serve_sources import last_generation

    end_with_parent()
    _forget_metrics_of_the_dead()
    try:
        with ThreadPoolExecutor(1) as thread:  # uvicorn calls this in its event loop, and checks of stores need one
            return thread.submit(_application, options, folder / SHARED).result()
    except FieldwiseError as e:
        say(str(e))
        if last_generation(folder / SHARED) is None:
            sys.exit(STARTUP_FAILURE)
        time.sleep(PAUSE)  # others serve meanwhile: a store or a table may be back soon
        sys.exit(1)


def _application(options: ServeOptions, shared: Path | None) -> "FastAPI":
    """The application, with what is on disk now, which is watched from then on."""
    from fieldwise.cli.serve_sources import artifacts, open_stores
    from fieldwise.serving.http import create_app
    from fieldwise.serving.replacement import Watcher
    from fieldwise.storage.memory import return_freed_memory

    set_threads(_threads(options))
    manifests = [folder / kind.manifest for folder, kind in artifacts(options).items()]
    state = Watcher.state(manifests)
    load, live = _load_first(options, shared)
    app = create_app(live, options.server_settings(), open_stores(options, load.tables), title=options.title)
    sys.setswitchinterval(SWITCH)
    gc.collect()
    return_freed_memory()  # of reading the tables
    gc.freeze()  # long-lived: otherwise garbage collection blocks all requests for 0.3 s at times
    if options.watch:
        Watcher(live, load, manifests, every=options.watch, note=say, state=state).start()
    return app


def _load_first(options: ServeOptions, shared: Path | None) -> "tuple[Loader, Live]":
    """The first service; that of a worker started again is the last good one if what is on disk cannot be loaded."""
    from fieldwise.cli.serve_sources import Loader, last_generation
    from fieldwise.serving.replacement import Live

    tell = say if shared is None else _say_nothing  # the process that made what workers share has said it
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


def _threads(options: ServeOptions) -> int | None:
    """Threads of PyTorch; None for its default."""
    return options.threads or (None if options.workers == 1 else max(1, available_cores() // options.workers))


def _forget_metrics_of_the_dead() -> None:
    """Remove dead workers' gauges of the present; counters stay."""
    for name in glob.glob(f"{os.environ[METRICS]}/gauge_live*_*.db"):
        try:
            os.kill(int(Path(name).stem.rpartition("_")[2]), 0)
        except (ProcessLookupError, PermissionError):  # the number of another user's process now
            Path(name).unlink(missing_ok=True)


def _say_where(options: ServeOptions, listening: socket.socket) -> None:
    place = f"http://{options.listening.host}:{listening.getsockname()[1]}"
    workers = f", {options.workers} workers" if options.workers > 1 else ""
    say(f"serving at {place} (web page; API reference: {place}/docs; stop with Ctrl-C{workers})")


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
