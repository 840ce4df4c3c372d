"""`fieldwise index`."""

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from fieldwise.cli.devices import BundleDevice, load_bundle
from fieldwise.cli.next import suggest
from fieldwise.cli.options import AsJson, BundleFolder, Reading, Threads, set_threads
from fieldwise.cli.show import print_json, say
from fieldwise.config import nearest
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.schema import Schema
    from fieldwise.serving.index import ItemIndex

__all__ = ["IndexOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `fieldwise index`."""

    bundle: BundleFolder
    out: Annotated[Path, typer.Option(help="Folder of the index. An existing index is updated.")]
    items: Annotated[Path | None, typer.Option(help="The catalogue, one row per item: CSV, TSV, Parquet or Arrow.")] = (
        None
    )
    id_column: Annotated[str | None, typer.Option("--id", help="Column of item ids. Default: the schema's.")] = None
    storage: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or int8. Default: as in the existing index, else float32.")
    ] = None
    changes: Annotated[
        bool, typer.Option("--changes", help="--items holds only new and changed items; the others stay.")
    ] = False
    remove: Annotated[Path | None, typer.Option(help="A table with ids of items to remove.")] = None
    reading: Reading
    json: AsJson = False
    device: BundleDevice = "cpu"
    threads: Threads = None


def run(options: IndexOptions) -> None:
    """Compute and store an IntTower's item heads for a catalogue. An update computes only new and changed items."""
    from fieldwise.ops.stored_items import Storage
    from fieldwise.serving.index import build_index, old_index
    from fieldwise.storage.files import check_folder

    storage, out, names = options.storage, options.out, get_args(Storage)
    if storage is not None and storage not in names:
        raise ConfigError(f"--storage must be a known type, found {storage!r}: {nearest(storage, names)}")
    check_folder(out)
    set_threads(options.threads)
    bundle = load_bundle(options.bundle, options.device)
    if options.items is None and (options.remove is None or options.changes):
        raise ConfigError("an index needs items: give --items (optional only with --remove)")
    old = old_index(out)
    given = None if options.items is None else options.reading.table(options.items)
    column = options.id_column or (old.id_column if old else _column(bundle.schema, given))
    if old is not None and column != old.id_column:
        raise ConfigError(
            f"the index {out} identifies items by {old.id_column!r}, found --id {column}: give another --out"
        )
    if options.id_column is None and old is None:
        say(f"items are identified by the column {column!r} (change it with --id)")
    chosen = cast(Storage, storage or (old.stored.storage if old else "float32"))
    index, changes = build_index(
        bundle, _items(options, old, given, column), out, id_column=column, storage=chosen, note=say
    )
    size = index.stored.num_bytes
    if options.json:
        print_json({"index": str(out), "items": len(index), **asdict(changes), "storage": chosen, "bytes": size})
        return
    print(
        f"{len(index):,} items in {out}, {chosen}, {size / 2**20:,.1f} MB of heads: {changes.new:,} new, "
        f"{changes.changed:,} changed, {changes.removed:,} removed, {changes.kept:,} unchanged"
    )
    if find_spec("uvicorn") is not None:
        suggest(
            "start a server with a web page that recommends these items",
            "serve",
            "--prerank",
            options.bundle,
            "--index",
            out,
        )


def _column(schema: "Schema", items: "pl.DataFrame | None") -> str:
    from fieldwise.schema.ids import id_column

    return id_column("item", [schema], None if items is None else items.columns, option="--id")


def _items(options: IndexOptions, old: "ItemIndex | None", given: "pl.DataFrame | None", column: str) -> "pl.DataFrame":
    """The whole catalogue: as given, or the old index's catalogue with the changes applied."""
    if options.changes or options.remove is not None:
        if old is None:
            raise ConfigError(f"--changes and --remove need an existing index, found none at {options.out}: omit them")
        from fieldwise.cli.index_changes import merged

        gone = None if options.remove is None else options.reading.table(options.remove)
        return merged(old.items, given if options.changes else None, gone, given, column)
    assert given is not None, "checked before"
    return given
