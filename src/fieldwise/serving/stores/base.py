"""What a feature store is."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = ["FeatureStore", "Reason", "Row", "SearchableStore", "StoreError"]

Reason = Literal["slow", "gone", "paused", "damaged"]
Row = Mapping[str, Any]


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

    Rows are plain: text, numbers, booleans, null, and lists of these, as a request's own fields are.
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

    def get(self, ids: Sequence[str]) -> Coroutine[Any, Any, list[Row | None]]:
        """The rows of some ids, in their order; None for an unknown one. No ids: whether it answers at all.

        Errors:
            StoreError: it does not answer, or holds what cannot be read.
        """

    async def close(self) -> None:
        """Give connections back."""


@runtime_checkable
class SearchableStore(Protocol):
    """A store that finds rows by the beginning of their ids."""

    def search(self, prefix: str, limit: int) -> Coroutine[Any, Any, list[Row]]:
        """The first rows, by id, whose ids begin with a text.

        Errors:
            StoreError: it does not answer.
        """
