"""Where a command's work is done: `--engine local`, or `ray`, a Ray cluster."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.show import say
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.distributed.engine import Engine

__all__ = ["EngineName", "RayAddress", "check_engine", "engine_for"]

ENGINES = ("local", "ray")

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="Where the work is done: `local`, on this machine, or `ray`, on a Ray cluster whose machines share the "
        "files (extra `ray`).",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="ADDRESS",
        help="A running Ray cluster: HOST:PORT, or auto for the one on this machine. Default: RAY_ADDRESS; without it "
        "a cluster is started on this machine.",
    ),
]


def check_engine(name: str, address: str | None) -> None:
    """Check the options before any work.

    Errors:
        ConfigError: an unknown engine, or an address without `ray`.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine must be local or ray, found {name!r}")
    if address is not None and name != "ray":
        raise ConfigError(
            f"--ray-address is for --engine ray, found {address!r} with --engine {name}: add --engine ray"
        )


@contextlib.contextmanager
def engine_for(name: str, address: str | None) -> Iterator["Engine | None"]:
    """A context with the engine of that name; None for the local one.

    Errors:
        ConfigError: see `check_engine`; no Ray cluster can be reached. MissingExtraError: Ray is not installed.
    """
    check_engine(name, address)
    if name == "local":
        yield None
        return
    from fieldwise.distributed.ray_cluster import RayEngine, ray_cluster

    with ray_cluster(address, say):
        yield RayEngine()
