"""What a bundle writes: `fieldwise predict`, `recommend`, `export` and `index`; and `store load`, for its server."""

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.processes import EngineName, engine_for
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema.ids import id_column
from fieldwise.storage.files import check_folder, check_not_input, check_output

if TYPE_CHECKING:
    import polars as pl


def run(
    *,
    bundle: opt.BundleFolder,
    data: Annotated[
        Path,
        Option(help="Rows to score: CSV, TSV, Parquet, Arrow, libFM; a file, folder or pattern."),
    ],
    out: Annotated[
        Path, Option(help="File to write keys and predictions to: .csv, .tsv, .parquet or .arrow.")
    ],
    column: Annotated[str, Option(help="Name of the prediction column.")] = "prediction",
    logit: Annotated[bool, Option(help="Also write the log-odds, in a column `logit`.")] = False,
    overwrite: opt.Overwrite = False,
    raw: opt.Raw = False,
    reading: opt.Reading,
    progress: opt.Shown = "text",
    device: opt.BundleDevice = "cpu",
    precision: Annotated[
        str,
        Option(
            callback=opt.one_of("float32", "bfloat16"),
            help="bfloat16 is faster on recent CPUs and GPUs, and less exact.",
        ),
    ] = "float32",
    engine: EngineName = "local",
) -> None:
    """Write predictions for the rows of a file.

    The output has the rows' keys and a column `prediction`, in the file's order. A prediction is a
    probability, or a number for a regression label. A multi-task bundle writes a column per label:
    `prediction` for the main label, and prediction.NAME for each other.
    """
    from fieldwise.bundle.score_file import SpreadScores, score_file
    from fieldwise.bundle.unknown_ids import MOST_ROWS_CHECKED, unknown_id_doubts
    from fieldwise.data.read.sliced_table import SlicedTable
    from fieldwise.data.read.table_writer import TableWriter
    from fieldwise.ops.devices import Precision, device_of, slow_bfloat16

    if engine == "ray" and device != "cpu":
        raise ConfigError(
            f"--engine ray scores on CPUs, found --device {device}: leave one of them out"
        )
    check_output(out, overwrite=overwrite, inputs=[bundle, *opt.table_files(data)])
    model = opt.load_bundle(bundle, device)
    slow = slow_bfloat16(device_of(model.network).type) if precision == "bfloat16" else None
    if slow:
        show.say(f"warning: {slow}")
    with engine_for(engine) as cluster, reading.lines(data), opt.reports_for(progress) as reports:
        spread = (
            None
            if cluster is None
            else SpreadScores(engine=cluster, folder=bundle, imports=show.IMPORTS)
        )
        writer = TableWriter(out, raw=raw)
        table = SlicedTable(data, reading.text(model.schema.text_columns))
        exactness = cast(Precision, precision)
        done = score_file(
            model,
            table,
            writer,
            column=column,
            logit=logit,
            reports=reports,
            precision=exactness,
            spread=spread,
        )
    show.say(
        f"{show.counted(done.rows, 'prediction')} written to {out} ({', '.join(done.columns)})"
    )
    show.say_guarded(writer)
    if unseen := [f"{name} {share:.1%}" for name, share in done.unseen.items() if share > 0]:
        what = "share of values not in the training rows, scored with their field's embedding for unknown values"
        show.say(f"{what}: {', '.join(unseen)}")
        first_rows = next(table.slices(model.schema.columns, MOST_ROWS_CHECKED), table.empty)
        for doubt in unknown_id_doubts(model, first_rows):
            show.say(f"CHECK: {doubt}")
    if done.rows:
        given = ("--data", data, "--row", 0, *reading.options())
        show.suggest("explain the prediction of the first row", "explain", bundle, *given)


