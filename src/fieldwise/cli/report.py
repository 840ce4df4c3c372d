"""`fieldwise report`."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.devices import BundleDevice, check_device
from fieldwise.cli.next import suggest
from fieldwise.cli.options import MAX_SEED, DataDir, Quiet, Threads, UseCache, cache_for, resolve_data_dir, set_threads
from fieldwise.cli.show import say
from fieldwise.errors import ConfigError, DataError

__all__ = ["ReportOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of `fieldwise report`."""

    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Bundles of `train`, or kept runs of `compare`; the first is the baseline."
        ),
    ]
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html")
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice", metavar="FIELD", help="Evaluate by the values of this field or column. May be repeated."
        ),
    ] = None
    user: Annotated[str | None, typer.Option(help="Column of user ids. Default: the schema's.")] = None
    item: Annotated[str | None, typer.Option(help="Column of item ids. Default: the schema's.")] = None
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of test rows to explain, sampled at random.")] = 500
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed for sampling and the bootstrap.")] = 0
    data_dir: DataDir = None
    quiet: Quiet = False
    device: BundleDevice = "cpu"
    threads: Threads = None
    cache: UseCache = True


def run(options: ReportOptions) -> None:
    """Write an offline HTML report about runs: metrics, curves, calibration, slices, cold start, explanations."""
    from fieldwise.bundle.files import MANIFEST
    from fieldwise.report import ReportSettings, report
    from fieldwise.storage.files import check_file, keep_elsewhere, write_atomically

    out = options.out
    if out.is_dir():
        raise ConfigError(f"--out must be a file, but {out} is a folder: give {out / 'report.html'}")
    check_file(out)
    set_threads(options.threads)
    check_device(options.device)
    settings = ReportSettings(
        slices=tuple(options.slices or ()),
        user=options.user,
        item=options.item,
        rows=options.rows,
        seed=options.seed,
        device=options.device,
    )
    cache = cache_for(options.cache, options.quiet)
    page = report(options.runs, settings, data_dir=resolve_data_dir(options.data_dir), cache=cache).encode()
    try:
        write_atomically(out, page)
    except DataError as e:
        kept = keep_elsewhere(lambda folder: write_atomically(folder / out.name, page))
        raise (
            e if kept is None else DataError(f"{e}. The report was saved as {kept / out.name}: move it from there")
        ) from e
    if not options.quiet:
        say(f"report written to {out} ({len(page) / 1024:,.0f} KiB)")
        bundles = [run for run in options.runs if (run / MANIFEST).is_file()]
        if bundles and find_spec("uvicorn") is not None:
            suggest("start a web page to edit rows and see their scores", "serve", bundles[0])
