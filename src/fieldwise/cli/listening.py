"""Options of `fieldwise serve` for its address, access and connection limits."""

import ipaddress
import math
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.show import say
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.serving.connection_limits import ConnectionLimits

__all__ = ["Listening", "accepting"]

TOKEN = "FIELDWISE_TOKEN"
RESERVED = 128  # open files that are not connections: mapped indexes, tables, stores, the log
ACCEPTED = 16  # connections accepted in a turn of the event loop
FEWEST = 16  # minimum number of connections to start a server


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Options of a server's address and of access to it."""

    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all interfaces.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000
    token: Annotated[
        str | None, typer.Option(envvar=TOKEN, show_envvar=True, help="Bearer token that requests must send.")
    ] = None
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Allow access without a token although --host is not a loopback address.")
    ] = False
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A host name that requests may use (header Host). May be repeated. Default: any name with a token or "
            "on an address other than loopback, else only localhost.",
        ),
    ] = None
    max_connections: Annotated[int, typer.Option(min=1, help="Maximum number of open connections.")] = 1000
    max_connections_per_address: Annotated[
        int, typer.Option(min=1, help="Maximum number of open connections per address; a proxy counts as one.")
    ] = 256
    max_head: Annotated[
        int, typer.Option(min=1000, help="Maximum size in bytes of a request's first line and headers.")
    ] = 1 << 15
    head_timeout: Annotated[
        float, typer.Option(min=0.01, help="Timeout in seconds for receiving the first line and headers.")
    ] = 10.0
    idle_timeout: Annotated[float, typer.Option(min=0.01, help="Timeout in seconds of an idle connection.")] = 5.0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def hosts(self) -> frozenset[str] | None:
        """The allowed host names of requests; None for any."""
        if self.allow_host is not None:
            return None if "*" in self.allow_host else frozenset(name.lower() for name in self.allow_host)
        if self.token is None and self.is_loopback:
            return frozenset({"localhost", "127.0.0.1", "[::1]", self.host.lower(), f"[{self.host.lower()}]"})
        return None

    def check(self) -> None:
        """Check that access is not open by mistake.

        Errors:
            ConfigError: an empty token; another address than loopback without a token; --token together with
                --no-token.
        """
        given = os.environ.get(TOKEN) if self.token is None else self.token  # the parser treats an empty one as none
        if given is not None and not given.strip():
            raise ConfigError(
                f"a token must be a text, found an empty one: give --token or {TOKEN} a value, or unset it"
            )
        if self.token is not None and self.no_token:
            raise ConfigError(
                f"--no-token allows access without a token, found a token too (--token or {TOKEN}): give one of them"
            )
        if self.token is None and not self.no_token and not self.is_loopback:
            raise ConfigError(
                f"a server on a non-loopback address needs a token, found --host {self.host} without one: set {TOKEN}, "
                "or give --no-token to allow access without one"
            )

    def limits(self, max_body: int, workers: int = 1) -> "ConnectionLimits":
        """Limits of connections of one of several workers, within the system's limit of open files.

        Errors:
            ConfigError: the system's limit is too low.
        """
        from fieldwise.serving.connection_limits import ConnectionLimits

        wanted = math.ceil(self.max_connections / workers)
        room = _room(wanted)
        if room < wanted:
            say(f"at most {room * workers:,} connections, because of the system's limit of open files (ulimit -n)")
        return ConnectionLimits(
            connections=room,
            per_address=min(room, math.ceil(self.max_connections_per_address / workers)),
            head_bytes=self.max_head,
            head_timeout=self.head_timeout,
            idle_timeout=self.idle_timeout,
            max_body=max_body,
        )

    def listen(self) -> socket.socket:
        """A listening socket.

        Errors:
            ConfigError: the address is not available.
        """
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except OSError as e:
            where = f"{self.host}:{self.port}"
            raise ConfigError(f"cannot listen on {where}: {e.strerror or e}; give another --host or --port") from None


def accepting(listening: socket.socket) -> list[socket.socket]:
    """A listening socket and copies of it, for an event loop that accepts one connection of each in a turn.

    uvloop does: with one socket, a busy server accepted about a hundred connections a second, and new clients waited
    for seconds before any limit could refuse them.
    """
    return [listening, *(listening.dup() for _ in range(ACCEPTED - 1))]


def _room(wanted: int) -> int:
    """The number of connections that are possible, up to `wanted`; raises the limit of open files if allowed."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        if more > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    room = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - RESERVED)
    if room < min(wanted, FEWEST):
        raise ConfigError(f"a server needs {RESERVED + FEWEST} open files, found a limit of {soft}: raise `ulimit -n`")
    return room
