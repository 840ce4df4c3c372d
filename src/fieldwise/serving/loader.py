"""From files and stores to a served `Service`: bundles, an index, tables and logs are read here."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import torch
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.read.load_table import whole_table
from fieldwise.data.read.tables import as_table
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.features.definitions import check_has_features
from fieldwise.models.twotower import HeadsNetwork
from fieldwise.schema.ids import FEATURES_TIME, FEATURES_TTL, id_column
from fieldwise.scoring import seen_words
from fieldwise.scoring.items import ItemIndex, checked_ids, item_table
from fieldwise.scoring.ranker import Ranker
from fieldwise.serving.index import build_index, open_index
from fieldwise.serving.service import Service
from fieldwise.serving.settings import Sources
from fieldwise.serving.stores import FeatureStore, Lookup, Stores, TableStore, open_store
from fieldwise.serving.user_log import UserLog, tables_of_log, varying_columns
from fieldwise.storage.arrays import SharedArrays
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.locks import one_writer

__all__ = ["ServiceLoader"]

LEAST_SHARED_BYTES = 1 << 16
"""Of a weight; smaller ones are not worth a file."""


class ServiceLoader:
    """Makes a service of the files as they are when it is called, and the stores beside it.

    Catalogue and log are read once, when the loader is made; bundles and the index are read again
    by every call after the first.

    Args:
        sources: the files and stores.
        note: called with messages, such as how the log is read.
        shared: the folder of files that a server's processes share; None with one process.

    Errors:
        FieldwiseError: something of the sources cannot be read, or does not fit the rest.

    >>> import tempfile
    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(500, users=20, items=10)
    >>> fields = Categorical("user_id", role="user"), Categorical("item_id", role="item")
    >>> schema = Schema(fields=fields, label=Label("liked"), user="user_id", item="item_id")
    >>> fitted = Recommender(schema, FM(), training=TrainingSettings(epochs=1)).fit(log)
    >>> folder = Path(tempfile.mkdtemp())
    >>> log.write_parquet(folder / "log.parquet")
    >>> _ = fitted.bundle_.save(folder / "bundle")
    >>> service = ServiceLoader(Sources(bundle=folder / "bundle", log=folder / "log.parquet"))()
    >>> service.ranked, len(service.required_ranker.index)
    ('all', 10)
    """

    def __init__(
        self,
        sources: Sources,
        note: Callable[[str], None] = lambda _: None,
        shared: Path | None = None,
    ) -> None:
        self._sources = sources
        self._note = note
        self._shared = None if shared is None else SharedArrays(shared)
        # used by the first service
        self._loaded = {folder: self._bundle(folder) for folder in sources.folders}
        if sources.tower is not None:
            tower = self._loaded[sources.tower]
            if not isinstance(tower.network, HeadsNetwork):
                name = type(tower.settings).__name__
                raise ConfigError(
                    f"--tower must be an IntTower, found {name} in {sources.tower}: train inttower"
                )
        # the pre-ranking bundle's first
        self._schemas = [bundle.schema for bundle in reversed(self._loaded.values())]
        self.catalogue: pl.DataFrame | None = None  # items to recommend, if no index holds them
        # of the log; None if they come from elsewhere, or there are none
        self.users: TableStore | None = None
        self.log: UserLog | None = None
        self._varying: list[str] = []  # of the items, if they come from the log
        self.item_id = sources.item_id or ""
        if not self._schemas:  # without a bundle `Service` says what it needs
            return
        if sources.items is not None and "://" not in sources.items and sources.index is None:
            self._read_catalogue(sources.items)
        if sources.log is not None:
            self._read_log(sources.log)
        if not self.item_id:
            self.item_id = id_column("item", self._schemas, None, None)

    def _read_catalogue(self, path: str) -> None:
        """Take the items to recommend from a table."""
        given = self._sources.item_id
        table = as_table(path, text_columns=self._text_columns(given))
        self.catalogue = table.drop(FEATURES_TIME, FEATURES_TTL, strict=False)
        self.item_id = id_column(
            "item", self._schemas, self.catalogue.columns, given, option="--item-id"
        )

    def _read_log(self, path: Path) -> None:
        """Take users, their rows, and items that come from nowhere else, from a log of interactions."""
        sources = self._sources
        text_columns = self._text_columns(sources.user_id, sources.item_id)
        text = replace(sources.text, text_columns=tuple(text_columns))
        log = whole_table(path, text)
        for bundle in self._loaded.values():
            check_has_features(log.columns, bundle.about.recipe_settings, bundle.schema.columns)
        user = id_column("user", self._schemas, log.columns, sources.user_id, option="--user-id")
        item = id_column("item", self._schemas, log.columns, sources.item_id, option="--item-id")
        items, users = tables_of_log(log, self._schemas, item, user)
        self.log = UserLog(log, self._schemas, user, item)
        sentence = f"{path}: {log.height:,} rows; users by {user!r} (--user-id), items by {item!r} (--item-id)"
        excluded = seen_words(self.log.label, sources.exclude_seen)
        if excluded:
            sentence += f"; {excluded}"
        self._note(sentence)

        if not sources.users:
            self.users = TableStore(user, users)
        if self.catalogue is None and sources.index is None:
            self.catalogue = items
            self.item_id = item
            self._varying = varying_columns(log, self._schemas, item)
            if self._varying:
                columns = ", ".join(self._varying)
                self._note(f"each item has the latest {columns} of its rows in {path}")

    def __call__(self) -> Service:
        """A service with the current bundles and index."""
        sources = self._sources
        is_replacement = not self._loaded
        if self._shared is not None and is_replacement:
            self._shared.used.clear()
        bundles: dict[Path, Bundle] = {}
        for folder in sources.folders:
            loaded = self._loaded.pop(folder, None)
            bundles[folder] = self._bundle(folder) if loaded is None else loaded
        bundle = None if sources.bundle is None else bundles[sources.bundle]
        ranker: Ranker[Bundle] | None = None
        if sources.tower is not None:
            tower = bundles[sources.tower]
            ranker = Ranker(bundle, self._index(tower), tower=tower, nprobe=sources.nprobe)
        elif bundle is not None and self.catalogue is not None:
            ranker = self._ranker_of_all_items(bundle, self.catalogue)
        service = Service(
            bundle,
            ranker,
            log=self.log,
            exclude_seen=sources.exclude_seen,
            title=sources.title,
            varying=self._varying,
        )
        service.warm_up()
        if self._shared is not None and is_replacement:
            # files that the former service has mapped stay until it ends
            self._shared.remove_unused()
        return service

    def _index(self, tower: Bundle) -> ItemIndex:
        """The index of an IntTower: the given one, or one built from the catalogue."""
        if self._sources.index is not None:
            return open_index(self._sources.index, shared=self._shared)
        assert self.catalogue is not None, "checked"
        build = partial(build_index, tower, self.catalogue, id_column=self.item_id)
        if self._shared is not None:  # the first of several processes builds it
            folder = self._shared.place(f"index-{tower.digest[:16]}")
            with one_writer(self._shared.folder):
                if not folder.exists():
                    build(folder)
            index = open_index(folder, shared=self._shared)
        else:  # its files are deleted at once, and stay mapped in memory until the process ends
            with scratch_folder() as scratch:
                index, _ = build(scratch / "index")
        self._note(
            f"{len(index):,} items indexed in memory while the server runs (`fieldwise index` saves an index)"
        )
        return index

    def stores(self) -> Stores:
        """The stores given, after connecting to each and checking it."""
        sources = self._sources
        users: FeatureStore | None = self.users
        items: FeatureStore | None = None
        if sources.users is not None:
            users = self._store(sources.users, "user", sources.user_id)
        if sources.items is not None and (sources.tower is None or sources.index is not None):
            items = self._store(sources.items, "item", sources.item_id)

        def lookup(name: str, store: FeatureStore | None) -> Lookup | None:
            return None if store is None else Lookup(name, store, timeout=sources.store_timeout)

        stores = Stores(
            users=lookup("users", users),
            items=lookup("items", items),
            on_failure=sources.on_store_failure,
        )

        async def check() -> None:
            async with stores.opened():
                pass

        asyncio.run(check())
        # lookups report failures of a store themselves
        logging.getLogger("psycopg").setLevel(logging.ERROR)
        return stores

    def _text_columns(self, *ids: str | None) -> list[str]:
        """The columns that the bundles read as text, and those of ids that are given."""
        columns: list[str] = []
        for schema in self._schemas:
            columns += schema.text_columns
        columns += [column for column in ids if column is not None]
        return columns

    def _bundle(self, folder: Path) -> Bundle:
        bundle = Bundle.load(folder, device=self._sources.device)
        if self._shared is not None:
            share_weights(bundle.network, self._shared)
        return bundle

    def _store(self, source: str, role: Literal["user", "item"], given: str | None) -> FeatureStore:
        """The store at an address or in a file, with the id column given, else the schemas'."""
        column = partial(id_column, role, self._schemas, given=given, option=f"--{role}-id")
        if "://" in source:
            return open_store(source, column(columns=None), f"{role}s")
        try:
            table = as_table(source, text_columns=self._text_columns(given))
            return TableStore(column(columns=table.columns), table)
        except (ConfigError, DataError) as e:
            raise type(e)(f"{source}: ", *e.args) from None

    def _ranker_of_all_items(
        self, bundle: Bundle, catalogue: pl.DataFrame
    ) -> Ranker[Bundle] | None:
        """Ranking of all items by one bundle; None, with a sentence, if it cannot rank or there are too many items."""
        sources = self._sources
        if catalogue.height > sources.max_items:
            self._note(
                f"no recommendations: {catalogue.height:,} items exceed --max-items {sources.max_items:,}, the "
                "limit per request; train an IntTower and give it as --tower, with its --index (`fieldwise index`)"
            )
            return None
        try:
            checked_ids(catalogue, self.item_id)
        except DataError as e:  # they cannot be looked up either
            raise DataError(f"{sources.items or sources.log}: ", *e.args) from None
        try:
            return Ranker(bundle, item_table(catalogue, self.item_id))
        except FieldwiseError as e:
            if sources.log is not None:
                raise
            # the items still complete rows that only have an item id
            self._note(f"no recommendations: {e}")
            return None


def share_weights(network: nn.Module, shared: SharedArrays) -> None:
    """Replace large CPU weights of a network by equal ones in shared memory, which must not be changed afterwards."""
    shared_weights: dict[int, torch.Tensor] = {}  # by address; several parameters may have one
    with torch.no_grad():
        for weight in [*network.parameters(), *network.buffers()]:
            is_numpy_memory = weight.device.type == "cpu" and weight.dtype != torch.bfloat16
            is_large = weight.nbytes >= LEAST_SHARED_BYTES
            if not (is_large and is_numpy_memory and weight.is_contiguous()):
                continue
            address = weight.data_ptr()
            if address not in shared_weights:
                values = weight.detach().numpy()
                octets = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
                digest = hashlib.sha256(octets.data).hexdigest()
                name = f"weights-{digest}-{values.dtype.str[1:]}"
                array = shared.array(name, partial(np.asarray, values))
                shared_weights[address] = torch.from_numpy(array)
            weight.data = shared_weights[address].view(weight.shape)
