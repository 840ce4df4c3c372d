"""Commands that several processes run together: `--processes N`, here or on a Ray cluster, or started by `torchrun`."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fieldwise.cli.options import command_again
from fieldwise.cli.show import say
from fieldwise.distributed.place import Place
from fieldwise.errors import ConfigError
from fieldwise.storage.cores import available_cores

if TYPE_CHECKING:
    from fieldwise.distributed.world import World

__all__ = [
    "RayProcesses",
    "check_count",
    "check_started",
    "is_started",
    "most_processes",
    "one_of",
    "run_on_ray",
    "run_together",
]

SHARING = ("train", "compare", "tune")  # commands whose processes share the work
PER_CORE = 4  # more processes would take the machine's memory and gain nothing


def check_started(command: str | None) -> None:
    """Check that `torchrun` has started several processes of a command only if they share its work.

    Errors:
        ConfigError: each of them would do all of it, and write the same files.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and size != "1" and command not in SHARING:
        raise ConfigError(
            f"torchrun is for {', '.join(SHARING)}, whose processes share the work, found {size} processes of "
            f"`fieldwise {command}`: run it once, without torchrun"
        )


def is_started(engine: str) -> bool:
    """Whether this process is one of those that `--processes` has started.

    Errors:
        ConfigError: another program has started several, and `--engine ray` would start more.
    """
    started = "FIELDWISE_LAUNCHED" in os.environ
    if engine == "ray" and not started and Place.of() is not None:
        raise ConfigError("--engine ray starts the processes itself: leave it out where torchrun starts them")
    return started


def most_processes() -> int:
    """How many processes this machine may run: four a core, 8 at least."""
    return max(8, PER_CORE * available_cores())


def check_count(option: str, found: int) -> None:
    """Check that a number of processes is not too large for this machine.

    Errors:
        ConfigError: more than 8 and more than four a core.
    """
    if found > (most := most_processes()):
        raise ConfigError(
            f"{option} may be at most {most} on this machine, which has {available_cores()} cores, found "
            f"{found}: give about one a core"
        )


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
    check_count("--processes", processes)
    from fieldwise.distributed.launch import start

    if code := start(command_again(), processes):
        raise typer.Exit(code)
    return True


@dataclass(frozen=True, kw_only=True)
class RayProcesses:
    """Processes on a Ray cluster that share this command.

    Args:
        address: `--ray-address`.
        count: `--processes`.
        cores: that each process takes.
        device: the recipe's `training.device`.
        reads: files and folders that all machines must see.
        writes: the folder of the results, likewise.
    """

    address: str | None
    count: int | None
    cores: int
    device: str
    reads: tuple[Path, ...]
    writes: Path


def run_on_ray(wanted: RayProcesses) -> None:
    """Run this command in processes on a Ray cluster, until all have ended.

    Errors:
        ConfigError: no number of processes is given, the cluster cannot be reached, or one of its machines does not
            see the files. MissingExtraError: Ray is not installed.
        typer.Exit: a process failed, and has said why.
    """
    if wanted.count is None:
        raise ConfigError("--engine ray needs the number of processes: add --processes N")
    from fieldwise.distributed.ray_engine import library, ray_cluster, ray_failure
    from fieldwise.distributed.ray_train import Launch, start_on_ray

    with ray_cluster(wanted.address, say), ray_failure():
        kind, there = wanted.device.partition(":")[0], library("ray").cluster_resources()
        launch = Launch(
            command=command_again()[1:],
            size=wanted.count,
            cores=wanted.cores,
            gpus=kind == "cuda" or (kind == "auto" and there.get("GPU", 0) >= wanted.count),
            reads=wanted.reads,
            writes=wanted.writes,
        )
        grows = bool(wanted.address or os.environ.get("RAY_ADDRESS"))
        if (missing := launch.missing(there)) and not grows:
            raise ConfigError(f"{missing}: lower --processes or --threads, or name a larger cluster with --ray-address")
        code = start_on_ray(launch, say)
    if code:
        raise typer.Exit(code)


@contextlib.contextmanager
def one_of() -> Iterator["World | None"]:
    """A context in which this process is one of several; None if it is alone. Only process 0 prints.

    Errors:
        ConfigError: the processes cannot meet.
    """
    from fieldwise.distributed.launch import end_with_parent

    end_with_parent()
    place = Place.of()
    if place is None:
        yield None
        return
    from fieldwise.distributed.meeting import joined

    with contextlib.ExitStack() as stack:
        if place.rank > 0:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield stack.enter_context(joined(place))
