"""`fieldwise report`: an HTML page about trained runs."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, saving, show
from fieldwise.errors import ConfigError
from fieldwise.storage.files import write_atomically
from fieldwise.storage.outputs import check_output


def run(
    *,
    runs: Annotated[
        list[Path],
        Argument(metavar="RUN", help="Bundles or runs of `compare`, the baseline first."),
    ],
    out: Annotated[Path, Option(help="The HTML file to write.")] = Path("report.html"),
    overwrite: opt.Overwrite = False,
    slices: Annotated[
        list[str] | None,
        Option(
            "--slice", metavar="FIELD", help="Evaluate by this field's values. May be repeated."
        ),
    ] = None,
    rows: Annotated[
        int, Option(min=1, help="Maximum number of test rows to explain, sampled at random.")
    ] = 500,
    quiet: opt.Quiet = False,
    device: opt.BundleDevice = "cpu",
) -> None:
    """Write an offline HTML page about trained runs.

    It has their metrics, curves, calibration, slices, cold start and explanations.
    """
    from fieldwise.bundle.bundle import MANIFEST
    from fieldwise.report import ReportSettings, report

    if out.is_dir():
        raise ConfigError(
            f"--out must be a file, but {out} is a folder: give {out / 'report.html'}"
        )
    check_output(out, overwrite=overwrite, inputs=runs)
    resources.check_device(device)
    settings = ReportSettings(slices=tuple(slices or ()), rows=rows, device=device)
    page = report(
        runs, settings, data_dir=resources.data_folder(), cache=resources.cache_for(quiet)
    ).encode()

    def save(folder: Path) -> None:
        write_atomically(folder / out.name, page)

    _, save_error = saving.save_or_keep(save, out.parent, "The report")
    if save_error is not None:
        raise save_error
    if quiet:
        return
    show.say(f"report written to {out} ({len(page) / 1024:,.0f} KiB)")
    bundles = [run for run in runs if (run / MANIFEST).is_file()]
    if bundles:
        purpose = "start a web page to edit rows and see their scores"
        show.suggest(purpose, "serve", bundles[0], needs="uvicorn")
