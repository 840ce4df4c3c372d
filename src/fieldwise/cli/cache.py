"""`fieldwise cache`: list and clear the cache of prepared data."""

import time
from dataclasses import dataclass

import typer

from fieldwise.cli.command import add_command
from fieldwise.cli.show import console, say

__all__ = ["app"]

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """These commands have no options."""


def run_show(options: CacheOptions) -> None:
    """List the entries of the cache, most recently used first."""
    from rich.table import Table

    from fieldwise.storage.cache import default_cache

    del options
    cache = default_cache()
    table = Table("prepared", "MiB", "last used", "entry", box=None)
    entries = cache.entries()
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)) if entry.used else ""
        table.add_row(entry.title, f"{entry.size / MIB:,.1f}", used, entry.folder.name[:12])
    out = console()
    if entries:
        out.print(table)
    size = sum(entry.size for entry in entries) / MIB
    out.print(f"{len(entries)} entries, {size:,.1f} of at most {cache.limit / MIB:,.0f} MiB, in {cache.folder}")


def run_clear(options: CacheOptions) -> None:
    """Remove all entries. Later runs prepare their data again."""
    from fieldwise.storage.cache import default_cache

    del options
    cache = default_cache()
    removed = cache.clear()
    size = sum(entry.size for entry in removed) / MIB
    say(f"{len(removed)} entries removed, {size:,.1f} MiB, from {cache.folder}")


app = typer.Typer(
    help="Cache of prepared data, which later runs of the same recipe on the same data reuse.",
    no_args_is_help=True,
)
add_command(app, "show", run_show)
add_command(app, "clear", run_clear)
