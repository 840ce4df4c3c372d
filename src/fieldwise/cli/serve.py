"""`fieldwise serve`."""

import asyncio
import gc
import logging
import socket
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast, get_args

import polars as pl

from fieldwise.bundle import MANIFEST as BUNDLE
from fieldwise.bundle import Bundle
from fieldwise.cli.options import set_threads
from fieldwise.cli.show import say
from fieldwise.config import nearest
from fieldwise.data.tables import as_table
from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.index import ItemIndex, build_index, item_column, open_index
from fieldwise.serving.index_files import MANIFEST as INDEX
from fieldwise.serving.log_tables import tables_of_log
from fieldwise.serving.replacement import Live, Watcher
from fieldwise.serving.service import Service
from fieldwise.serving.stores import FeatureStore, Lookup, Stores, TableStore, open_store
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
    log: Path | None,
    title: str | None,
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
    _check_sources(prerank, index, users, items, log)
    set_threads(threads)
    catalogue: pl.DataFrame | None = None
    people: str | FeatureStore | None = users
    if log is not None:
        catalogue, known = _from_log(log, [folder for folder in (bundle, prerank) if folder is not None], user_id)
        people = people or TableStore(user_id, known)
    if prerank is not None and index is None and items is not None:
        catalogue, items = as_table(items), None

    def load() -> Service:
        ranker = None if bundle is None else Bundle.load(bundle)
        if prerank is None:
            return Service(ranker)
        tower = Bundle.load(prerank)
        opened = open_index(index) if index is not None else _passing_index(tower, catalogue)
        return Service(ranker, Cascade(tower, opened, ranker, probe=probe))

    manifests = [folder / BUNDLE for folder in (bundle, prerank) if folder is not None]
    manifests += [index / INDEX] if index is not None else []
    state = Watcher.state(manifests)
    live = Live(load())
    live.service.warm_up()
    watcher = Watcher(live, load, manifests, every=watch, note=say, state=state)
    stores = _stores(people, user_id, items, item_id, store_timeout, on_store_failure)
    settings = ServerSettings(
        token=token, max_rows=max_rows, max_body=max_body, timeout=timeout, batch_window=batch_window / 1000
    )
    app = create_app(live, settings, stores, title=title)
    sys.setswitchinterval(SWITCH)
    listening = _listen(host, port)
    place = f"http://{host}:{listening.getsockname()[1]}"
    say(f"serving at {place} (a page to look at; /docs describes the API; Ctrl-C stops it)")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE))
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it for garbage would hold all requests for 0.3 s at times
    if watch:
        watcher.start()
    try:
        server.run(sockets=[listening])
    finally:
        watcher.stop()


def _check_sources(
    prerank: Path | None, index: Path | None, users: str | None, items: str | None, log: Path | None
) -> None:
    for name, given in (("--index", index), ("--log", log)):
        if prerank is None and given is not None:
            raise ConfigError(f"{name} is for recommendations by two bundles: give --prerank, an IntTower, too")
    if prerank is not None and index is None and items is None and log is None:
        raise ConfigError("--prerank needs items to recommend: give --index, or --items, or a --log that has them")
    if prerank is not None and index is None and items is not None and "://" in items:
        raise ConfigError("an index is made of a table: give --index, or a file as --items")
    if log is not None and users is not None and (index or items):
        raise ConfigError("--log is for items and users that are not given otherwise: leave it out")


def _from_log(log: Path, bundles: list[Path], user_id: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    schemas = [Bundle.load(folder).schema for folder in bundles]
    return tables_of_log(as_table(log), schemas, item_column(schemas[-1]), user_id)


def _passing_index(tower: Bundle, items: pl.DataFrame | None) -> ItemIndex:
    """An index for this process alone: its files go at once, what is mapped of them stays until it ends."""
    assert items is not None, "checked"
    with TemporaryDirectory(prefix="fieldwise-", ignore_cleanup_errors=True) as folder:
        index, _ = build_index(tower, items, Path(folder) / "index")
    say(f"{len(index):,} items indexed for as long as the server runs (`fieldwise index` keeps an index)")
    return index


def _stores(
    users: str | FeatureStore | None, user_id: str, items: str | None, item_id: str, timeout: float, on_failure: str
) -> Stores:
    """The stores asked for, once connected to and checked."""
    if on_failure not in get_args(OnFailure):
        raise ConfigError(
            f"--on-store-failure must be known, found {on_failure!r}: {nearest(on_failure, get_args(OnFailure))}"
        )
    found = {
        name: Lookup(name, open_store(given, column, name) if isinstance(given, str) else given, timeout=timeout)
        for name, given, column in (("users", users, user_id), ("items", items, item_id))
        if given is not None
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
