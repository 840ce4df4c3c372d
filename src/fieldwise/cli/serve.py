"""`fieldwise serve`: a server in this process, or in several workers."""

import gc
import ipaddress
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources
from fieldwise.cli.outcome import ended
from fieldwise.cli.processes import check_count
from fieldwise.cli.show import say
from fieldwise.cli.signals import end_with_parent, restore_signals
from fieldwise.errors import ConfigError, FieldwiseError, MissingExtraError
from fieldwise.serving.settings import METRICS_FOLDER_VARIABLE, ServerSettings, Sources
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.machine import available_cores, threads_set

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn import Config

TOKEN = "FIELDWISE_TOKEN"
USERS = "FIELDWISE_USERS"
ITEMS = "FIELDWISE_ITEMS"


SWITCH_INTERVAL_S = 0.001
"""Until the model's thread yields to the event loop (Python's default: 0.005)."""
SHUTDOWN_TIMEOUT_S = 8
"""To finish open requests when the server stops: container runtimes kill it after 10."""
CONNECTIONS_PER_WORKER = 1000
IDLE_CONNECTION_TIMEOUT_S = 5
RESTART_DELAY_S = 1.0
"""Before a worker that cannot start again ends, and is tried once more."""
METRICS_FOLDER = "metrics"
SHARED_FOLDER = "shared"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `fieldwise serve`."""

    bundle: Annotated[
        Path | None, Argument(metavar="BUNDLE", help="The bundle that scores, ranks and explains.")
    ] = None
    tower: Annotated[Path | None, Option(help="The IntTower that made the index.")] = None
    index: Annotated[
        Path | None, Option(help="Folder of the item index; its files are mapped.")
    ] = None
    nprobe: Annotated[
        int | None,
        Option(
            min=1,
            help="Approximate search: item-head clusters probed per user head. Default: score all items.",
        ),
    ] = None
    users: Annotated[
        str | None,
        Option(
            envvar=USERS,
            help="User features: a table, redis://HOST/0#users or postgresql://HOST/DATABASE#users.",
        ),
    ] = None
    user_id: Annotated[
        str | None, Option(help="Column of user ids in --users or --log. Default: the schema's.")
    ] = None
    items: Annotated[
        str | None,
        Option(
            envvar=ITEMS,
            help="Item features, likewise, to complete rows that only have an item id. Default: the index's catalogue. "
            "A table is also the catalogue to recommend from: with --tower and no --index it is indexed at the "
            "start; with one bundle every item is ranked.",
        ),
    ] = None
    item_id: Annotated[
        str | None, Option(help="Column of item ids in --items or --log. Default: the schema's.")
    ] = None
    log: Annotated[
        Path | None,
        Option(
            help="A log of interactions. Without --items, --index and --users, the latest values of items and users "
            "are taken from it too."
        ),
    ] = None
    reading: opt.Reading
    exclude_seen: opt.ExcludeSeen = None
    max_items: Annotated[
        int,
        Option(
            min=1,
            help="Maximum number of items that one bundle ranks per request; use --tower for more.",
        ),
    ] = Sources.max_items
    title: Annotated[
        str | None, Option(help="Item column that the page shows as title. Default: detected.")
    ] = None
    store_timeout: Annotated[
        float, Option(min=0.001, help="Timeout in seconds of a lookup in --users or --items.")
    ] = Sources.store_timeout
    on_store_failure: Annotated[
        str,
        Option(
            callback=opt.one_of("refuse", "degrade"),
            help="refuse: respond with 503 while a store fails; degrade: answer without its features and report it.",
        ),
    ] = "refuse"
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0: all interfaces.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = (
        8000
    )
    token: Annotated[
        str | None, Option(envvar=TOKEN, help="Bearer token that requests must send.")
    ] = None
    no_token: Annotated[
        bool, Option(help="Allow access without a token although --host is not a loopback address.")
    ] = False
    allow_host: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="A host name that requests may use (header Host). May be repeated. Default: any name with a token or "
            "on an address other than loopback, else only localhost.",
        ),
    ] = None
    max_body: Annotated[int, Option(min=1, help="Maximum size of a request in bytes.")] = (
        ServerSettings.max_body
    )
    timeout: Annotated[float, Option(min=0.01, help="Timeout in seconds of a request.")] = (
        ServerSettings.timeout
    )
    workers: Annotated[
        int,
        Option(
            min=1,
            help="Number of processes that answer requests; they share the memory of the model.",
        ),
    ] = 1
    watch: Annotated[
        float,
        Option(min=0, help="Seconds between checks for a newer bundle or index on disk; 0: never."),
    ] = 2.0
    device: opt.BundleDevice = "cpu"

    def checked_sources(self) -> Sources:
        """What is served, by the options of the same names; a ConfigError if sources do not fit together."""
        options = vars(self)
        given = {
            field.name: options[field.name] for field in fields(Sources) if field.name in options
        }
        given["exclude_seen"] = opt.seen_rule(self.exclude_seen)
        return Sources(**given, text=self.reading.text())

    @property
    def settings(self) -> ServerSettings:
        """Limits, token and the host names that requests may use."""
        return ServerSettings(
            max_body=self.max_body,
            timeout=self.timeout,
            token=self.token,
            allow_hosts=self._allowed_hosts(),
        )

    def _allowed_hosts(self) -> frozenset[str] | None:
        """The host names that requests may use; None for any."""
        if self.allow_host is not None:
            if "*" in self.allow_host:
                return None
            return frozenset(name.lower() for name in self.allow_host)
        if self.token is None and self._is_loopback:
            host = self.host.lower()
            return frozenset({"localhost", "127.0.0.1", "[::1]", host, f"[{host}]"})
        return None

    @property
    def _is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self) -> None:
        """Check that sources fit together, and that access is not open by mistake."""
        self.reading.check_used("--log", self.log)
        self.checked_sources()
        # the parser treats an empty one as none
        token = os.environ.get(TOKEN) if self.token is None else self.token
        if token is not None and not token.strip():
            raise ConfigError(
                f"a token must be a text, found an empty one: give --token or {TOKEN} a value, or unset it"
            )
        if self.token is not None and self.no_token:
            raise ConfigError(
                f"--no-token allows access without a token, found a token too (--token or {TOKEN}): give one of them"
            )
        if self.token is None and not self.no_token and not self._is_loopback:
            raise ConfigError(
                f"a server on a non-loopback address needs a token, found --host {self.host} without one: set {TOKEN}, "
                "or give --no-token to allow access without one"
            )

    def listen(self) -> socket.socket:
        """A listening socket; a ConfigError if the address is not available."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except OSError as e:
            raise ConfigError(
                f"cannot listen on {self.host}:{self.port}: {e.strerror or e}; give another --host or --port"
            ) from None


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
        os.environ[METRICS_FOLDER_VARIABLE] = str(folder / METRICS_FOLDER)
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
    from fieldwise.serving.loader import ServiceLoader

    def make() -> None:
        _divide_cores(options.workers)
        resources.check_device(options.device)
        load = ServiceLoader(options.checked_sources(), say, folder / SHARED_FOLDER)
        load()
        load.stores()

    end_with_parent()
    sys.exit(ended(make))


