"""`fieldwise predict` and `fieldwise export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from fieldwise.cli.options import BundleDevice, BundleFolder, Raw, Reading, Shown, load_bundle, one_of, reports_for
from fieldwise.cli.processes import EngineName, engine_for
from fieldwise.cli.show import IMPORTS, say, say_guarded, suggest
from fieldwise.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Options of `fieldwise predict`."""

    bundle: BundleFolder
    data: Annotated[
        Path, typer.Option(help="Rows to score: CSV, TSV, Parquet, Arrow, libFM; a file, folder or pattern.")
    ]
    out: Annotated[Path, typer.Option(help="File to write keys and predictions to: .csv, .tsv, .parquet or .arrow.")]
    column: Annotated[str, typer.Option(help="Name of the prediction column.")] = "prediction"
    logit: Annotated[bool, typer.Option("--logit", help="Also write the log-odds, in a column `logit`.")] = False
    raw: Raw = False
    reading: Reading
    progress: Shown = "text"
    device: BundleDevice = "cpu"
    precision: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            callback=one_of("--precision", "float32", "bfloat16"),
            help="`float32`, or `bfloat16`: matrix products in 16 bits, faster with AVX512-BF16, AMX or a GPU; "
            "predictions differ in the third digit.",
        ),
    ] = "float32"
    engine: EngineName = "local"


def run(options: PredictOptions) -> None:
    """Write predictions for the rows of a file.

    The output has the rows' keys and a column `prediction`, in the file's order. A prediction is a probability, or
    a number for a regression label. A multi-task bundle writes a column per label: `prediction` for the main label,
    and prediction.NAME for each other.
    """
    from fieldwise.bundle.score_file import SpreadScores, check_two_files, score_file
    from fieldwise.data.read.chunked_table import SlicedTable
    from fieldwise.data.read.tables import TableWriter
    from fieldwise.ops.devices import Precision, device_of, slow_bfloat16
    from fieldwise.storage.files import check_file

    if options.engine == "ray" and options.device != "cpu":
        raise ConfigError(f"--engine ray scores on CPUs, found --device {options.device}: leave one of them out")
    data, out, reading = options.data, options.out, options.reading
    check_file(out)
    check_two_files(data, out)
    bundle = load_bundle(options.bundle, options.device)
    precision = cast(Precision, options.precision)
    slow = slow_bfloat16(device_of(bundle.network).type) if precision == "bfloat16" else None
    if slow:
        say(f"warning: {slow}")
    with engine_for(options.engine) as engine, reading.lines(data), reports_for(options.progress) as reports:
        spread = None if engine is None else SpreadScores(engine=engine, folder=options.bundle, imports=IMPORTS)
        writer = TableWriter(out, raw=options.raw)
        done = score_file(
            bundle,
            SlicedTable(data, reading.text),
            writer,
            column=options.column,
            logit=options.logit,
            reports=reports,
            precision=precision,
            spread=spread,
        )
    say(f"{done.rows:,} predictions written to {out} ({', '.join(done.columns)})")
    say_guarded(writer)
    if unseen := [f"{name} {share:.1%}" for name, share in done.unseen.items() if share > 0]:
        what = "share of values not in the training rows, scored with their field's embedding for unknown values"
        say(f"{what}: {', '.join(unseen)}")
    if done.rows:
        given = ("--data", data, "--row", 0, *reading.options())
        suggest("explain the prediction of the first row", "explain", options.bundle, *given)


def run_export(
    *,
    bundle: BundleFolder,
    out: Annotated[Path, typer.Option(help="Folder for the network, sample rows and an example that runs it.")],
    to: Annotated[str, typer.Option(help="onnx, or aoti: a library compiled for this processor type.")] = "onnx",
) -> None:
    """Export a network for ONNX Runtime, or for PyTorch alone.

    The exported network needs no fieldwise. The command runs it on sample rows, and compares its results with the
    bundle's.
    """
    from fieldwise.storage.files import check_folder

    check_folder(out)
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.bundle.export import FILES, export_bundle

    difference = export_bundle(Bundle.load(bundle), out, to)  # type: ignore[arg-type]
    print(f"{out / FILES[to]}: logits of the sample rows agree within {difference:.1e}; see {out / 'example.py'}")
