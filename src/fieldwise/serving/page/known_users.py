"""The users that a server knows, to choose from."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from fieldwise.schema import Field
from fieldwise.serving.rows import RequestError
from fieldwise.serving.stores import Missing, StoreError, Stores, TableStore
from fieldwise.serving.stores.complete import WHY

__all__ = ["KnownUsers", "filled"]


class KnownUsers:
    """Users of a store: those of a table can be counted, and found whatever the case of their ids' letters.

    Args:
        stores: with a store of users, and what becomes of a request when it fails.

    >>> import asyncio
    >>> from fieldwise.serving.stores import Lookup
    >>> table = TableStore("user", pl.DataFrame({"user": ["u1", "v1", "u2"]}))
    >>> users = KnownUsers(Stores(users=Lookup("users", table)))
    >>> asyncio.run(users.find("U", 1, 10))
    (['u2'], 2)
    """

    def __init__(self, stores: Stores) -> None:
        assert stores.users is not None, "there are users"
        self._stores, self._lookup = stores, stores.users
        self._ids: pl.Series | None = None
        if isinstance(self._lookup.store, TableStore):
            self._ids = pl.Series(self._lookup.store.ids, dtype=pl.String)
            self._small = self._ids.str.to_lowercase()
            self._places = {one: place for place, one in enumerate(self._ids)}

    @property
    def column(self) -> str:
        """Which column names a user."""
        return self._lookup.column

    @property
    def count(self) -> int | None:
        """How many there are, None where they are not counted."""
        return None if self._ids is None else len(self._ids)

    async def find(self, search: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """Those whose ids begin so, from the offset-th on, and how many there are in all, where they are counted.

        Errors:
            RequestError: the store fails.
        """
        if self._ids is not None:
            found = self._ids.filter(self._small.str.starts_with(search.lower()))
            return found.slice(offset, limit).to_list(), len(found)
        if offset:
            raise RequestError("an offset needs users that are counted: leave it out", "offset")
        try:
            return await self._lookup.search(search, limit), None
        except StoreError as e:
            raise RequestError(f"the users' store {WHY[e.reason]}: ask again later", "search", 503) from None

    async def of(self, user: str, fields: Iterable[Field]) -> tuple[dict[str, Any], int | None, list[Missing]]:
        """What some fields read of a user by column, the place among all, and what the store could not give.

        Errors:
            RequestError: an unknown user, or the store fails.
        """
        held = {*self._lookup.columns, self.column}
        values, missing = await self._stores.context(user, {}, [field for field in fields if field.column in held])
        values = {column: filled(value) for column, value in values.items()}
        return values, None if self._ids is None else self._places[user], missing


def filled(value: Any) -> Any:
    """What models read of a table's cell: an empty text is no value, and in a list none."""
    if isinstance(value, list):
        return [text for one in value if (text := one.strip())]
    return None if value == "" else value
