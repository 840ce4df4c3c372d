"""`fieldwise serve`: a server in this process, or in several workers."""

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

from fieldwise.cli.outcome import ended
from fieldwise.cli.processes import check_count
from fieldwise.cli.serve_options import ServeOptions
from fieldwise.cli.show import say
from fieldwise.cli.signals import end_with_parent, restore_signals
from fieldwise.errors import ConfigError, FieldwiseError, MissingExtraError
from fieldwise.storage.files import scratch_folder
from fieldwise.storage.machine import available_cores, threads_set

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Config

SWITCH_INTERVAL_S = 0.001
"""Until the model's thread yields to the event loop (Python's default: 0.005)."""
SHUTDOWN_TIMEOUT_S = 8
"""To finish open requests when the server stops: container runtimes kill it after 10."""
CONNECTIONS_PER_WORKER = 1000
IDLE_CONNECTION_TIMEOUT_S = 5
RESTART_DELAY_S = 1.0
"""Before a worker that cannot start again ends, and is tried once more."""
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Read by prometheus_client when it is imported."""
METRICS_FOLDER = "metrics"
SHARED_FOLDER = "shared"


def run(options: ServeOptions) -> None:
    """Serve predictions and recommendations, with a web page.

    It explains them too, over HTTP. Stop it with Ctrl-C or SIGTERM.
    """
    options.check()
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
    except ImportError as e:
        raise MissingExtraError(
            f"a server needs {e.name}: pip install 'fieldwise[serve]'"
        ) from None
    restore_signals()  # uvicorn stops gracefully by itself
    configured: Callable[..., Config] = partial(
        uvicorn.Config,
        workers=options.workers,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_PER_WORKER,
        timeout_keep_alive=IDLE_CONNECTION_TIMEOUT_S,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        timeout_worker_healthcheck=SHUTDOWN_TIMEOUT_S,
    )
    if options.workers > 1:
        _serve_in_workers(options, configured)
        return
    app = _application(options, None)
    with options.listen() as listening:
        _say_address(options, listening)
        uvicorn.Server(configured(app)).run(sockets=[listening])


def _serve_in_workers(options: ServeOptions, configured: "Callable[..., Config]") -> None:
    """Serve in several processes, which share the memory of the model."""
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess

    if sys.platform == "win32":
        raise ConfigError(
            "--workers needs Linux or macOS: leave it out, and start several servers behind a proxy"
        )
    check_count("--workers", options.workers)
    with scratch_folder() as folder, options.listen() as listening:
        for name in (METRICS_FOLDER, SHARED_FOLDER):
            (folder / name).mkdir()
        os.environ[METRICS_VARIABLE] = str(folder / METRICS_FOLDER)
        _prepare_shared_files(options, folder)
        _say_address(options, listening)
        config = configured(partial(_worker_application, options, folder), factory=True)
        supervisor = Multiprocess(config, sockets=[listening])
        supervisor.run()
        if any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes):
            raise typer.Exit(1)


def _prepare_shared_files(options: ServeOptions, folder: Path) -> None:
    """Make the shared files in a separate process, so that the memory that this takes is free afterwards."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_make_shared_files, args=(options, folder))
    process.start()
    process.join()
    exit_code = process.exitcode
    if not exit_code:
        return
    if exit_code > 0:
        raise typer.Exit(exit_code)
    say(f"the process that loads the model ended with signal {-exit_code}; memory may have run out")
    raise typer.Exit(128 - exit_code)


def _make_shared_files(options: ServeOptions, folder: Path) -> None:
    from fieldwise.cli.serve_sources import Loader

    def make() -> None:
        _divide_cores(options.workers)
        load = Loader(options, say, folder / SHARED_FOLDER)
        load()
        load.stores()

    end_with_parent()
    sys.exit(ended(make))


def _worker_application(options: ServeOptions, folder: Path) -> "FastAPI":
    """The application of one of several workers; a worker that cannot start exits, and is started again."""
    end_with_parent()
    _remove_gauges_of_dead_workers()
    try:
        # uvicorn calls this in its event loop, and checks of stores need one
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_application, options, folder / SHARED_FOLDER).result()
    except FieldwiseError as e:
        say(str(e))
        # others serve meanwhile: files and stores were good when the server started
        time.sleep(RESTART_DELAY_S)
        sys.exit(1)


def _remove_gauges_of_dead_workers() -> None:
    """Remove the live gauges of workers that have ended; their counters stay."""
    for name in glob.glob(f"{os.environ[METRICS_VARIABLE]}/gauge_live*_*.db"):
        process_id = int(Path(name).stem.rpartition("_")[2])
        try:
            os.kill(process_id, 0)
        except (ProcessLookupError, PermissionError):  # the number of another user's process now
            Path(name).unlink(missing_ok=True)


def _application(options: ServeOptions, shared: Path | None) -> "FastAPI":
    """The application with the current files, which are watched from then on."""
    from fieldwise.bundle.bundle import BUNDLE
    from fieldwise.cli.serve_sources import Loader
    from fieldwise.serving.http import ServerSettings, create_app
    from fieldwise.serving.index import INDEX
    from fieldwise.serving.replacement import Live, Watcher
    from fieldwise.storage.machine import return_freed_memory

    _divide_cores(options.workers)
    # these change when they are replaced
    watched_files = [folder / BUNDLE.manifest for folder in options.folders]
    if options.index is not None:
        watched_files.append(options.index / INDEX.manifest)
    state = Watcher.state(watched_files)
    # With several workers, the process that made the shared files has printed the messages.
    tell = say if shared is None else _say_nothing
    load = Loader(options, tell, shared)
    live = Live(load())
    settings = ServerSettings(
        max_body=options.max_body,
        timeout=options.timeout,
        token=options.token,
        allow_hosts=_allowed_hosts(options),
    )
    app = create_app(live, settings, load.stores())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    return_freed_memory()  # of reading the tables
    gc.freeze()  # long-lived: otherwise garbage collection blocks all requests for 0.3 s at times
    if options.watch:
        Watcher(live, load, watched_files, every=options.watch, note=say, state=state).start()
    return app


def _allowed_hosts(options: ServeOptions) -> frozenset[str] | None:
    """The host names that requests may use; None for any."""
    if options.allow_host is not None:
        if "*" in options.allow_host:
            return None
        return frozenset(name.lower() for name in options.allow_host)
    if options.token is None and options.is_loopback:
        host = options.host.lower()
        return frozenset({"localhost", "127.0.0.1", "[::1]", host, f"[{host}]"})
    return None


def _divide_cores(workers: int) -> None:
    """Give each of several workers its share of the cores, unless OMP_NUM_THREADS says how many threads it has."""
    if workers > 1 and threads_set() is None:
        import torch

        torch.set_num_threads(max(1, available_cores() // workers))


def _say_nothing(sentence: str) -> None:
    pass


def _say_address(options: ServeOptions, listening: socket.socket) -> None:
    address = f"http://{options.host}:{listening.getsockname()[1]}"
    workers = f", {options.workers} workers" if options.workers > 1 else ""
    say(
        f"serving at {address} (web page; API reference: {address}/docs; stop with Ctrl-C{workers})"
    )
