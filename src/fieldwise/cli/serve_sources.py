"""The sources of `fieldwise serve`: bundles, an index, tables, logs and stores."""

import asyncio
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.files import BUNDLE
from fieldwise.cli.devices import load_bundle
from fieldwise.cli.serve_options import ServeOptions
from fieldwise.cli.show import say
from fieldwise.config import nearest
from fieldwise.data.read.tables import as_table
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.schema import Schema
from fieldwise.schema.ids import id_column
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.index import ItemIndex, build_index, open_index
from fieldwise.serving.index_files import INDEX
from fieldwise.serving.page.log_tables import tables_of_log
from fieldwise.serving.service import Service
from fieldwise.serving.stores import FeatureStore, Lookup, Stores, TableStore, open_store
from fieldwise.serving.stores.complete import OnFailure
from fieldwise.serving.user_log import Seen, UserLog
from fieldwise.serving.weights import share_weights
from fieldwise.serving.whole import WholeRanking
from fieldwise.storage.artifact import Kind
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.locks import one_writer
from fieldwise.storage.shared import SharedArrays

__all__ = ["Loader", "Tables", "artifacts", "last_generation", "open_stores", "read_tables"]

GENERATION = "generation"


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Data from tables and logs.

    Args:
        schemas: the bundles' schemas, the pre-ranking bundle's first.
        catalogue: items to recommend, if no index holds them.
        item_id: the column of their ids.
        users: users of the log by id; None if they come from elsewhere, or there are none.
        log: the users' interactions.
    """

    schemas: Sequence[Schema]
    catalogue: pl.DataFrame | None
    item_id: str
    users: TableStore | None
    log: UserLog | None


class Loader:
    """Makes the service from what is on disk now.

    Args:
        options: the command's options.
        tell: told what people should know.
        shared: the folder of what the workers of one server share; None if there is one process.
        first: the folder to load the first service from: the last good generation, not the options' own folders.

    Attributes:
        tables: data from tables and logs, read once.
    """

    def __init__(
        self,
        options: ServeOptions,
        tell: Callable[[str], None] = say,
        shared: Path | None = None,
        first: Path | None = None,
    ) -> None:
        self._options, self._tell, self._first = options, tell, first
        self._shared = None if shared is None else SharedArrays(shared)
        self._loaded = {folder: self._load(folder) for folder in options.folders}  # used by the first service
        self.tables = read_tables(options, [bundle.schema for bundle in reversed(self._loaded.values())], tell)

    def __call__(self) -> Service:
        """A service with the current bundles and index.

        Errors:
            BundleError, ConfigError, DataError: a bundle, the index or a table cannot be served.
        """
        options, tables, replaces = self._options, self.tables, not self._loaded
        if self._shared is not None and replaces:
            self._shared.used.clear()
        ranker, tower = self._bundle(options.bundle), self._bundle(options.prerank)
        recommends: Cascade | WholeRanking | None = None
        if tower is not None:
            if options.index is None:
                index = _passing_index(tower, tables, self._shared, self._tell)
            else:
                index = open_index(self._place(options.index), mapped=options.map_index, shared=self._shared)
            recommends = Cascade(tower, index, ranker, nprobe=options.nprobe)
        elif ranker is not None and tables.catalogue is not None:
            recommends = _whole(ranker, tables, options, self._tell)
        service = Service(ranker, recommends, log=tables.log, exclude_seen=_seen(options))
        service.warm_up()
        if self._shared is not None:
            if self._first is None:
                _keep_generation(options, self._shared, self._tell)
            if replaces:
                self._shared.remove_unused()  # what the former service has mapped stays until it is gone
        self._first = None
        return service

    def _place(self, folder: Path) -> Path:
        return folder if self._first is None else self._first / str(list(artifacts(self._options)).index(folder))

    def _bundle(self, folder: Path | None) -> Bundle | None:
        return None if folder is None else self._loaded.pop(folder, None) or self._load(folder)

    def _load(self, folder: Path) -> Bundle:
        bundle = load_bundle(self._place(folder), self._options.device)
        if self._shared is not None:
            share_weights(bundle.network, self._shared)
        return bundle


def artifacts(options: ServeOptions) -> dict[Path, Kind]:
    """The folders of the bundles and the index, whose manifests change when they are replaced."""
    return dict.fromkeys(options.folders, BUNDLE) | ({} if options.index is None else {options.index: INDEX})


def last_generation(shared: Path) -> Path | None:
    """The bundles and index that were last served, for workers started again; None if none are kept."""
    return max(shared.glob(f"{GENERATION}-*"), key=lambda path: path.stat().st_mtime, default=None)


def _keep_generation(options: ServeOptions, shared: SharedArrays, tell: Callable[[str], None]) -> None:
    """Keep what is served for workers started again while what is on disk is damaged: copies of manifests, and links.

    Without hard links, as between disks, bundles are copied, and an index, which may be large, has symbolic links.
    """
    kinds = artifacts(options)
    try:
        digests = [kind.open(folder).digest for folder, kind in kinds.items()]
        place = shared.place(f"{GENERATION}-{hashlib.sha256(''.join(digests).encode()).hexdigest()[:16]}")
        with one_writer(shared.folder):
            if place.exists():
                return
            partial = shared.folder / f".{place.name}"
            shutil.rmtree(partial, ignore_errors=True)  # of a killed worker
            for number, (folder, kind) in enumerate(kinds.items()):
                kept = partial / str(number)
                kept.mkdir(parents=True)
                shutil.copyfile(folder / kind.manifest, kept / kind.manifest)
                for name in kind.named_files(folder):
                    _link(folder.absolute() / name, kept / name, copied=kind is BUNDLE)
            partial.rename(place)
    except (FieldwiseError, OSError) as e:
        tell(f"workers that are started again need an undamaged bundle on disk: no copy of it can be kept ({e})")


def _link(file: Path, link: Path, *, copied: bool) -> None:
    try:
        os.link(file, link)
    except OSError:
        shutil.copyfile(file, link) if copied else link.symlink_to(file)


def read_tables(options: ServeOptions, schemas: Sequence[Schema], tell: Callable[[str], None] = say) -> Tables:
    """The tables given as --items and --log; `tell` is told how they are read.

    Errors:
        ConfigError, DataError: a table cannot be read, or lacks a column.
    """
    catalogue: pl.DataFrame | None = None
    users: TableStore | None = None
    history: UserLog | None = None
    item_id = options.item_id
    if options.items is not None and "://" not in options.items and options.index is None:
        catalogue = as_table(options.items)
        item_id = id_column("item", schemas, catalogue.columns, options.item_id)
    if options.log is not None:
        log = options.reading.table(options.log)
        user = id_column("user", schemas, log.columns, options.user_id)
        item = id_column("item", schemas, log.columns, options.item_id)
        people = f"users by {user!r} (--user-id), items by {item!r} (--item-id)"
        items, known = tables_of_log(log, schemas, item, user)
        history = UserLog(log, schemas, user, item)
        tell(f"{options.log}: {log.height:,} rows; {people}{_left_out(history, _seen(options))}")
        users = None if options.users else TableStore(user, known)
        if catalogue is None and options.index is None:
            catalogue, item_id = items, item
    item_id = item_id or id_column("item", schemas, None, None)
    return Tables(schemas=schemas, catalogue=catalogue, item_id=item_id, users=users, log=history)


def _seen(options: ServeOptions) -> Seen:
    return "positive" if options.exclude_seen is None else options.exclude_seen


def _left_out(log: UserLog, seen: Seen) -> str:
    """What a user is not recommended again, in words."""
    if not seen:
        return ""
    if seen is True or not log.positive:
        return "; items of a user's rows are excluded (--include-seen keeps them)"
    rule = f"{'where' if log.positive.startswith('“') else 'with'} {log.positive}"
    return f"; items of a user's rows {rule} are excluded (--exclude-seen: of all rows, --include-seen: none)"


def _whole(ranker: Bundle, tables: Tables, options: ServeOptions, tell: Callable[[str], None]) -> WholeRanking | None:
    """Ranking of all items by one bundle; None, with a sentence, if there are too many items or it cannot rank."""
    assert tables.catalogue is not None, "checked"
    count = tables.catalogue.height
    if count > options.max_items:
        tell(
            f"no recommendations: {count:,} items exceed --max-items {options.max_items:,}, the limit per request; "
            "train an IntTower and give it as --prerank, with its --index (`fieldwise index`)"
        )
        return None
    try:
        return WholeRanking(ranker, tables.catalogue, tables.item_id)
    except FieldwiseError as e:
        if options.log is not None:
            raise
        tell(f"no recommendations: {e}")  # --items still completes rows that only have an item id
        return None


def _passing_index(
    tower: Bundle, tables: Tables, shared: SharedArrays | None, tell: Callable[[str], None]
) -> ItemIndex:
    """A temporary index: its files are deleted at once, and stay mapped in memory until the process ends.

    That of several workers is built by the first of them.
    """
    assert tables.catalogue is not None, "checked"
    if shared is not None:
        place = shared.place(f"index-{tower.digest[:16]}")
        with one_writer(shared.folder):
            if not place.exists():
                build_index(tower, tables.catalogue, place, id_column=tables.item_id)
        index = open_index(place, mapped=True, shared=shared)
    else:
        with scratch_folder() as folder:
            index, _ = build_index(tower, tables.catalogue, folder / "index", id_column=tables.item_id)
    tell(f"{len(index):,} items indexed in memory while the server runs (`fieldwise index` saves an index)")
    return index


def open_stores(options: ServeOptions, tables: Tables) -> Stores:
    """The stores given, after connecting to each and checking it."""
    on_failure = options.on_store_failure
    if on_failure not in get_args(OnFailure):
        raise ConfigError(
            f"--on-store-failure must be refuse or degrade, found {on_failure!r}: "
            f"{nearest(on_failure, get_args(OnFailure))}"
        )
    sources: dict[str, FeatureStore] = {} if tables.users is None else {"users": tables.users}
    if options.users is not None:
        sources["users"] = _store(options.users, "user", tables.schemas, options.user_id)
    if options.items is not None and (options.prerank is None or options.index is not None):
        sources["items"] = _store(options.items, "item", tables.schemas, options.item_id)
    found = {name: Lookup(name, store, timeout=options.store_timeout) for name, store in sources.items()}
    stores = Stores(**found, on_failure=cast(OnFailure, on_failure))

    async def check() -> None:
        try:
            await stores.open()
        finally:
            await stores.close()

    asyncio.run(check())
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # lookups report failures of a store themselves
    return stores


def _store(source: str, role: Literal["user", "item"], schemas: Sequence[Schema], given: str | None) -> FeatureStore:
    """The store at an address or in a file, with the id column given, else the schemas'."""
    if "://" in source:
        return open_store(source, id_column(role, schemas, None, given), f"{role}s")
    try:
        table = as_table(source)
        return TableStore(id_column(role, schemas, table.columns, given), table)
    except (ConfigError, DataError) as e:
        raise type(e)(f"{source}: {e}") from None
