"""`fieldwise report`."""

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.devices import BundleDevice, check_device
from fieldwise.cli.next import suggest
from fieldwise.cli.options import Quiet, cache_for, data_folder
from fieldwise.cli.show import say
from fieldwise.errors import ConfigError, DataError

__all__ = ["run"]


def run(
    *,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Bundles of `train`, or kept runs of `compare`; the first is the baseline."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice", metavar="FIELD", help="Evaluate by the values of this field or column. May be repeated."
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of test rows to explain, sampled at random.")] = 500,
    quiet: Quiet = False,
    device: BundleDevice = "cpu",
) -> None:
    """Write an offline HTML report about runs: metrics, curves, calibration, slices, cold start, explanations."""
    from fieldwise.bundle.files import MANIFEST
    from fieldwise.report import ReportSettings, report
    from fieldwise.storage.files import check_file, keep_elsewhere, write_atomically

    if out.is_dir():
        raise ConfigError(f"--out must be a file, but {out} is a folder: give {out / 'report.html'}")
    check_file(out)
    check_device(device)
    settings = ReportSettings(slices=tuple(slices or ()), rows=rows, device=device)
    cache = cache_for(quiet)
    page = report(runs, settings, data_dir=data_folder(), cache=cache).encode()
    try:
        write_atomically(out, page)
    except DataError as e:
        kept = keep_elsewhere(lambda folder: write_atomically(folder / out.name, page))
        raise (
            e if kept is None else DataError(f"{e}. The report was saved as {kept / out.name}: move it from there")
        ) from e
    if not quiet:
        say(f"report written to {out} ({len(page) / 1024:,.0f} KiB)")
        bundles = [run for run in runs if (run / MANIFEST).is_file()]
        if bundles:
            suggest("start a web page to edit rows and see their scores", "serve", bundles[0], needs="uvicorn")
