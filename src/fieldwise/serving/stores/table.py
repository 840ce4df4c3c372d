"""A store in memory, and the item index as one."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

import polars as pl

from fieldwise.config import nearest
from fieldwise.errors import DataError
from fieldwise.serving.items import ItemTable
from fieldwise.serving.stores.base import Row
from fieldwise.serving.stores.plain import check_ids, plain_table

__all__ = ["IndexItems", "TableStore"]


class TableStore:
    """Rows of a table in memory.

    Args:
        column: the column of user or item ids.
        rows: one row per user or item.

    Errors:
        DataError: no such column, a duplicate id, values that are invalid in requests.

    >>> import asyncio
    >>> store = TableStore("user", pl.DataFrame({"user": [3, 4], "country": ["FI", None]}))
    >>> asyncio.run(store.get(["4", "5"]))
    [{'user': '4', 'country': None}, None]
    """

    kind = "memory"

    def __init__(self, column: str, rows: pl.DataFrame) -> None:
        if column not in rows.columns:
            raise DataError(
                f"the rows must have the column {column!r} of ids: {nearest(column, rows.columns)} (--user-id or "
                "--item-id names another)"
            )
        self.column = column
        self._rows = plain_table(rows.with_columns(check_ids(rows.get_column(column))))
        self._places = {name: place for place, name in enumerate(self._rows.get_column(column))}

    @property
    def columns(self) -> Sequence[str]:
        """The table's."""
        return self._rows.columns

    @property
    def ids(self) -> Sequence[str]:
        """The known ids, in the table's order."""
        return list(self._places)

    async def open(self) -> None:
        """Nothing to connect to."""

    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The rows of some ids with all columns, None for an unknown one."""
        places = [self._places.get(one) for one in ids]
        return [None if place is None else self._rows.row(place, named=True) for place in places]

    async def search(self, prefix: str, limit: int) -> list[str]:
        """The first ids, in their order as texts, that begin with a text."""
        start = bisect_left(self._sorted, prefix)
        return [one for one in self._sorted[start : start + limit] if one.startswith(prefix)]

    async def close(self) -> None:
        """Nothing to close."""

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self._places)


class IndexItems:
    """A store of some columns of an index's items, always available.

    Args:
        index: the items.
        columns: the requested columns; missing ones are skipped.
    """

    kind = "index"

    def __init__(self, index: ItemTable, columns: Iterable[str]) -> None:
        self._index, self.column = index, index.id_column
        self._columns = [c for c in dict.fromkeys(columns) if c != self.column and c in index.items.columns]

    @property
    def columns(self) -> Sequence[str]:
        """Those asked for, behind the one that names items."""
        return [self.column, *self._columns]

    async def open(self) -> None:
        """The index is open."""

    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The rows of some items with all columns, None for an unknown one.

        Errors:
            DataError: a column holds what a request could not.
        """
        places = [self._index.places.get(one) for one in ids]
        return [None if place is None else self._row(one, place) for one, place in zip(ids, places, strict=True)]

    async def close(self) -> None:
        """The index belongs to the service."""

    @cached_property
    def plain(self) -> pl.DataFrame:
        """The columns with plain values.

        Errors:
            DataError: as of `get`.
        """
        return plain_table(self._index.items.select(self._columns))

    def _row(self, one: str, place: int) -> Row:
        values = self.plain.row(place, named=True) if self._columns else {}
        return {self.column: one, **values}
