"""`fieldwise serve`."""

import asyncio
import logging
import socket
import sys
from pathlib import Path
from typing import cast, get_args

from fieldwise.bundle import MANIFEST as BUNDLE
from fieldwise.bundle import Bundle
from fieldwise.cli.options import set_threads
from fieldwise.cli.show import say
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.index import open_index
from fieldwise.serving.index_files import MANIFEST as INDEX
from fieldwise.serving.replacement import Live, Watcher
from fieldwise.serving.service import Service
from fieldwise.serving.stores import Lookup, Stores, open_store
from fieldwise.serving.stores.complete import OnFailure

__all__ = ["run_serve"]

SWITCH = 0.001  # seconds until the model's thread lets the one that listens and asks stores go on; Python's are 0.005
GRACE = 10  # seconds for answers that are under way when the server stops


def run_serve(
    bundle: Path | None,
    prerank: Path | None,
    index: Path | None,
    probe: int | None,
    users: str | None,
    user_id: str,
    items: str | None,
    item_id: str,
    store_timeout: float,
    on_store_failure: str,
    host: str,
    port: int,
    token: str | None,
    max_rows: int,
    max_body: int,
    timeout: float,
    batch_window: float,
    watch: float,
    threads: int | None,
) -> None:
    """Load, check, listen until stopped."""
    try:
        import uvicorn

        from fieldwise.serving.http import ServerSettings, create_app
    except ImportError as e:
        raise MissingExtraError(f"a server needs {e.name}: pip install 'fieldwise[serve]'") from None
    if (prerank is None) != (index is None):
        raise ConfigError("an index is served with the IntTower that made it: give --prerank and --index, or neither")
    set_threads(threads)

    def load() -> Service:
        ranker = None if bundle is None else Bundle.load(bundle)
        if prerank is None or index is None:
            return Service(ranker)
        return Service(ranker, Cascade(Bundle.load(prerank), open_index(index), ranker, probe=probe))

    live = Live(load())
    manifests = [folder / BUNDLE for folder in (bundle, prerank) if folder is not None]
    manifests += [index / INDEX] if index is not None else []
    watcher = Watcher(live, load, manifests, every=watch, note=say)
    stores = _stores(users, user_id, items, item_id, store_timeout, on_store_failure)
    settings = ServerSettings(
        token=token, max_rows=max_rows, max_body=max_body, timeout=timeout, batch_window=batch_window / 1000
    )
    app = create_app(live, settings, stores)
    sys.setswitchinterval(SWITCH)
    listening = _listen(host, port)
    say(f"serving at http://{host}:{listening.getsockname()[1]} (/docs describes it; Ctrl-C stops it)")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE))
    if watch:
        watcher.start()
    try:
        server.run(sockets=[listening])
    finally:
        watcher.stop()


def _stores(
    users: str | None, user_id: str, items: str | None, item_id: str, timeout: float, on_failure: str
) -> Stores:
    """The stores asked for, once connected to and checked."""
    if on_failure not in get_args(OnFailure):
        raise ConfigError(
            f"--on-store-failure must be known, found {on_failure!r}: {nearest(on_failure, get_args(OnFailure))}"
        )
    found = {
        name: Lookup(name, open_store(source, column, name), timeout=timeout)
        for name, source, column in (("users", users, user_id), ("items", items, item_id))
        if source is not None
    }
    stores = Stores(**found, on_failure=cast(OnFailure, on_failure))

    async def check() -> None:
        try:
            await stores.open()
        finally:
            await stores.close()

    asyncio.run(check())
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # lookups themselves say when a store fails
    return stores


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as e:
        raise ConfigError(f"cannot listen at {host}:{port}: {e.strerror or e}; give another --host or --port") from None
