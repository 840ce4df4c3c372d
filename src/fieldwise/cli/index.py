"""`fieldwise index`: make or update the index of an IntTower's item heads."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, DataError, Row
from fieldwise.schema.ids import id_column
from fieldwise.storage.files import check_folder

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
    bundle = opt.load_bundle(options.bundle, options.device)
    if options.items is None and (options.remove is None or options.changes):
        raise ConfigError("an index needs items: give --items (optional only with --remove)")

    previous = old_index(options.out)
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
        items = _without(items, removed, column)

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
    words = ["--prerank", options.bundle, "--index", options.out, *show.log_words(bundle)]
    show.suggest(purpose, "serve", *words, needs="uvicorn")


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
    if previous is not None:
        if given is None:
            return previous.items
        if options.changes:
            return _with_changes(previous.items, given, column)
    assert given is not None, "checked before"
    return given


def _without(items: "pl.DataFrame", removed: "pl.DataFrame", column: str) -> "pl.DataFrame":
    """The catalogue without the items whose ids a table has."""
    removed_ids = _texts(removed, column, "--remove")
    ids = _texts(items, column, "--items")
    unknown = removed_ids.filter(~removed_ids.is_in(ids.implode()))
    if len(unknown):
        raise DataError(
            f"--remove must name items of the index, found {unknown[0]!r}, which is not in it"
        )
    return items.filter(~ids.is_in(removed_ids.implode()))


def _with_changes(items: "pl.DataFrame", changed: "pl.DataFrame", column: str) -> "pl.DataFrame":
    """The catalogue with changed rows in place of those of the same ids, and with new ones at the end."""
    import polars as pl

    changed_ids = _texts(changed, column, "--items").implode()
    if sorted(changed.columns) != sorted(items.columns):
        raise DataError(
            f"changed items must have the columns of the index: {', '.join(items.columns)}; found "
            f"{', '.join(changed.columns)}"
        )
    added = []
    for name, dtype in items.schema.items():
        values = changed.get_column(name)
        # the first id that is no number
        if name == column and dtype.is_integer() and values.dtype == pl.String:
            dtype = pl.String()
            items = items.with_columns(pl.col(name).cast(dtype))
        cast_values = values.cast(dtype, strict=False)
        is_same = cast_values.cast(values.dtype, strict=False).eq_missing(values)
        if not is_same.all():
            row = int((~is_same).arg_max() or 0)
            raise DataError(
                f"changed items must have the types of the index: column {name!r} is {dtype} there, found "
                f"{values[row]!r} in ",
                Row(row),
                "; build the index from the whole catalogue instead",
            )
        added.append(cast_values)
    is_changed = _texts(items, column, "the index").is_in(changed_ids)
    return pl.concat([items.filter(~is_changed), pl.DataFrame(added)])


def _texts(table: "pl.DataFrame", column: str, option: str) -> "pl.Series":
    """The ids of a table as texts."""
    from fieldwise.data.encode.columns import as_text

    if column not in table.columns:
        raise DataError(
            f"the table of {option} must have the column {column!r} of ids: {nearest(column, table.columns)}"
        )
    return as_text(table.get_column(column))
