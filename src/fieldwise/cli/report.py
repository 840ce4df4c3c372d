"""`fieldwise report`."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.next import suggest
from fieldwise.cli.options import MAX_SEED, DataDir, Quiet, Threads, UseCache, cache_for, resolve_data_dir, set_threads
from fieldwise.cli.show import say
from fieldwise.errors import ConfigError, DataError

__all__ = ["ReportOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What `fieldwise report` is asked for."""

    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Bundles of `train`, or kept runs of `compare`; the first is the baseline."
        ),
    ]
    out: Annotated[Path, typer.Option(help="The page to write, one HTML file.")] = Path("report.html")
    slices: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="FIELD", help="Measure by the values of a field or column. May be repeated."),
    ] = None
    user: Annotated[str | None, typer.Option(help="Column of users; the schema's, if left out.")] = None
    item: Annotated[str | None, typer.Option(help="Column of items; the schema's, if left out.")] = None
    rows: Annotated[int, typer.Option(min=1, help="So many test rows at most, drawn, are explained.")] = 500
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of rows drawn and of the bootstrap.")] = 0
    data_dir: DataDir = None
    quiet: Quiet = False
    threads: Threads = None
    cache: UseCache = True


def run(options: ReportOptions) -> None:
    """Write a page about runs that works offline: metrics, curves, calibration, slices, cold start, explanations."""
    from fieldwise.bundle.bundle import MANIFEST
    from fieldwise.report import ReportSettings, report
    from fieldwise.storage.files import check_file, keep_elsewhere, write_atomically

    out = options.out
    if out.is_dir():
        raise ConfigError(f"--out is the file to write, but {out} is a folder: give {out / 'report.html'}")
    check_file(out)
    set_threads(options.threads)
    settings = ReportSettings(
        slices=tuple(options.slices or ()),
        user=options.user,
        item=options.item,
        rows=options.rows,
        seed=options.seed,
    )
    cache = cache_for(options.cache, options.quiet)
    page = report(options.runs, settings, data_dir=resolve_data_dir(options.data_dir), cache=cache).encode()
    try:
        write_atomically(out, page)
    except DataError as e:
        kept = keep_elsewhere(lambda folder: write_atomically(folder / out.name, page))
        raise e if kept is None else DataError(f"{e}. The report is in {kept / out.name}, move it from there") from e
    if not options.quiet:
        say(f"the report is in {out} ({len(page) / 1024:,.0f} KiB)")
        bundles = [run for run in options.runs if (run / MANIFEST).is_file()]
        if bundles and find_spec("uvicorn") is not None:
            suggest("a page to change rows and watch the scores", "serve", bundles[0])
