"""Search among the users that a server knows."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from fieldwise.schema import Field
from fieldwise.serving.rows import RequestError
from fieldwise.serving.stores import Missing, StoreError, Stores, TableStore
from fieldwise.serving.stores.complete import WHY

__all__ = ["KnownUsers", "filled"]


class KnownUsers:
    """Users of a store. The users of a table can also be counted, and are found without regard to case.

    Args:
        stores: stores with one of users.

    >>> import asyncio
    >>> from fieldwise.serving.stores import Lookup
    >>> table = TableStore("user", pl.DataFrame({"user": ["u1", "v1", "u2"]}))
    >>> users = KnownUsers(Stores(users=Lookup("users", table)))
    >>> asyncio.run(users.find("U", 1, 10))
    (['u2'], 2)
    """

    def __init__(self, stores: Stores) -> None:
        assert stores.users is not None, "the caller checked this"
        self._stores, self._lookup = stores, stores.users
        self._ids: pl.Series | None = None
        if isinstance(self._lookup.store, TableStore):
            self._ids = pl.Series(self._lookup.store.ids, dtype=pl.String)
            self._small = self._ids.str.to_lowercase()
            self._places = {one: place for place, one in enumerate(self._ids)}

    @property
    def column(self) -> str:
        """Column of the user ids."""
        return self._lookup.column

    @property
    def count(self) -> int | None:
        """Number of users; None if they are not counted."""
        return None if self._ids is None else len(self._ids)

    async def find(self, search: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """Users whose ids start with `search`, from position `offset` on, and their number (None if not counted).

        Errors:
            RequestError: the store fails, or an offset is given where users are not counted.
        """
        if self._ids is not None:
            found = self._ids.filter(self._small.str.starts_with(search.lower()))
            return found.slice(offset, limit).to_list(), len(found)
        if offset:
            raise RequestError("offset must be 0, because this server's store does not count its users", "offset")
        try:
            return await self._lookup.search(search, limit), None
        except StoreError as e:
            raise RequestError(f"the users' store {WHY[e.reason]}: try again later", "search", 503) from None

    async def of(self, user: str, fields: Iterable[Field]) -> tuple[dict[str, Any], int | None, list[Missing]]:
        """A user's values for these fields by column, the user's position among all, and the missing values.

        Errors:
            RequestError: the user is unknown, or the store fails.
        """
        held = {*self._lookup.columns, self.column}
        values, missing = await self._stores.context(user, {}, [field for field in fields if field.column in held])
        values = {column: filled(value) for column, value in values.items()}
        return values, None if self._ids is None else self._places[user], missing


def filled(value: Any) -> Any:
    """A table's cell as models read it: an empty text is None, and empty elements of a list are dropped."""
    if isinstance(value, list):
        return [text for one in value if (text := one.strip())]
    return None if value == "" else value
