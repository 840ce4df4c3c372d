"""`fieldwise report`."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fieldwise.bundle.bundle import MANIFEST
from fieldwise.cli.next import suggest
from fieldwise.cli.options import cache_for, resolve_data_dir, set_threads
from fieldwise.cli.show import say
from fieldwise.errors import ConfigError, DataError
from fieldwise.report import ReportSettings, report
from fieldwise.storage.files import check_file, keep_elsewhere, write_atomically

__all__ = ["run_report"]


def run_report(
    runs: Sequence[Path],
    out: Path,
    slices: Sequence[str],
    user: str | None,
    item: str | None,
    rows: int,
    seed: int,
    data_dir: Path | None,
    quiet: bool,
    threads: int | None,
    cache: bool,
) -> None:
    """Prepare the runs' rows again, measure, and write the page."""
    if out.is_dir():
        raise ConfigError(f"--out is the file to write, but {out} is a folder: give {out / 'report.html'}")
    check_file(out)
    set_threads(threads)
    settings = ReportSettings(slices=tuple(slices), user=user, item=item, rows=rows, seed=seed)
    page = report(runs, settings, data_dir=resolve_data_dir(data_dir), cache=cache_for(cache, quiet)).encode()
    try:
        write_atomically(out, page)
    except DataError as e:
        kept = keep_elsewhere(lambda folder: write_atomically(folder / out.name, page))
        raise e if kept is None else DataError(f"{e}. The report is in {kept / out.name}, move it from there") from e
    if not quiet:
        say(f"the report is in {out} ({len(page) / 1024:,.0f} KiB)")
        bundles = [run for run in runs if (run / MANIFEST).is_file()]
        if bundles and find_spec("uvicorn") is not None:
            suggest("a page to change rows and watch the scores", "serve", bundles[0])
