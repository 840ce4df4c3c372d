"""`fieldwise predict`, `fieldwise recommend` and `fieldwise export`."""

from collections import Counter
from pathlib import Path
from typing import Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.processes import EngineName, engine_for
from fieldwise.errors import ConfigError
from fieldwise.schema.ids import id_column
from fieldwise.storage.files import check_file, check_folder


def run(
    *,
    bundle: opt.BundleFolder,
    data: Annotated[Path, Option(help="Rows to score: CSV, TSV, Parquet, Arrow, libFM; a file, folder or pattern.")],
    out: Annotated[Path, Option(help="File to write keys and predictions to: .csv, .tsv, .parquet or .arrow.")],
    column: Annotated[str, Option(help="Name of the prediction column.")] = "prediction",
    logit: Annotated[bool, Option(help="Also write the log-odds, in a column `logit`.")] = False,
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

    The output has the rows' keys and a column `prediction`, in the file's order. A prediction is a probability, or
    a number for a regression label. A multi-task bundle writes a column per label: `prediction` for the main label,
    and prediction.NAME for each other.
    """
    from fieldwise.bundle.score_file import SpreadScores, check_two_files, score_file
    from fieldwise.data.read.chunked_table import SlicedTable
    from fieldwise.data.read.tables import TableWriter
    from fieldwise.ops.devices import device_of, slow_bfloat16

    if engine == "ray" and device != "cpu":
        raise ConfigError(f"--engine ray scores on CPUs, found --device {device}: leave one of them out")
    check_file(out)
    check_two_files(data, out)
    model = opt.load_bundle(bundle, device)
    slow = slow_bfloat16(device_of(model.network).type) if precision == "bfloat16" else None
    if slow:
        show.say(f"warning: {slow}")
    with engine_for(engine) as cluster, reading.lines(data), opt.reports_for(progress) as reports:
        spread = None if cluster is None else SpreadScores(engine=cluster, folder=bundle, imports=show.IMPORTS)
        writer, table = TableWriter(out, raw=raw), SlicedTable(data, reading.text)
        how = {"column": column, "logit": logit, "precision": precision, "reports": reports, "spread": spread}
        done = score_file(model, table, writer, **how)
    show.say(f"{show.counted(done.rows, 'prediction')} written to {out} ({', '.join(done.columns)})")
    show.say_guarded(writer)
    if unseen := [f"{name} {share:.1%}" for name, share in done.unseen.items() if share > 0]:
        what = "share of values not in the training rows, scored with their field's embedding for unknown values"
        show.say(f"{what}: {', '.join(unseen)}")
    if done.rows:
        given = ("--data", data, "--row", 0, *reading.options())
        show.suggest("explain the prediction of the first row", "explain", bundle, *given)


def run_recommend(
    *,
    bundle: opt.BundleFolder,
    log: Annotated[Path, Option(help="Events of users with items: the users, their latest contexts, the candidates.")],
    out: Annotated[Path, Option(help="File to write to: .csv, .tsv, .parquet or .arrow.")],
    k: Annotated[int, Option(min=1, help="Number of items for each user.")] = 10,
    users: Annotated[list[str] | None, Option("--user", help="Only this user; may be repeated. Default: all.")] = None,
    keep_seen: Annotated[bool, Option(help="Do not exclude items that the log has for the user.")] = False,
    title: Annotated[str | None, Option(metavar="COLUMN", help="Column of items' names, to be written too.")] = None,
    raw: opt.Raw = False,
    reading: opt.Reading,
    quiet: opt.Quiet = False,
    progress: opt.Shown = "text",
    device: opt.BundleDevice = "cpu",
) -> None:
    """Recommend items to every user of a log.

    These are the best by the model, without items seen, ten for each. Users whom the model does not know get the
    most popular items, which the column `source` says.
    """
    from fieldwise.data.read.tables import TableWriter
    from fieldwise.scoring.recommend import Catalogue, recommended_blocks

    check_file(out)
    model = opt.load_bundle(bundle, device)
    writer = TableWriter(out, raw=raw)
    rows, sources = 0, Counter[str]()
    with reading.lines(log), opt.reports_for(progress, quiet=quiet) as reports:
        frame = reading.table(log)
        user, item = (id_column(role, [model.schema], frame.columns) for role in ("user", "item"))
        catalogue = Catalogue(user=user, item=item, title=title)
        blocks = recommended_blocks(model, frame, catalogue, users, n=k, exclude_seen=not keep_seen, reports=reports)
        with writer:
            for block in blocks:
                writer.add(block)
                rows += block.height
                sources.update(block["source"].filter(block["rank"] == 1).to_list())
    ways = f"{show.counted(sources['model'], 'user')} by the model, {sources['popularity']:,} whom it does not know by"
    what = f"{show.counted(rows, 'recommendation')} written to {out} ({', '.join(block.columns)})"
    show.say(f"{what}: {ways} popularity")
    show.say_guarded(writer)


def run_export(
    *,
    bundle: opt.BundleFolder,
    out: Annotated[Path, Option(help="Folder for the network, sample rows and an example that runs it.")],
    to: Annotated[str, Option(help="onnx, or aoti: a library compiled for this processor type.")] = "onnx",
) -> None:
    """Export a network for ONNX Runtime, or for PyTorch alone.

    The exported network needs no fieldwise. The command runs it on sample rows, and compares its results with the
    bundle's.
    """
    check_folder(out)
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.bundle.export import FILES, export_bundle

    difference = export_bundle(Bundle.load(bundle), out, to)  # type: ignore[arg-type]
    print(f"{out / FILES[to]}: logits of the sample rows agree within {difference:.1e}; see {out / 'example.py'}")
