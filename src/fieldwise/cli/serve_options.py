"""Options of `fieldwise serve`."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fieldwise.cli.options import BundleDevice, ExcludeSeen, Reading, one_of
from fieldwise.errors import ConfigError
from fieldwise.scoring import MAX_BODY, TIMEOUT_S

TOKEN = "FIELDWISE_TOKEN"
USERS = "FIELDWISE_USERS"
ITEMS = "FIELDWISE_ITEMS"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `fieldwise serve`."""

    bundle: Annotated[
        Path | None, Argument(metavar="BUNDLE", help="The bundle that scores, ranks and explains.")
    ] = None
    prerank: Annotated[Path | None, Option(help="The IntTower that made the index.")] = None
    index: Annotated[
        Path | None, Option(help="Folder of the item index; its files are mapped.")
    ] = None
    nprobe: Annotated[
        int | None,
        Option(
            min=1,
            help="Approximate search: item-head clusters probed per user head. Default: score all items.",
        ),
    ] = None
    users: Annotated[
        str | None,
        Option(
            envvar=USERS,
            help="User features: a table, redis://HOST/0#users or postgresql://HOST/DATABASE#users.",
        ),
    ] = None
    user_id: Annotated[
        str | None, Option(help="Column of user ids in --users or --log. Default: the schema's.")
    ] = None
    items: Annotated[
        str | None,
        Option(
            envvar=ITEMS,
            help="Item features, likewise, to complete rows that only have an item id. Default: the index's catalogue. "
            "A table is also the catalogue to recommend from: with --prerank and no --index it is indexed at the "
            "start; with one bundle every item is ranked.",
        ),
    ] = None
    item_id: Annotated[
        str | None, Option(help="Column of item ids in --items or --log. Default: the schema's.")
    ] = None
    log: Annotated[
        Path | None,
        Option(
            help="A log of interactions. Without --items, --index and --users, the latest values of items and users "
            "are taken from it too."
        ),
    ] = None
    reading: Reading
    exclude_seen: ExcludeSeen = None
    max_items: Annotated[
        int,
        Option(
            min=1,
            help="Maximum number of items that one bundle ranks per request; use --prerank for more.",
        ),
    ] = 20_000
    title: Annotated[
        str | None, Option(help="Item column that the page shows as title. Default: detected.")
    ] = None
    store_timeout: Annotated[
        float, Option(min=0.001, help="Timeout in seconds of a lookup in --users or --items.")
    ] = 0.1
    on_store_failure: Annotated[
        str,
        Option(
            callback=one_of("refuse", "degrade"),
            help="refuse: respond with 503 while a store fails; degrade: answer without its features and report it.",
        ),
    ] = "refuse"
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0: all interfaces.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = (
        8000
    )
    token: Annotated[
        str | None, Option(envvar=TOKEN, help="Bearer token that requests must send.")
    ] = None
    no_token: Annotated[
        bool, Option(help="Allow access without a token although --host is not a loopback address.")
    ] = False
    allow_host: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="A host name that requests may use (header Host). May be repeated. Default: any name with a token or "
            "on an address other than loopback, else only localhost.",
        ),
    ] = None
    max_body: Annotated[int, Option(min=1, help="Maximum size of a request in bytes.")] = MAX_BODY
    timeout: Annotated[float, Option(min=0.01, help="Timeout in seconds of a request.")] = TIMEOUT_S
    workers: Annotated[
        int,
        Option(
            min=1,
            help="Number of processes that answer requests; they share the memory of the model.",
        ),
    ] = 1
    watch: Annotated[
        float,
        Option(min=0, help="Seconds between checks for a newer bundle or index on disk; 0: never."),
    ] = 2.0
    device: BundleDevice = "cpu"

    @property
    def folders(self) -> list[Path]:
        """Folders of the bundles."""
        return [folder for folder in (self.bundle, self.prerank) if folder is not None]

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self) -> None:
        """Check that sources fit together, and that access is not open by mistake."""
        self._check_items()
        self.reading.check_used("--log", self.log)
        if self.exclude_seen and self.log is None:
            raise ConfigError("--exclude-seen needs a log of interactions: give --log")
        self._check_access()

    def _check_items(self) -> None:
        """Check that two bundles have items to recommend, and one bundle no index."""
        if self.prerank is None:
            if self.index is not None:
                raise ConfigError(
                    "--index is for recommendations with two bundles: also give --prerank, an IntTower"
                )
            return
        if self.index is not None:
            return
        if self.items is None and self.log is None:
            raise ConfigError(
                "--prerank needs items to recommend: give --index, --items, or a --log with items"
            )
        if self.items is not None and "://" in self.items:
            raise ConfigError("an index is built from a table: give --index, or a file as --items")

    def _check_access(self) -> None:
        """Check that a token is given where others may reach the server, or that they need none."""
        # the parser treats an empty one as none
        token = os.environ.get(TOKEN) if self.token is None else self.token
        if token is not None and not token.strip():
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
        """A listening socket; a ConfigError if the address is not available."""
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family)
        except OSError as e:
            raise ConfigError(
                f"cannot listen on {self.host}:{self.port}: {e.strerror or e}; give another --host or --port"
            ) from None
