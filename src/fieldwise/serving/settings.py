"""What a server serves, its limits and its token."""

import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fieldwise.data.read.text_format import TextFormat
from fieldwise.errors import ConfigError
from fieldwise.scoring import EXCLUDE_SEEN, Seen

if TYPE_CHECKING:
    from fieldwise.serving.stores import OnFailure

__all__ = ["ServerSettings", "Sources"]

METRICS_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The folder where prometheus_client, which reads it when it is imported, keeps the metrics of several processes."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files and stores that a server serves.

    Args:
        bundle: the bundle that scores, ranks and explains.
        tower: the IntTower that made the index.
        index: folder of the item index.
        nprobe: clusters of item heads that are searched per user head (`Ranker`).
        users: users' features: a table, or the address of a store (`fieldwise.serving.stores`).
        user_id: column of user ids in `users` or `log`; the schema's if omitted.
        items: items' features, likewise, to complete rows that only have an item id; the index's if
            omitted. A table is also the catalogue to recommend from if there is no index.
        item_id: column of item ids in `items` or `log`; the schema's if omitted.
        log: a log of interactions, from which items and users are taken too if nothing else is
            given.
        text: how `log` is written, if it is text.
        exclude_seen: which items of a user's rows in `log` are not recommended.
        max_items: maximum number of items that one bundle ranks per request.
        title: the item column that the page shows as title; detected if omitted.
        store_timeout: maximum seconds of a lookup in a store.
        on_store_failure: whether requests are refused while a store fails, or answered without it.
        device: where the bundles compute.

    Errors:
        ConfigError: two bundles without items to recommend, one bundle with an index, or items of
            all rows to exclude without a log.
    """

    bundle: Path | None = None
    tower: Path | None = None
    index: Path | None = None
    nprobe: int | None = None
    users: str | None = None
    user_id: str | None = None
    items: str | None = None
    item_id: str | None = None
    log: Path | None = None
    text: TextFormat = field(default_factory=TextFormat)
    exclude_seen: Seen = EXCLUDE_SEEN
    max_items: int = 20_000
    title: str | None = None
    store_timeout: float = 0.1
    on_store_failure: "OnFailure" = "refuse"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.tower is None and self.index is not None:
            raise ConfigError(
                "--index is for recommendations with two bundles: also give --tower, an IntTower"
            )
        if self.tower is not None and self.index is None:
            if self.items is None and self.log is None:
                raise ConfigError(
                    "--tower needs items to recommend: give --index, --items, or a --log with items"
                )
            if self.items is not None and "://" in self.items:
                raise ConfigError(
                    "an index is built from a table: give --index, or a file as --items"
                )
        if self.exclude_seen is True and self.log is None:
            raise ConfigError("--exclude-seen needs a log of interactions: give --log")

    @property
    def folders(self) -> list[Path]:
        """Folders of the bundles."""
        return [folder for folder in (self.bundle, self.tower) if folder is not None]


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits of a server.

    Args:
        token: required token in `Authorization: Bearer`; None allows access without a token.
        allow_hosts: allowed values of the header `Host`, lower case, without port; None for any.
            This protects against DNS rebinding.
        max_body: maximum bytes of a request.
        max_rows: maximum rows of a prediction.
        max_ids: maximum ids of a list, and values of all filters.
        max_prerank: maximum items for the ranking bundle.
        max_explained: maximum rows of an explanation.
        max_k: maximum items of a response.
        timeout: maximum seconds for a response.
        max_batch: maximum requests in a batch.
        max_waiting: maximum number of waiting requests; further ones get 503 and `Retry-After` at
            once.

    Errors:
        ConfigError: an empty token.
    """

    token: str | None = None
    allow_hosts: frozenset[str] | None = None
    max_body: int = 1 << 20
    max_rows: int = 1000
    max_ids: int = 100_000
    max_prerank: int = 10_000
    max_explained: int = 50
    max_k: int = 1000
    timeout: float = 10.0
    max_batch: int = 32
    max_waiting: int = 256

    def __post_init__(self) -> None:
        if self.token is not None and not self.token.strip():
            raise ConfigError("a token must not be empty: give None to allow access without one")

    def bears_token(self, authorization: bytes) -> bool:
        """Whether a header `Authorization` has the token, or none is required."""
        if self.token is None:
            return True
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token, self.token.encode())