def run_recommend(
    *,
    bundle: opt.BundleFolder,
    log: Annotated[
        Path,
        Option(
            help="Events of users with items: the users, their latest contexts, the candidates."
        ),
    ],
    out: Annotated[Path, Option(help="File to write to: .csv, .tsv, .parquet or .arrow.")],
    k: Annotated[int, Option(min=1, help="Number of items for each user.")] = 10,
    users: Annotated[
        list[str] | None, Option("--user", help="Only this user; may be repeated. Default: all.")
    ] = None,
    exclude_seen: opt.ExcludeSeen = None,
    title: Annotated[
        str | None, Option(metavar="COLUMN", help="Column of items' names, to be written too.")
    ] = None,
    overwrite: opt.Overwrite = False,
    raw: opt.Raw = False,
    reading: opt.Reading,
    quiet: opt.Quiet = False,
    progress: opt.Shown = "text",
    device: opt.BundleDevice = "cpu",
) -> None:
    """Recommend items to every user of a log.

    These are the best by the model, ten for each, without the items of the user's positive rows.
    Users whom the model does not know get the most popular items, which the column `source` says.
    """
    from fieldwise.data.read.table_writer import TableWriter
    from fieldwise.scoring.recommend import Catalogue, recommended_blocks

    check_output(out, overwrite=overwrite, inputs=[bundle, *opt.table_files(log)])
    model = opt.load_bundle(bundle, device)
    writer = TableWriter(out, raw=raw)
    rows = 0
    sources = Counter[str]()
    with reading.lines(log), opt.reports_for(progress, quiet=quiet) as reports:
        frame = reading.table(log, model.schema.text_columns)
        user, item = (id_column(role, [model.schema], frame.columns) for role in ("user", "item"))
        catalogue = Catalogue(user=user, item=item, title=title)
        seen = opt.seen_rule(exclude_seen)
        blocks = recommended_blocks(
            model, frame, catalogue, users, n=k, exclude_seen=seen, reports=reports
        )
        with writer:
            for block in blocks:
                writer.add(block)
                rows += block.height
                sources.update(block["source"].filter(block["rank"] == 1).to_list())
    ways = f"{show.counted(sources['model'], 'user')} by the model, {sources['popularity']:,} whom it does not know by"
    what = f"{show.counted(rows, 'recommendation')} written to {out} ({', '.join(block.columns)})"
    show.say(f"{what}: {ways} popularity")
    label = model.schema.label
    if excluded := opt.seen_words(label.rule if label.column in frame.columns else None, seen):
        show.say(excluded)
    show.say_guarded(writer)


