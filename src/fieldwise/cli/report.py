"""`fieldwise report`."""

import os
from collections.abc import Sequence
from pathlib import Path

from fieldwise.cli.options import cache_for, resolve_data_dir, set_threads
from fieldwise.cli.show import say
from fieldwise.errors import ConfigError
from fieldwise.files import write_atomically
from fieldwise.report import ReportSettings, report

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
    _check_out(out)
    set_threads(threads)
    settings = ReportSettings(slices=tuple(slices), user=user, item=item, rows=rows, seed=seed)
    page = report(runs, settings, data_dir=resolve_data_dir(data_dir), cache=cache_for(cache, quiet)).encode()
    write_atomically(out, page)
    if not quiet:
        say(f"the report is in {out} ({len(page) / 1024:,.0f} KiB)")


def _check_out(out: Path) -> None:
    """Refuse, before any work, a file that cannot be written."""
    if out.is_dir():
        raise ConfigError(f"--out is the file to write, but {out} is a folder: give {out / 'report.html'}")
    folder = next((p for p in out.absolute().parents if p.exists()), out)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--out must be in a folder that can be written to, found {out}: choose another")
