"""`fieldwise index` and `fieldwise store load`: what `fieldwise serve` reads besides bundles."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

from typer import Argument, Option

from fieldwise.cli.options import AsJson, BundleDevice, BundleFolder, Reading, load_bundle
from fieldwise.cli.show import MIB, log_words, print_json, say, suggest
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `fieldwise index`."""

    bundle: BundleFolder
    out: Annotated[Path, Option(help="Folder of the index. An existing index is updated.")]
    items: Annotated[Path | None, Option(help="The catalogue, one row per item: CSV, TSV, Parquet or Arrow.")] = None
    id_column: Annotated[str | None, Option("--id", help="Column of item ids. Default: the schema's.")] = None
    storage: Annotated[
        str | None, Option(help="float32, bfloat16 or int8. Default: as in the existing index, else float32.")
    ] = None
    changes: Annotated[bool, Option(help="--items holds only new and changed items; the others stay.")] = False
    remove: Annotated[Path | None, Option(help="A table with ids of items to remove.")] = None
    reading: Reading
    json: AsJson = False
    device: BundleDevice = "cpu"


def run(options: IndexOptions) -> None:
    """Store an IntTower's item heads for a catalogue.

    An update computes only new and changed items.
    """
    from fieldwise.ops.stored_items import Storage
    from fieldwise.schema.ids import id_column
    from fieldwise.serving.index import build_index, old_index
    from fieldwise.storage.files import check_folder

    storage, out, names, table = options.storage, options.out, get_args(Storage), options.reading.table
    if storage is not None and storage not in names:
        raise ConfigError(f"--storage must be a known type, found {storage!r}: {nearest(storage, names)}")
    check_folder(out)
    bundle = load_bundle(options.bundle, options.device)
    if options.items is None and (options.remove is None or options.changes):
        raise ConfigError("an index needs items: give --items (optional only with --remove)")
    old = old_index(out)
    given = None if options.items is None else table(options.items)
    known = None if given is None else given.columns
    column = options.id_column or (old.id_column if old else id_column("item", [bundle.schema], known, option="--id"))
    if old is not None and column != old.id_column:
        raise ConfigError(
            f"the index {out} identifies items by {old.id_column!r}, found --id {column}: give another --out"
        )
    if options.id_column is None and old is None:
        say(f"items are identified by the column {column!r} (change it with --id)")
    if old is None and (options.changes or options.remove is not None):
        raise ConfigError(f"--changes and --remove need an existing index, found none at {out}: omit them")
    items = given
    if old is not None and (given is None or options.changes):
        items = old.items if given is None else _with_changes(old.items, given, column)
    assert items is not None, "checked before"
    if options.remove is not None:
        gone, ids = _texts(table(options.remove), column, "--remove"), _texts(items, column, "--items")
        unknown = gone.filter(~gone.is_in(ids.implode()))
        if len(unknown):
            raise DataError(f"--remove must name items of the index, found {unknown[0]!r}, which is not in it")
        items = items.filter(~ids.is_in(gone.implode()))
    chosen = cast(Storage, storage or (old.stored.storage if old else "float32"))
    index, changes = build_index(bundle, items, out, id_column=column, storage=chosen, note=say)
    size = index.stored.num_bytes
    if options.json:
        print_json({"index": str(out), "items": len(index), **asdict(changes), "storage": chosen, "bytes": size})
        return
    print(
        f"{len(index):,} items in {out}, {chosen}, {size / MIB:,.1f} MB of heads: {changes.new:,} new, "
        f"{changes.changed:,} changed, {changes.removed:,} removed, {changes.kept:,} unchanged"
    )
    what = "start a server with a web page that recommends these items"
    suggest(what, "serve", "--prerank", options.bundle, "--index", out, *log_words(bundle), needs="uvicorn")


def _texts(table: "pl.DataFrame", column: str, option: str) -> "pl.Series":
    """The ids of a table as texts."""
    from fieldwise.data.encode.columns import as_text

    if column not in table.columns:
        raise DataError(
            f"the table of {option} must have the column {column!r} of ids: {nearest(column, table.columns)}"
        )
    return as_text(table.get_column(column))


def _with_changes(items: "pl.DataFrame", changed: "pl.DataFrame", column: str) -> "pl.DataFrame":
    """The catalogue with changed rows in place of those of the same ids, and with new ones at the end."""
    import polars as pl

    new = _texts(changed, column, "--items").implode()
    if sorted(changed.columns) != sorted(items.columns):
        raise DataError(
            f"changed items must have the columns of the index: {', '.join(items.columns)}; found "
            f"{', '.join(changed.columns)}"
        )
    added = []
    for name, kind in items.schema.items():
        values = changed.get_column(name)
        added.append(values.cast(kind, strict=False))
        same = added[-1].cast(values.dtype, strict=False).eq_missing(values)  # the cast may change no value
        if not same.all():
            row = int((~same).arg_max() or 0)
            raise DataError(
                f"changed items must have the types of the index: column {name!r} is {kind} there, found "
                f"{values[row]!r} in row {row} (counting from 0); build the index from the whole catalogue instead"
            )
    return pl.concat([items.filter(~_texts(items, column, "the index").is_in(new)), pl.DataFrame(added)])


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options of `fieldwise store load`."""

    table: Annotated[Path, Argument(metavar="FILE", help="One row per user or item: CSV, TSV, Parquet or Arrow.")]
    to: Annotated[
        str,
        Option(
            envvar="FIELDWISE_STORE",
            help="redis://HOST/0#users or postgresql://HOST/DATABASE#users; the part after # is the table's name.",
        ),
    ]
    id_column: Annotated[str, Option("--id", help="Column of user or item ids.")] = "user_id"
    reading: Reading
    json: AsJson = False


def run_load(options: LoadOptions) -> None:
    """Write a table into a store.

    It replaces a table of this name; servers read the old one until the new is complete.
    """
    from fieldwise.data.read.chunked_table import SlicedTable
    from fieldwise.serving.stores import load_table, open_store

    store = open_store(options.to, options.id_column)
    began = time.perf_counter()
    loaded = load_table(SlicedTable(options.table, options.reading.text), store)
    seconds = time.perf_counter() - began
    if options.json:
        print_json({"store": store.shown, **loaded, "seconds": seconds})
        return
    before = "" if loaded["before"] is None else f", replacing {loaded['before']:,}"
    print(f"{loaded['rows']:,} rows in {store.shown}{before}: {', '.join(loaded['columns'])}; {seconds:.1f} s")
