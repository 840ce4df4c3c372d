"""Where a server listens, whom it lets in, and what connections may take: options of `fieldwise serve`."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.show import say
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.serving.connections import ConnectionLimits

__all__ = ["Listening"]

TOKEN = "FIELDWISE_TOKEN"
RESERVED = 128  # open files that are not connections: mapped indexes, tables, stores, the log
FEWEST = 16  # connections that a server is worth starting for


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a server listens, and whom it lets in."""

    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0: all of this machine's.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8000
    token: Annotated[str | None, typer.Option(envvar=TOKEN, show_envvar=True, help="What requests must bear.")] = None
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let everyone in who reaches --host, another address than loopback.")
    ] = False
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name that requests may call this server by (their header Host); may be repeated. Any name with a "
            "token or at another address than loopback, where left out; else localhost alone.",
        ),
    ] = None
    max_connections: Annotated[int, typer.Option(min=1, help="Connections open at the same time.")] = 1000
    max_connections_per_address: Annotated[
        int, typer.Option(min=1, help="Of these, from one address; a proxy is one.")
    ] = 256
    max_head: Annotated[int, typer.Option(min=1000, help="Bytes of a request's first line and headers.")] = 1 << 15
    head_timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds that the first line and headers may take to arrive.")
    ] = 10.0
    idle_timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds that a connection may stay open without a request.")
    ] = 5.0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names that requests may call this server by; None for any."""
        if self.allow_host is not None:
            return None if "*" in self.allow_host else frozenset(name.lower() for name in self.allow_host)
        if self.token is None and self.is_loopback:
            return frozenset({"localhost", "127.0.0.1", "[::1]", self.host.lower(), f"[{self.host.lower()}]"})
        return None

    def check(self) -> None:
        """Refuse what would let in who should stay outside.

        Errors:
            ConfigError: an empty token; another address than loopback without a token; a token and none.
        """
        given = os.environ.get(TOKEN) if self.token is None else self.token  # the parser takes an empty one for none
        if given is not None and not given.strip():
            raise ConfigError(
                f"a token must be a text, found an empty one: give --token or {TOKEN} a value, or unset it"
            )
        if self.token is not None and self.no_token:
            raise ConfigError(
                f"--no-token lets everyone in, found a token too (--token or {TOKEN}): give one of the two"
            )
        if self.token is None and not self.no_token and not self.is_loopback:
            raise ConfigError(
                f"a server that others can reach needs a token, found --host {self.host} without one: set {TOKEN}, or "
                "give --no-token to let everyone in"
            )

    def limits(self, max_body: int) -> "ConnectionLimits":
        """What connections may take, within what the system lets this process open.

        Errors:
            ConfigError: the system lets it open next to nothing.
        """
        from fieldwise.serving.connections import ConnectionLimits

        room = _room(self.max_connections)
        if room < self.max_connections:
            say(f"at most {room:,} connections, since the system lets this process open so many files (ulimit -n)")
        return ConnectionLimits(
            connections=room,
            per_address=min(room, self.max_connections_per_address),
            head_bytes=self.max_head,
            head_timeout=self.head_timeout,
            idle_timeout=self.idle_timeout,
            max_body=max_body,
        )

    def listen(self) -> socket.socket:
        """A socket that listens.

        Errors:
            ConfigError: the address cannot be had.
        """
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except OSError as e:
            where = f"{self.host}:{self.port}"
            raise ConfigError(f"cannot listen at {where}: {e.strerror or e}; give another --host or --port") from None


def _room(wanted: int) -> int:
    """How many connections of those wanted this process may hold; its limit of open files is raised where it may be."""
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
