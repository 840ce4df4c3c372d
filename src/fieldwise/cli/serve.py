"""`fieldwise serve`."""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast, get_args

import polars as pl

from fieldwise.bundle.bundle import MANIFEST as BUNDLE
from fieldwise.bundle.bundle import Bundle
from fieldwise.cli.options import Reading, set_threads
from fieldwise.cli.show import say
from fieldwise.config import nearest
from fieldwise.data.read.tables import as_table
from fieldwise.errors import ConfigError, DataError, FieldwiseError, MissingExtraError
from fieldwise.schema import Schema
from fieldwise.schema.ids import id_column
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.index import ItemIndex, build_index, open_index
from fieldwise.serving.index_files import MANIFEST as INDEX
from fieldwise.serving.page.log_tables import tables_of_log
from fieldwise.serving.replacement import Live, Watcher
from fieldwise.serving.service import Service
from fieldwise.serving.stores import FeatureStore, Lookup, Stores, TableStore, open_store
from fieldwise.serving.stores.complete import OnFailure
from fieldwise.serving.user_log import UserLog
from fieldwise.serving.whole import WholeRanking

__all__ = ["ServeOptions", "run_serve"]

SWITCH = 0.001  # seconds until the model's thread lets the one that listens and asks stores go on; Python's are 0.005
GRACE = 10  # seconds for answers that are under way when the server stops


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What `fieldwise serve` was asked for, by the names of its options."""

    bundle: Path | None
    prerank: Path | None
    index: Path | None
    probe: int | None
    max_items: int
    users: str | None
    user_id: str | None
    items: str | None
    item_id: str | None
    log: Path | None
    reading: Reading
    exclude_seen: bool | None
    title: str | None
    store_timeout: float
    on_store_failure: str
    host: str
    port: int
    token: str | None
    max_rows: int
    max_body: int
    timeout: float
    batch_window: float
    watch: float
    threads: int | None

    @property
    def folders(self) -> list[Path]:
        """Of the bundles."""
        return [folder for folder in (self.bundle, self.prerank) if folder is not None]


def run_serve(asked: ServeOptions) -> None:
    """Load, check, listen until stopped."""
    try:
        import uvicorn

        from fieldwise.serving.http import ServerSettings, create_app
    except ImportError as e:
        raise MissingExtraError(f"a server needs {e.name}: pip install 'fieldwise[serve]'") from None
    _check_sources(asked)
    set_threads(asked.threads)
    loaded = {folder: Bundle.load(folder) for folder in asked.folders}  # the first service is made of these
    tables = _tables(asked, [bundle.schema for bundle in reversed(loaded.values())])

    def bundle(folder: Path | None) -> Bundle | None:
        return None if folder is None else loaded.pop(folder, None) or Bundle.load(folder)

    def load() -> Service:
        ranker, tower = bundle(asked.bundle), bundle(asked.prerank)
        recommends: Cascade | WholeRanking | None = None
        if tower is not None:
            index = open_index(asked.index) if asked.index is not None else _passing_index(tower, tables)
            recommends = Cascade(tower, index, ranker, probe=asked.probe)
        elif ranker is not None and tables.catalogue is not None:
            recommends = _whole(ranker, tables, asked)
        return Service(ranker, recommends, log=tables.log, exclude_seen=asked.exclude_seen is not False)

    manifests = [folder / BUNDLE for folder in asked.folders]
    manifests += [asked.index / INDEX] if asked.index is not None else []
    state = Watcher.state(manifests)
    live = Live(load())
    live.service.warm_up()
    watcher = Watcher(live, load, manifests, every=asked.watch, note=say, state=state)
    settings = ServerSettings(
        token=asked.token,
        max_rows=asked.max_rows,
        max_body=asked.max_body,
        timeout=asked.timeout,
        batch_window=asked.batch_window / 1000,
    )
    app = create_app(live, settings, _stores(asked, tables), title=asked.title)
    sys.setswitchinterval(SWITCH)
    listening = _listen(asked.host, asked.port)
    place = f"http://{asked.host}:{listening.getsockname()[1]}"
    say(f"serving at {place} (a page to look at; {place}/docs is the API's reference; Ctrl-C stops it)")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE))
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it for garbage would hold all requests for 0.3 s at times
    if asked.watch:
        watcher.start()
    try:
        server.run(sockets=[listening])
    finally:
        watcher.stop()


def _check_sources(asked: ServeOptions) -> None:
    if asked.prerank is None and asked.index is not None:
        raise ConfigError("--index is for recommendations by two bundles: give --prerank, an IntTower, too")
    if asked.prerank is not None and asked.index is None and asked.items is None and asked.log is None:
        raise ConfigError("--prerank needs items to recommend: give --index, or --items, or a --log that has them")
    if asked.prerank is not None and asked.index is None and asked.items is not None and "://" in asked.items:
        raise ConfigError("an index is made of a table: give --index, or a file as --items")
    if asked.reading.given and asked.log is None:
        raise ConfigError("--separator, --encoding and --columns say how to read --log, which is not given")
    if asked.exclude_seen and asked.log is None:
        raise ConfigError("--exclude-seen needs to know what users have used: give --log")


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """What comes from tables and logs.

    Args:
        schemas: of the bundles, the pre-ranking one first.
        catalogue: items to recommend, where no index holds them.
        item_id: the column that names them.
        users: by id, of the log; None where they come from elsewhere, or not at all.
        log: what users have used.
    """

    schemas: Sequence[Schema]
    catalogue: pl.DataFrame | None
    item_id: str
    users: TableStore | None
    log: UserLog | None


def _tables(asked: ServeOptions, schemas: Sequence[Schema]) -> _Tables:
    catalogue: pl.DataFrame | None = None
    users: TableStore | None = None
    history: UserLog | None = None
    item_id = asked.item_id
    if asked.items is not None and "://" not in asked.items and asked.index is None:
        catalogue = as_table(asked.items)
        item_id = id_column("item", schemas, catalogue.columns, asked.item_id)
    if asked.log is not None:
        log = asked.reading.table(asked.log)
        user = id_column("user", schemas, log.columns, asked.user_id)
        item = id_column("item", schemas, log.columns, asked.item_id)
        people = f"users by {user!r} (--user-id), items by {item!r} (--item-id)"
        say(f"{asked.log}: {log.height:,} rows; {people}" + ("" if asked.exclude_seen is False else NOT_AGAIN))
        items, known = tables_of_log(log, schemas, item, user)
        history = UserLog(log, schemas, user, item)
        users = None if asked.users else TableStore(user, known)
        if catalogue is None and asked.index is None:
            catalogue, item_id = items, item
    item_id = item_id or id_column("item", schemas, None, None)
    return _Tables(schemas=schemas, catalogue=catalogue, item_id=item_id, users=users, log=history)


NOT_AGAIN = "; what a user has used is not recommended again (--include-seen)"


def _whole(ranker: Bundle, tables: _Tables, asked: ServeOptions) -> WholeRanking | None:
    """The bundle ranks all items; None, and a sentence, where they are too many or it cannot."""
    assert tables.catalogue is not None, "checked"
    count = tables.catalogue.height
    if count > asked.max_items:
        say(
            f"no recommendations: {count:,} items are more than --max-items {asked.max_items:,}, which a request may "
            "score; train an IntTower and give it as --prerank, with its --index (`fieldwise index`)"
        )
        return None
    try:
        return WholeRanking(ranker, tables.catalogue, tables.item_id)
    except FieldwiseError as e:
        if asked.log is not None:
            raise
        say(f"no recommendations: {e}")  # --items also complete rows that name an item alone
        return None


def _passing_index(tower: Bundle, tables: _Tables) -> ItemIndex:
    """An index for this process alone: its files go at once, what is mapped of them stays until it ends."""
    assert tables.catalogue is not None, "checked"
    with TemporaryDirectory(prefix="fieldwise-", ignore_cleanup_errors=True) as folder:
        index, _ = build_index(tower, tables.catalogue, Path(folder) / "index", id_column=tables.item_id)
    say(f"{len(index):,} items indexed for as long as the server runs (`fieldwise index` keeps an index)")
    return index


def _stores(asked: ServeOptions, tables: _Tables) -> Stores:
    """The stores asked for, once connected to and checked."""
    on_failure = asked.on_store_failure
    if on_failure not in get_args(OnFailure):
        raise ConfigError(
            f"--on-store-failure must be known, found {on_failure!r}: {nearest(on_failure, get_args(OnFailure))}"
        )
    sources: dict[str, FeatureStore] = {} if tables.users is None else {"users": tables.users}
    if asked.users is not None:
        sources["users"] = _store(asked.users, "user", tables.schemas, asked.user_id)
    if asked.items is not None and (asked.prerank is None or asked.index is not None):
        sources["items"] = _store(asked.items, "item", tables.schemas, asked.item_id)
    found = {name: Lookup(name, store, timeout=asked.store_timeout) for name, store in sources.items()}
    stores = Stores(**found, on_failure=cast(OnFailure, on_failure))

    async def check() -> None:
        try:
            await stores.open()
        finally:
            await stores.close()

    asyncio.run(check())
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # lookups themselves say when a store fails
    return stores


def _store(source: str, role: Literal["user", "item"], schemas: Sequence[Schema], given: str | None) -> FeatureStore:
    """The store of an address or a file, named by the column given, or the schemas'."""
    if "://" in source:
        return open_store(source, id_column(role, schemas, None, given), f"{role}s")
    try:
        table = as_table(source)
        return TableStore(id_column(role, schemas, table.columns, given), table)
    except (ConfigError, DataError) as e:
        raise type(e)(f"{source}: {e}") from None


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as e:
        raise ConfigError(f"cannot listen at {host}:{port}: {e.strerror or e}; give another --host or --port") from None