def _worker_application(options: ServeOptions, folder: Path) -> "FastAPI":
    """The application of one of several workers; a worker that cannot start exits, and is started again."""
    end_with_parent()
    from fieldwise.serving.metrics import remove_gauges_of_dead_processes

    remove_gauges_of_dead_processes()
    try:
        # uvicorn calls this in its event loop, and checks of stores need one
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_application, options, folder / SHARED_FOLDER).result()
    except FieldwiseError as e:
        say(str(e))
        # others serve meanwhile: files and stores were good when the server started
        time.sleep(RESTART_DELAY_S)
        sys.exit(1)


def _application(options: ServeOptions, shared: Path | None) -> "FastAPI":
    """The application with the current files, which are watched from then on."""
    from fieldwise.serving.http import load_app
    from fieldwise.storage.machine import return_freed_memory

    _divide_cores(options.workers)
    if shared is None:
        resources.check_device(options.device)
    app = load_app(
        options.checked_sources(), options.settings, watch=options.watch, note=say, shared=shared
    )
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    return_freed_memory()  # of reading the tables
    gc.freeze()  # long-lived: otherwise garbage collection blocks all requests for 0.3 s at times
    return app


def _divide_cores(workers: int) -> None:
    """Give each of several workers its share of the cores, unless OMP_NUM_THREADS says how many threads it has."""
    if workers > 1 and threads_set() is None:
        import torch

        torch.set_num_threads(max(1, available_cores() // workers))


def _say_address(options: ServeOptions, listening: socket.socket) -> None:
    address = f"http://{options.host}:{listening.getsockname()[1]}"
    workers = f", {options.workers} workers" if options.workers > 1 else ""
    say(
        f"serving at {address} (web page; API reference: {address}/docs; stop with Ctrl-C{workers})"
    )
