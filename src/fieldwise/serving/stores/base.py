"""What a feature store is."""

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["UNREADABLE", "FeatureStore", "Reason", "Row", "SearchableStore", "StoreError"]

Reason = Literal["slow", "gone", "paused", "damaged"]
Row = Mapping[str, Any]


class _Unreadable:
    """The type of `UNREADABLE`."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE = _Unreadable()  # stands in a row for a value that is there and cannot be read


class StoreError(Exception):
    """A store that gives no answer, or none that can be read.

    Args:
        reason: `slow` (no answer in time), `gone` (no connection, or an error), `paused` (left alone for a moment after
            failures), `damaged` (what it holds cannot be read).
        detail: for the server's log, never for an answer; without credentials.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class FeatureStore(Protocol):
    """Rows by the id of a user or an item.

    Rows are plain: text, numbers, booleans, null, and lists of these, as a request's own fields are. A value that is
    there and cannot be read is `UNREADABLE`; the other values and rows of the same question are given all the same.
    """

    @property
    def kind(self) -> str:
        """Which store it is, such as `redis`."""

    @property
    def column(self) -> str:
        """The column that names a user, or an item."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of its rows, known once it is open."""

    async def open(self) -> None:
        """Connect and check what it holds.

        Errors:
            ConfigError: it cannot be reached, lets nobody in, or does not hold what it should; without credentials.
        """

    def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> Coroutine[Any, Any, list[Row | None]]:
        """The rows of some ids, in their order; None for an unknown one. No ids: whether it answers at all.

        Args:
            ids: whose rows.
            columns: which values are wanted; others may be left out. All where left out.

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
