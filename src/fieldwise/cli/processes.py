"""Commands that several processes run together: `--processes N` on one machine, or started by `torchrun`."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from fieldwise.cli.options import command_again
from fieldwise.distributed.place import Place
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.distributed.world import World

__all__ = ["one_of", "run_together"]

PER_CORE = 4  # more processes would take the machine's memory and gain nothing


def run_together(processes: int | None) -> bool:
    """Run this command in the given number of processes, unless this is one of them or no number is given.

    Args:
        processes: `--processes`.

    Returns:
        Whether they have run, all of them with success.

    Errors:
        ConfigError: another number of processes was started, or too many are asked for.
        typer.Exit: one of them failed, and has said why.
    """
    place = Place.of()
    if place is not None and processes not in (None, place.size):
        raise ConfigError(
            f"--processes must be the number of processes that were started, {place.size}, found {processes}: leave it "
            "out where torchrun starts them"
        )
    if place is not None or processes is None or processes == 1:
        return False
    most = max(8, PER_CORE * (os.cpu_count() or 1))
    if processes > most:
        raise ConfigError(
            f"--processes may be at most {most} on this machine, which has {os.cpu_count()} cores, found {processes}: "
            "give about one a core"
        )
    from fieldwise.distributed.launch import start

    if code := start(command_again(), processes):
        raise typer.Exit(code)
    return True


@contextlib.contextmanager
def one_of() -> Iterator["World | None"]:
    """A context in which this process is one of several; None if it is alone. Only process 0 prints.

    Errors:
        ConfigError: the processes cannot meet.
    """
    place = Place.of()
    if place is None:
        yield None
        return
    from fieldwise.distributed.launch import end_with_parent
    from fieldwise.distributed.world import joined

    end_with_parent()
    with contextlib.ExitStack() as stack:
        if place.rank > 0:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield stack.enter_context(joined(place))
