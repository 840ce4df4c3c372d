"""`fieldwise index`: make or update the index of an IntTower's item heads."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.config import nearest
from fieldwise.errors import ConfigError
from fieldwise.schema.ids import id_column
from fieldwise.storage.outputs import check_folder

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.scoring.items import ItemIndex


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `fieldwise index`."""

    bundle: opt.BundleFolder
    out: Annotated[Path, Option(help="Folder of the index. An existing index is updated.")]
    items: Annotated[
        Path | None, Option(help=f"The catalogue, one row per item: {opt.READ_FORMATS}.")
    ] = None
    id_column: Annotated[
        str | None, Option("--id", help="Column of item ids. Default: the schema's.")
    ] = None
    storage: Annotated[
        str | None,
        Option(help="float32, bfloat16 or int8. Default: as in the existing index, else float32."),
    ] = None
    changes: Annotated[
        bool, Option(help="--items holds only new and changed items; the others stay.")
    ] = False
    remove: Annotated[Path | None, Option(help="A table with ids of items to remove.")] = None
    reading: opt.Reading
    json: opt.AsJson = False
    device: opt.BundleDevice = "cpu"


def run(options: IndexOptions) -> None:
    """Store an IntTower's item heads for a catalogue.

    An update computes only new and changed items.
    """
    from fieldwise.ops.stored_items import Storage
    from fieldwise.serving.index import build_index, old_index

    storage_names = get_args(Storage)
    if options.storage is not None and options.storage not in storage_names:
        raise ConfigError(
            f"--storage must be a known type, found {options.storage!r}: {nearest(options.storage, storage_names)}"
        )
    check_folder(options.out)
    bundle = resources.load_bundle(options.bundle, options.device)
    if options.items is None and (options.remove is None or options.changes):
        raise ConfigError("an index needs items: give --items (optional only with --remove)")

    previous = old_index(options.out)
    items, column = _catalogue(options, bundle, previous)
    storage = options.storage
    if storage is None:
        storage = "float32" if previous is None else previous.stored.storage
    index, changes = build_index(
        bundle,
        items,
        options.out,
        id_column=column,
        storage=cast(Storage, storage),
        note=show.say,
    )
    size = index.stored.num_bytes
    if options.json:
        show.print_json(
            {
                "index": str(options.out),
                "items": len(index),
                **asdict(changes),
                "storage": storage,
                "bytes": size,
            }
        )
        return
    print(
        f"{len(index):,} items in {options.out}, {storage}, {size / show.MIB:,.1f} MB of heads: {changes.new:,} new, "
        f"{changes.changed:,} changed, {changes.removed:,} removed, {changes.kept:,} unchanged"
    )
    purpose = "start a server with a web page that recommends these items"
    words = ["--tower", options.bundle, "--index", options.out, *show.log_words(bundle)]
    show.suggest(purpose, "serve", *words, needs="uvicorn")


def _catalogue(
    options: IndexOptions, bundle: "Bundle", previous: "ItemIndex | None"
) -> "tuple[pl.DataFrame, str]":
    """The items of the new index, and the column of their ids."""
    from fieldwise.serving.index import without_items

    text_columns = [*bundle.schema.text_columns]
    if options.id_column:
        text_columns.append(options.id_column)
    if previous is not None and previous.id_column:
        text_columns.append(previous.id_column)
    given = None
    if options.items is not None:
        given = options.reading.table(options.items, text_columns)
    column = _id_column(options, bundle, previous, given)
    if previous is None and (options.changes or options.remove is not None):
        raise ConfigError(
            f"--changes and --remove need an existing index, found none at {options.out}: omit them"
        )
    items = _items(options, previous, given, column)
    if options.remove is not None:
        removed = options.reading.table(options.remove, text_columns)
        items = without_items(items, removed, column)
    return items, column


def _id_column(
    options: IndexOptions,
    bundle: "Bundle",
    previous: "ItemIndex | None",
    items: "pl.DataFrame | None",
) -> str:
    """The column of item ids: the given one, that of the existing index, or the schema's, which is said."""
    if options.id_column:
        column = options.id_column
    elif previous is not None:
        column = previous.id_column
    else:
        known = None if items is None else items.columns
        column = id_column("item", [bundle.schema], known, option="--id")
    if previous is not None and column != previous.id_column:
        raise ConfigError(
            f"the index {options.out} identifies items by {previous.id_column!r}, found --id {column}: give another "
            "--out"
        )
    if options.id_column is None and previous is None:
        show.say(f"items are identified by the column {column!r} (change it with --id)")
    return column


def _items(
    options: IndexOptions,
    previous: "ItemIndex | None",
    given: "pl.DataFrame | None",
    column: str,
) -> "pl.DataFrame":
    """The catalogue: the given items, those of the existing index, or these with the given changes."""
    from fieldwise.serving.index import with_changed_items

    if previous is not None:
        if given is None:
            return previous.items
        if options.changes:
            return with_changed_items(previous.items, given, column)
    assert given is not None, "checked before"
    return given
