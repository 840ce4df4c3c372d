"""Options of `fieldwise serve` for its address, access and connections."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Annotated

import typer

from fieldwise.errors import ConfigError

__all__ = ["Listening"]

TOKEN = "FIELDWISE_TOKEN"


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
    max_connections: Annotated[
        int, typer.Option(min=1, help="Maximum number of open connections of a worker; more requests get 503.")
    ] = 1000
    idle_timeout: Annotated[int, typer.Option(min=1, help="Timeout in seconds of an idle connection.")] = 5

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
