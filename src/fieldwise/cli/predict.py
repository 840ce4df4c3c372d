"""`fieldwise predict`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.next import suggest
from fieldwise.cli.options import BundleFolder, Reading, Threads, set_threads
from fieldwise.cli.show import say

__all__ = ["PredictOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What `fieldwise predict` is asked for."""

    bundle: BundleFolder
    data: Annotated[Path, typer.Option(help="Rows to score: CSV, TSV, Parquet, Arrow or libFM.")]
    out: Annotated[Path, typer.Option(help="Where to write keys and predictions: .csv, .tsv, .parquet or .arrow.")]
    column: Annotated[str, typer.Option(help="Name of the column of predictions.")] = "prediction"
    logit: Annotated[bool, typer.Option("--logit", help="Write the log-odds too, in a column `logit`.")] = False
    reading: Reading
    threads: Threads = None


def run(options: PredictOptions) -> None:
    """Predict the rows of a file; the output has their keys and a column `prediction`, in the file's order.

    A prediction is a probability, or a number for a regression label. A bundle of several labels gives a column each:
    the main label's, and the others' as prediction.NAME.
    """
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.bundle.score_file import score_file
    from fieldwise.storage.files import check_file

    data, out, reading = options.data, options.out, options.reading
    check_file(out)
    set_threads(options.threads)
    bundle = Bundle.load(options.bundle)
    with reading.lines(data):
        done = score_file(bundle, data, out, column=options.column, logit=options.logit, **reading.arguments)
    say(f"{done.rows:,} rows predicted, written to {out} ({', '.join(done.columns)})")
    unseen = [f"{name} {share:.1%}" for name, share in done.unseen.items() if share > 0]
    if unseen:
        say("values that no training row had, scored by their field's unknown row: " + ", ".join(unseen))
    if done.rows:
        given = ("--data", data, "--row", 0, *reading.options())
        suggest("why its first row has this prediction", "explain", options.bundle, *given)
