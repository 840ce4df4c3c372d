"""`fieldwise serve`."""

import gc
import glob
import ipaddress
import multiprocessing
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fieldwise.cli.options import BundleDevice, ExcludeSeen, Reading, one_of
from fieldwise.cli.processes import check_count
from fieldwise.cli.show import say
from fieldwise.cli.signals import end_with_parent, restore_signals
from fieldwise.errors import ConfigError, FieldwiseError, MissingExtraError
from fieldwise.scoring import MAX_BODY, TIMEOUT_S
from fieldwise.storage.files import scratch_folder
from fieldwise.storage.machine import available_cores, threads_set

if TYPE_CHECKING:
    from fastapi import FastAPI

TOKEN = "FIELDWISE_TOKEN"
# seconds until the model's thread yields to the event loop (Python's default: 0.005)
SWITCH = 0.001
# seconds to finish open requests when the server stops: container runtimes kill it after 10
GRACE = 8
# open connections of a worker; seconds of an idle one
CONNECTIONS = 1000
IDLE = 5
PAUSE = 1.0  # seconds before a worker that cannot start again ends, and is tried once more
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
METRICS_FOLDER = "metrics"
SHARED = "shared"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `fieldwise serve`."""

    bundle: Annotated[
        Path | None, Argument(metavar="BUNDLE", help="The bundle that scores, ranks and explains.")
    ] = None
    prerank: Annotated[Path | None, Option(help="The IntTower that made the index.")] = None
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
            envvar="FIELDWISE_USERS",
            help="User features: a table, redis://HOST/0#users or postgresql://HOST/DATABASE#users.",
        ),
    ] = None
    user_id: Annotated[
        str | None, Option(help="Column of user ids in --users or --log. Default: the schema's.")
    ] = None
    items: Annotated[
        str | None,
        Option(
            envvar="FIELDWISE_ITEMS",
            help="Item features, likewise, to complete rows that only have an item id. Default: the index's catalogue. "
            "A table is also the catalogue to recommend from: with --prerank and no --index it is indexed at the "
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
    reading: Reading
    exclude_seen: ExcludeSeen = None
    max_items: Annotated[
        int,
        Option(
            min=1,
            help="Maximum number of items that one bundle ranks per request; use --prerank for more.",
        ),
    ] = 20_000
    title: Annotated[
        str | None, Option(help="Item column that the page shows as title. Default: detected.")
    ] = None
    store_timeout: Annotated[
        float, Option(min=0.001, help="Timeout in seconds of a lookup in --users or --items.")
    ] = 0.1
    on_store_failure: Annotated[
        str,
        Option(
            callback=one_of("refuse", "degrade"),
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
    max_body: Annotated[int, Option(min=1, help="Maximum size of a request in bytes.")] = MAX_BODY
    timeout: Annotated[float, Option(min=0.01, help="Timeout in seconds of a request.")] = TIMEOUT_S
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
    device: BundleDevice = "cpu"

    @property
    def folders(self) -> list[Path]:
        """Folders of the bundles."""
        return [folder for folder in (self.bundle, self.prerank) if folder is not None]

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self) -> None:
        """Check that sources fit together, and that access is not open by mistake."""
        if self.prerank is None and self.index is not None:
            raise ConfigError(
                "--index is for recommendations with two bundles: also give --prerank, an IntTower"
            )
        if (
            self.prerank is not None
            and self.index is None
            and self.items is None
            and self.log is None
        ):
            raise ConfigError(
                "--prerank needs items to recommend: give --index, --items, or a --log with items"
            )
        if (
            self.prerank is not None
            and self.index is None
            and self.items is not None
            and "://" in self.items
        ):
            raise ConfigError("an index is built from a table: give --index, or a file as --items")
        self.reading.check_used("--log", self.log)
        if self.exclude_seen and self.log is None:
            raise ConfigError("--exclude-seen needs a log of interactions: give --log")
        # the parser treats an empty one as none
        given = os.environ.get(TOKEN) if self.token is None else self.token
        if given is not None and not given.strip():
            raise ConfigError(
                f"a token must be a text, found an empty one: give --token or {TOKEN} a value, or unset it"
            )
        if self.token is not None and self.no_token:
            raise ConfigError(
                f"--no-token allows access without a token, found a token too (--token or {TOKEN}): give one of them"
            )
        if self.token is None and not self.no_token and not self.is_loopback:
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
            where = f"{self.host}:{self.port}"
            raise ConfigError(
                f"cannot listen on {where}: {e.strerror or e}; give another --host or --port"
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
        from uvicorn.config import STARTUP_FAILURE
        from uvicorn.supervisors import Multiprocess
    except ImportError as e:
        raise MissingExtraError(
            f"a server needs {e.name}: pip install 'fieldwise[serve]'"
        ) from None
    restore_signals()  # uvicorn stops gracefully by itself
    configured = partial(
        uvicorn.Config,
        workers=options.workers,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=GRACE,
        timeout_worker_healthcheck=GRACE,
    )
    if options.workers == 1:
        app = _application(options, None)
        with options.listen() as listening:
            _say_where(options, listening)
            uvicorn.Server(configured(app)).run(sockets=[listening])
        return
    if sys.platform == "win32":
        raise ConfigError(
            "--workers needs Linux or macOS: leave it out, and start several servers behind a proxy"
        )
    check_count("--workers", options.workers)
    with scratch_folder() as folder, options.listen() as listening:
        for name in (METRICS_FOLDER, SHARED):
            (folder / name).mkdir()
        os.environ[METRICS] = str(folder / METRICS_FOLDER)
        # A separate process makes the shared files, so that the memory that this takes is free
        # afterwards.
        preparing = multiprocessing.get_context("spawn").Process(
            target=_make_shared, args=(options, folder)
        )
        preparing.start()
        preparing.join()
        if code := preparing.exitcode:
            if code < 0:
                say(
                    f"the process that loads the model ended with signal {-code}; memory may have run out"
                )
            raise typer.Exit(code if code > 0 else 128 - code)
        _say_where(options, listening)
        config = configured(partial(_worker_application, options, folder), factory=True)
        supervisor = Multiprocess(config, sockets=[listening])
        supervisor.run()
        if any(one.exitcode == STARTUP_FAILURE for one in supervisor.processes):
            raise typer.Exit(1)


def _make_shared(options: ServeOptions, folder: Path) -> None:
    from fieldwise.cli import ended
    from fieldwise.cli.serve_sources import Loader

    def make() -> None:
        _divide_cores(options.workers)
        load = Loader(options, say, folder / SHARED)
        load()
        load.stores()

    end_with_parent()
    sys.exit(ended(make))


def _worker_application(options: ServeOptions, folder: Path) -> "FastAPI":
    """The application of one of several workers; a worker that cannot start exits, and is started again."""
    end_with_parent()
    # of dead workers; counters stay
    for name in glob.glob(f"{os.environ[METRICS]}/gauge_live*_*.db"):
        try:
            os.kill(int(Path(name).stem.rpartition("_")[2]), 0)
        except (ProcessLookupError, PermissionError):  # the number of another user's process now
            Path(name).unlink(missing_ok=True)
    try:
        # uvicorn calls this in its event loop, and checks of stores need one
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_application, options, folder / SHARED).result()
    except FieldwiseError as e:
        say(str(e))
        # others serve meanwhile: files and stores were good when the server started
        time.sleep(PAUSE)
        sys.exit(1)


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
    files = [folder / BUNDLE.manifest for folder in options.folders]
    files += [] if options.index is None else [options.index / INDEX.manifest]
    state = Watcher.state(files)
    # With several workers, the process that made the shared files has printed the messages.
    load = Loader(options, say if shared is None else lambda _: None, shared)
    live = Live(load())
    allowed = options.allow_host
    own = options.host.lower()
    hosts = None if allowed is None or "*" in allowed else frozenset(map(str.lower, allowed))
    if allowed is None and options.token is None and options.is_loopback:
        hosts = frozenset({"localhost", "127.0.0.1", "[::1]", own, f"[{own}]"})
    limits = partial(ServerSettings, max_body=options.max_body, timeout=options.timeout)
    app = create_app(live, limits(token=options.token, allow_hosts=hosts), load.stores())
    sys.setswitchinterval(SWITCH)
    gc.collect()
    return_freed_memory()  # of reading the tables
    gc.freeze()  # long-lived: otherwise garbage collection blocks all requests for 0.3 s at times
    if options.watch:
        Watcher(live, load, files, every=options.watch, note=say, state=state).start()
    return app


def _divide_cores(workers: int) -> None:
    """Give each of several workers its share of the cores, unless OMP_NUM_THREADS says how many threads it has."""
    if workers > 1 and threads_set() is None:
        import torch

        torch.set_num_threads(max(1, available_cores() // workers))


def _say_where(options: ServeOptions, listening: socket.socket) -> None:
    place = f"http://{options.host}:{listening.getsockname()[1]}"
    workers = f", {options.workers} workers" if options.workers > 1 else ""
    say(f"serving at {place} (web page; API reference: {place}/docs; stop with Ctrl-C{workers})")
