"""What a feature store is: rows of users or items by id, and the ways in which it fails."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

Row = Mapping[str, Any]
UNREADABLE: Row = MappingProxyType({})
"""Stands for a row that exists and cannot be read."""

Reason = Literal["slow", "gone", "paused", "damaged", "stale"]
REASON_TEXTS: Mapping[Reason, str] = {
    "slow": "did not answer in time",
    "gone": "cannot be reached",
    "paused": "failed a moment ago and will be retried soon",
    "damaged": "has unreadable data",
    "stale": "has values older than their time to live",
}


class StoreError(Exception):
    """A store's failure: a `Reason`, and a message for the server's log only, without credentials."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FeatureStore(ABC):
    """Rows by the id of a user or an item, with plain values: text, numbers, booleans, null, and lists of these."""

    kind: str
    """Such as `redis`."""
    column: str
    """The column of ids."""
    columns: Sequence[str] = ()
    """The columns of its rows, known after `open`."""
    count: int | None = None
    """The number of its rows; None if they are not counted."""

    async def open(self) -> None:  # noqa: B027  # memory has nothing to connect
        """Connect and check the table; ConfigError, without credentials, if it cannot be read."""

    @abstractmethod
    async def get(
        self, ids: Sequence[str], columns: Collection[str] | None = None
    ) -> list[Row | None]:
        """The rows of some ids, in order, with at least these columns; None for an unknown id.

        Without ids, a health check. If the store fails, a StoreError, or one of its client's
        `failures`.
        """

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """The ids that begin with a text, sorted, from `offset` on (none if it cannot search), and their number."""
        return [], None

    def position(self, row_id: str) -> int | None:
        """The position of an id among all, if they are counted."""
        return None

    def failure(self, error: BaseException) -> StoreError:
        """What an error of `get` or `search` means: the data is damaged, unless the store says otherwise."""
        return StoreError("damaged", f"{type(error).__name__}: {error}")

    async def close(self) -> None:  # noqa: B027
        """Close the connections."""
