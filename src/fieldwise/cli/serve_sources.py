"""The sources of `fieldwise serve`: bundles, an index, tables, logs and stores."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, cast

import numpy as np
import polars as pl
import torch
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.cli.options import load_bundle, seen_rule, seen_words
from fieldwise.cli.serve_options import ServeOptions
from fieldwise.cli.show import say
from fieldwise.data.read.tables import as_table
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.models.twotower import HeadsNetwork
from fieldwise.schema.ids import id_column
from fieldwise.scoring.items import checked_ids, item_table
from fieldwise.scoring.ranker import Ranker
from fieldwise.serving.index import build_index, open_index
from fieldwise.serving.service import Service, UserLog, tables_of_log, varying_columns
from fieldwise.serving.stores import FeatureStore, Lookup, OnFailure, Stores, TableStore, open_store
from fieldwise.storage.arrays import SharedArrays
from fieldwise.storage.files import one_writer, scratch_folder

LEAST = 1 << 16  # bytes of a weight; smaller ones are not worth a file


class Loader:
    """Makes the service from the current files, and the stores.

    Args:
        options: the command's options.
        tell: called with messages, such as how tables are read.
        shared: the folder of files that a server's workers share; None with one process.
    """

    def __init__(
        self, options: ServeOptions, tell: Callable[[str], None] = say, shared: Path | None = None
    ) -> None:
        self._options = options
        self._tell = tell
        self._shared = None if shared is None else SharedArrays(shared)
        self._loaded: dict[Path, Bundle] = {}  # used by the first service
        for folder in options.folders:
            self._loaded[folder] = self._bundle(folder)
        tower = None if options.prerank is None else self._loaded[options.prerank]
        if tower is not None and not isinstance(tower.network, HeadsNetwork):
            name = type(tower.settings).__name__
            raise ConfigError(
                f"--prerank must be an IntTower, found {name} in {options.prerank}: train inttower"
            )
        # the pre-ranking bundle's first
        self._schemas = [bundle.schema for bundle in reversed(self._loaded.values())]
        self.catalogue: pl.DataFrame | None = None  # items to recommend, if no index holds them
        # of the log; None if they come from elsewhere, or there are none
        self.users: TableStore | None = None
        self.log: UserLog | None = None
        self._varying: list[str] = []  # of the items, if they come from the log
        self.item_id = options.item_id or ""
        if not self._schemas:  # without a bundle `Service` says what it needs
            return
        if options.items is not None and "://" not in options.items and options.index is None:
            self.catalogue = as_table(
                options.items, text_columns=self._text_columns(options.item_id)
            )
            self.item_id = id_column(
                "item", self._schemas, self.catalogue.columns, options.item_id, option="--item-id"
            )
        if options.log is not None:
            log = options.reading.table(
                options.log, self._text_columns(options.user_id, options.item_id)
            )
            user = id_column(
                "user", self._schemas, log.columns, options.user_id, option="--user-id"
            )
            item = id_column(
                "item", self._schemas, log.columns, options.item_id, option="--item-id"
            )
            items, users = tables_of_log(log, self._schemas, item, user)
            self.log = UserLog(log, self._schemas, user, item)
            people = f"users by {user!r} (--user-id), items by {item!r} (--item-id)"
            excluded = seen_words(self.log.positive, seen_rule(options.exclude_seen))
            tell(
                f"{options.log}: {log.height:,} rows; {people}{'; ' if excluded else ''}{excluded}"
            )
            self.users = None if options.users else TableStore(user, users)
            if self.catalogue is None and options.index is None:
                self.catalogue = items
                self.item_id = item
                self._varying = varying_columns(log, self._schemas, item)
                if self._varying:
                    tell(
                        f"each item has the latest {', '.join(self._varying)} of its rows in {options.log}"
                    )
        self.item_id = self.item_id or id_column("item", self._schemas, None, None)

    def __call__(self) -> Service:
        """A service with the current bundles and index."""
        options = self._options
        replaces = not self._loaded
        if self._shared is not None and replaces:
            self._shared.used.clear()
        bundles = {
            one: self._loaded.pop(one) if one in self._loaded else self._bundle(one)
            for one in options.folders
        }
        ranker, tower = (
            None if one is None else bundles[one] for one in (options.bundle, options.prerank)
        )
        recommends: Ranker[Bundle] | None = None
        if tower is not None:
            if options.index is not None:
                index = open_index(options.index, shared=self._shared)
            else:
                assert self.catalogue is not None, "checked"
                build = partial(build_index, tower, self.catalogue, id_column=self.item_id)
                if self._shared is not None:  # the first of several workers builds it
                    place = self._shared.place(f"index-{tower.digest[:16]}")
                    with one_writer(self._shared.folder):
                        if not place.exists():
                            build(place)
                    index = open_index(place, shared=self._shared)
                else:  # its files are deleted at once, and stay mapped in memory until the process ends
                    with scratch_folder() as folder:
                        index, _ = build(folder / "index")
                words = "items indexed in memory while the server runs (`fieldwise index` saves an index)"
                self._tell(f"{len(index):,} {words}")
            recommends = Ranker(ranker, index, prerank=tower, nprobe=options.nprobe)
        elif ranker is not None and self.catalogue is not None:
            recommends = self._whole(ranker, self.catalogue)
        seen = seen_rule(options.exclude_seen)
        service = Service(
            ranker,
            recommends,
            log=self.log,
            exclude_seen=seen,
            title=options.title,
            varying=self._varying,
        )
        service.warm_up()
        if self._shared is not None and replaces:
            # files that the former service has mapped stay until it ends
            self._shared.remove_unused()
        return service

    def stores(self) -> Stores:
        """The stores given, after connecting to each and checking it."""
        options = self._options
        sources: dict[str, FeatureStore] = {} if self.users is None else {"users": self.users}
        if options.users is not None:
            sources["users"] = self._store(options.users, "user", options.user_id)
        if options.items is not None and (options.prerank is None or options.index is not None):
            sources["items"] = self._store(options.items, "item", options.item_id)
        results = {
            name: Lookup(name, store, timeout=options.store_timeout)
            for name, store in sources.items()
        }
        stores = Stores(**results, on_failure=cast(OnFailure, options.on_store_failure))

        async def check() -> None:
            async with stores.opened():
                pass

        asyncio.run(check())
        # lookups report failures of a store themselves
        logging.getLogger("psycopg").setLevel(logging.ERROR)
        return stores

    def _text_columns(self, *ids: str | None) -> list[str]:
        """The columns that the bundles read as text, and those of ids that options name."""
        known = [column for schema in self._schemas for column in schema.text_columns]
        return [*known, *(column for column in ids if column is not None)]

    def _bundle(self, folder: Path) -> Bundle:
        bundle = load_bundle(folder, self._options.device)
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
            raise type(e)(f"{source}: {e}") from None

    def _whole(self, ranker: Bundle, catalogue: pl.DataFrame) -> Ranker[Bundle] | None:
        """Ranking of all items by one bundle; None, with a sentence, if it cannot rank or there are too many items."""
        if catalogue.height > self._options.max_items:
            self._tell(
                f"no recommendations: {catalogue.height:,} items exceed --max-items {self._options.max_items:,}, the "
                "limit per request; train an IntTower and give it as --prerank, with its --index (`fieldwise index`)"
            )
            return None
        try:
            checked_ids(catalogue, self.item_id)
        except DataError as e:  # they cannot be looked up either
            raise DataError(f"{self._options.items or self._options.log}: ", *e.args) from None
        try:
            return Ranker(ranker, item_table(catalogue, self.item_id))
        except FieldwiseError as e:
            if self._options.log is not None:
                raise
            # --items still completes rows that only have an item id
            self._tell(f"no recommendations: {e}")
            return None


def share_weights(network: nn.Module, shared: SharedArrays) -> None:
    """Replace large CPU weights of a network by equal ones in shared memory, which must not be changed afterwards."""
    done: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for weight in [*network.parameters(), *network.buffers()]:
            plain = (
                weight.device.type == "cpu"
                and weight.dtype != torch.bfloat16
                and weight.is_contiguous()
            )
            if weight.nbytes < LEAST or not plain:
                continue
            address = weight.data_ptr()
            if address not in done:
                values = weight.detach().numpy()
                digest = hashlib.sha256(
                    np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
                ).hexdigest()
                kept = shared.array(
                    f"weights-{digest}-{values.dtype.str[1:]}", partial(np.asarray, values)
                )
                done[address] = torch.from_numpy(kept)
            weight.data = done[address].view(weight.shape)
