"""The interface of a feature store."""

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["UNREADABLE", "FeatureStore", "Reason", "Row", "SearchableStore", "StoreError"]

Reason = Literal["slow", "gone", "paused", "damaged"]
Row = Mapping[str, Any]


class _Unreadable:
    """The type of `UNREADABLE`."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE = _Unreadable()  # marks an existing but unreadable value in a row


class StoreError(Exception):
    """A store did not answer, or has unreadable data.

    Args:
        reason: `slow` (no answer in time), `gone` (no connection, or an error), `paused` (not queried for a moment
            after failures), `damaged` (unreadable data).
        detail: for the server's log only, without credentials.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class FeatureStore(Protocol):
    """Rows by the id of a user or an item.

    Rows have plain values: text, numbers, booleans, null, and lists of these, like the fields of requests. An existing
    but unreadable value is `UNREADABLE`; other values and rows of the same query are still returned.
    """

    @property
    def kind(self) -> str:
        """The kind of store, such as `redis`."""

    @property
    def column(self) -> str:
        """The column of user or item ids."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of its rows, available after `open`."""

    async def open(self) -> None:
        """Connect and check the stored table.

        Errors:
            ConfigError: no connection, access denied, or a wrong table; the message has no credentials.
        """

    def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> Coroutine[Any, Any, list[Row | None]]:
        """The rows of some ids, in order; None for an unknown one. Without ids, a health check.

        Args:
            ids: ids of the rows.
            columns: required columns; others may be omitted. Default: all.

        Errors:
            StoreError: it does not answer.
        """

    async def close(self) -> None:
        """Give connections back."""


@runtime_checkable
class SearchableStore(Protocol):
    """A store that finds ids by their beginning."""

    def search(self, prefix: str, limit: int) -> Coroutine[Any, Any, list[str]]:
        """The first ids, in their order as texts, that begin with a text.

        Errors:
            StoreError: it does not answer.
        """
