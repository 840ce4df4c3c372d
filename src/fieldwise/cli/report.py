"""`fieldwise report`."""

import os
from collections.abc import Sequence
from pathlib import Path

from fieldwise.cli.options import cache_for, existing_data_dir, set_threads
from fieldwise.cli.show import say
from fieldwise.data.prepare import Prepared
from fieldwise.errors import ConfigError
from fieldwise.pipeline import data_settings
from fieldwise.report.build import ReportSettings, chapters_of
from fieldwise.report.page import write_report
from fieldwise.report.runs import Opened, open_run, prepared_of, rows_of

__all__ = ["run_report"]


def run_report(
    folders: Sequence[Path],
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
    opened = [open_run(folder) for folder in folders]
    prepared: dict[str, Prepared] = {}  # runs that are compared mostly share their rows
    runs = []
    for one, name in zip(opened, _names(opened), strict=True):
        folder = existing_data_dir(data_dir, one.recipe.data.name)
        key = repr((one.recipe.data, data_settings(one.recipe)))
        if key not in prepared:
            prepared[key] = prepared_of(one, folder, cache_for(cache, quiet))
        runs.append(rows_of(one, name, prepared[key]))
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    write_report(title, chapters_of(runs, settings), out)
    if not quiet:
        say(f"the report is in {out} ({out.stat().st_size / 1024:,.0f} KiB)")


def _check_out(out: Path) -> None:
    """Refuse, before any work, a file that cannot be written."""
    if out.is_dir():
        raise ConfigError(f"--out is the file to write, but {out} is a folder: give {out / 'report.html'}")
    folder = next((p for p in out.absolute().parents if p.exists()), out)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--out must be in a folder that can be written to, found {out}: choose another")


def _names(opened: Sequence[Opened]) -> list[str]:
    """The recipe's name, with its seed or, where that does not tell runs apart, its folder."""
    names = [Path(one.recipe.name).stem if one.recipe.name.endswith(".toml") else one.recipe.name for one in opened]
    found = []
    for name, one in zip(names, opened, strict=True):
        twins = [other for other, its in zip(opened, names, strict=True) if its == name]
        by_seed = len({twin.recipe.seed for twin in twins}) == len(twins)
        more = f"seed {one.recipe.seed}" if by_seed else str(one.folder)
        found.append(f"{name} ({more})" if len(twins) > 1 else name)
    return found