def run_export(
    *,
    bundle: opt.BundleFolder,
    out: Annotated[
        Path, Option(help="Folder for the network, sample rows and an example that runs it.")
    ],
    to: Annotated[
        str, Option(help="onnx, or aoti: a library compiled for this processor type.")
    ] = "onnx",
    overwrite: opt.Overwrite = False,
) -> None:
    """Export a network for ONNX Runtime, or for PyTorch alone.

    The exported network needs no fieldwise. The command runs it on sample rows, and compares its
    results with the bundle's.
    """
    check_not_input(out, [bundle])
    check_folder(out)
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.bundle.export import EXPORT, FILES, export_bundle

    EXPORT.check_folder(out, overwrite=overwrite)

    difference = export_bundle(Bundle.load(bundle), out, to)  # type: ignore[arg-type]
    print(
        f"{out / FILES[to]}: logits of the sample rows agree within {difference:.1e}; see {out / 'example.py'}"
    )


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `fieldwise index`."""

    bundle: opt.BundleFolder
    out: Annotated[Path, Option(help="Folder of the index. An existing index is updated.")]
    items: Annotated[
        Path | None, Option(help="The catalogue, one row per item: CSV, TSV, Parquet or Arrow.")
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


def run_index(options: IndexOptions) -> None:
    """Store an IntTower's item heads for a catalogue.

    An update computes only new and changed items.
    """
    from fieldwise.ops.stored_items import Storage
    from fieldwise.serving.index import build_index, old_index

    storage = options.storage
    out = options.out
    names = get_args(Storage)
    if storage is not None and storage not in names:
        raise ConfigError(
            f"--storage must be a known type, found {storage!r}: {nearest(storage, names)}"
        )
    check_folder(out)
    bundle = opt.load_bundle(options.bundle, options.device)
    if options.items is None and (options.remove is None or options.changes):
        raise ConfigError("an index needs items: give --items (optional only with --remove)")
    old = old_index(out)
    texts = [
        *bundle.schema.text_columns,
        *filter(None, [options.id_column, old.id_column if old else None]),
    ]
    given = None if options.items is None else options.reading.table(options.items, texts)
    known = None if given is None else given.columns
    column = options.id_column or (
        old.id_column if old else id_column("item", [bundle.schema], known, option="--id")
    )
    if old is not None and column != old.id_column:
        raise ConfigError(
            f"the index {out} identifies items by {old.id_column!r}, found --id {column}: give another --out"
        )
    if options.id_column is None and old is None:
        show.say(f"items are identified by the column {column!r} (change it with --id)")
    if old is None and (options.changes or options.remove is not None):
        raise ConfigError(
            f"--changes and --remove need an existing index, found none at {out}: omit them"
        )
    items = given
    if old is not None and (given is None or options.changes):
        items = old.items if given is None else _with_changes(old.items, given, column)
    assert items is not None, "checked before"
    if options.remove is not None:
        gone = _texts(options.reading.table(options.remove, texts), column, "--remove")
        ids = _texts(items, column, "--items")
        unknown = gone.filter(~gone.is_in(ids.implode()))
        if len(unknown):
            raise DataError(
                f"--remove must name items of the index, found {unknown[0]!r}, which is not in it"
            )
        items = items.filter(~ids.is_in(gone.implode()))
    chosen = cast(Storage, storage or (old.stored.storage if old else "float32"))
    index, changes = build_index(
        bundle, items, out, id_column=column, storage=chosen, note=show.say
    )
    size = index.stored.num_bytes
    if options.json:
        show.print_json(
            {
                "index": str(out),
                "items": len(index),
                **asdict(changes),
                "storage": chosen,
                "bytes": size,
            }
        )
        return
    print(
        f"{len(index):,} items in {out}, {chosen}, {size / show.MIB:,.1f} MB of heads: {changes.new:,} new, "
        f"{changes.changed:,} changed, {changes.removed:,} removed, {changes.kept:,} unchanged"
    )
    what = "start a server with a web page that recommends these items"
    show.suggest(
        what,
        "serve",
        "--prerank",
        options.bundle,
        "--index",
        out,
        *show.log_words(bundle),
        needs="uvicorn",
    )


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
        # the first id that is no number
        if name == column and kind.is_integer() and values.dtype == pl.String:
            kind = pl.String()
            items = items.with_columns(pl.col(name).cast(kind))
        added.append(values.cast(kind, strict=False))
        # the cast may change no value
        same = added[-1].cast(values.dtype, strict=False).eq_missing(values)
        if not same.all():
            row = int((~same).arg_max() or 0)
            raise DataError(
                f"changed items must have the types of the index: column {name!r} is {kind} there, found "
                f"{values[row]!r} in row {row} (counting from 0); build the index from the whole catalogue instead"
            )
    return pl.concat(
        [items.filter(~_texts(items, column, "the index").is_in(new)), pl.DataFrame(added)]
    )


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options of `fieldwise store load`."""

    table: Annotated[
        Path, Argument(metavar="FILE", help="One row per user or item: CSV, TSV, Parquet or Arrow.")
    ]
    to: Annotated[
        str,
        Option(
            envvar="FIELDWISE_STORE",
            help="redis://HOST/0#users or postgresql://HOST/DATABASE#users; the part after # is the table's name.",
        ),
    ]
    id_column: Annotated[str, Option("--id", help="Column of user or item ids.")] = "user_id"
    reading: opt.Reading
    json: opt.AsJson = False


def run_load(options: LoadOptions) -> None:
    """Write a table into a store.

    It replaces a table of this name; servers read the old one until the new is complete.
    """
    from fieldwise.data.read.sliced_table import SlicedTable
    from fieldwise.serving.stores import load_table, open_store

    store = open_store(options.to, options.id_column)
    began = time.perf_counter()
    # a store knows no schema: nothing may be lost
    every_column = options.reading.text(text_columns=None)
    loaded = load_table(SlicedTable(options.table, every_column), store)
    seconds = time.perf_counter() - began
    if options.json:
        show.print_json({"store": store.shown, **loaded, "seconds": seconds})
        return
    before = "" if loaded["before"] is None else f", replacing {loaded['before']:,}"
    print(
        f"{loaded['rows']:,} rows in {store.shown}{before}: {', '.join(loaded['columns'])}; {seconds:.1f} s"
    )
