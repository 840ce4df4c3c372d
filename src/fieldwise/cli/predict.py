"""`fieldwise predict`: write predictions for the rows of a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.cli.processes import EngineName, engine_for
from fieldwise.errors import ConfigError
from fieldwise.storage.outputs import check_output

if TYPE_CHECKING:
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.bundle.score_file import ScoredFile
    from fieldwise.data.read.sliced_table import SlicedTable


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Options of `fieldwise predict`."""

    bundle: opt.BundleFolder
    data: Annotated[
        Path,
        Option(help=f"Rows to score: {opt.READ_FORMATS}; a file, folder or pattern."),
    ]
    out: Annotated[
        Path, Option(help=f"File to write keys and predictions to: {opt.WRITTEN_FORMATS}.")
    ]
    column: Annotated[str, Option(help="Name of the prediction column.")] = "prediction"
    logit: Annotated[bool, Option(help="Also write the log-odds, in a column `logit`.")] = False
    overwrite: opt.Overwrite = False
    raw: opt.Raw = False
    reading: opt.Reading
    progress: opt.Shown = "text"
    device: opt.BundleDevice = "cpu"
    precision: Annotated[
        str,
        Option(
            callback=opt.one_of("float32", "bfloat16"),
            help="bfloat16 is faster on recent CPUs and GPUs, and less exact.",
        ),
    ] = "float32"
    engine: EngineName = "local"


def run(options: PredictOptions) -> None:
    """Write predictions for the rows of a file.

    The output has the rows' keys and a column `prediction`, in the file's order. A prediction is a
    probability, or a number for a regression label. A multi-task bundle writes a column per label:
    `prediction` for the main label, and prediction.NAME for each other.
    """
    from fieldwise.bundle.score_file import SpreadScores, score_file
    from fieldwise.data.read.sliced_table import SlicedTable
    from fieldwise.data.read.table_writer import TableWriter
    from fieldwise.ops.devices import Precision, device_of, slow_bfloat16

    if options.engine == "ray" and options.device != "cpu":
        raise ConfigError(
            f"--engine ray scores on CPUs, found --device {options.device}: leave one of them out"
        )
    check_output(
        options.out,
        overwrite=options.overwrite,
        inputs=[options.bundle, *resources.table_files(options.data)],
    )
    model = resources.load_bundle(options.bundle, options.device)
    if options.precision == "bfloat16":
        warning = slow_bfloat16(device_of(model.network).type)
        if warning:
            show.say(f"warning: {warning}")

    with (
        engine_for(options.engine) as cluster,
        options.reading.lines(options.data),
        resources.reports_for(options.progress) as reports,
    ):
        spread = None
        if cluster is not None:
            spread = SpreadScores(engine=cluster, folder=options.bundle, imports=show.IMPORTS)
        writer = TableWriter(options.out, raw=options.raw)
        table = SlicedTable(options.data, options.reading.text(model.schema.text_columns))
        scored = score_file(
            model,
            table,
            writer,
            column=options.column,
            logit=options.logit,
            reports=reports,
            precision=cast(Precision, options.precision),
            spread=spread,
        )
    columns = ", ".join(scored.columns)
    show.say(f"{show.counted(scored.rows, 'prediction')} written to {options.out} ({columns})")
    show.say_guarded(writer)
    _say_unseen(scored, model, table)
    if scored.rows:
        words = ["--data", options.data, "--row", 0, *options.reading.text().words()]
        show.suggest("explain the prediction of the first row", "explain", options.bundle, *words)


def _say_unseen(scored: "ScoredFile", model: "Bundle", table: "SlicedTable") -> None:
    """Say how many values of the fields are not in the training rows, and why that may be, if any are."""
    from fieldwise.bundle.unknown_ids import MOST_ROWS_CHECKED, unknown_id_doubts

    unseen = [f"{name} {share:.1%}" for name, share in scored.unseen.items() if share > 0]
    if not unseen:
        return
    show.say(
        "share of values not in the training rows, scored with their field's embedding for unknown values: "
        + ", ".join(unseen)
    )
    first_rows = next(table.slices(model.schema.columns, MOST_ROWS_CHECKED), table.empty)
    for doubt in unknown_id_doubts(model, first_rows):
        show.say(f"CHECK: {doubt}")
