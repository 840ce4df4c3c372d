"""A feature store in memory."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import polars as pl

from fieldwise.scoring.items import checked_ids
from fieldwise.serving.rows import plain_table
from fieldwise.serving.stores.base import FeatureStore, Row


class TableStore(FeatureStore):
    """Rows of a table in memory, one per id, sorted by id; with `positions` of text ids, neither checked nor sorted.

    >>> import asyncio
    >>> store = TableStore("user", pl.DataFrame({"user": [3, 4], "country": ["FI", None]}))
    >>> asyncio.run(store.get(["4", "5"]))
    [{'user': '4', 'country': None}, None]
    """

    kind = "memory"

    def __init__(
        self, column: str, rows: pl.DataFrame, positions: Mapping[str, int] | None = None
    ) -> None:
        if positions is None:
            ids = checked_ids(rows, column, "rows", "--user-id or --item-id")
            order = rows.get_column(column).arg_sort()
            rows = plain_table(rows.with_columns(ids))[order]
            sorted_ids = rows.get_column(column)
            positions = {row_id: position for position, row_id in enumerate(sorted_ids)}
        else:
            rows = plain_table(rows)

        self.column = column
        self.columns = rows.columns
        self.count = len(positions)
        self._rows = rows
        self._positions = positions

    async def get(
        self, ids: Sequence[str], columns: Collection[str] | None = None
    ) -> list[Row | None]:
        """As in the base class, with all columns."""
        rows: list[Row | None] = []
        for row_id in ids:
            position = self._positions.get(row_id)
            rows.append(None if position is None else self._rows.row(position, named=True))
        return rows

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As in the base class, without regard to case."""
        begins = self._lower_case_ids.str.starts_with(prefix.lower())
        ids = self._rows.get_column(self.column).filter(begins)
        return ids.slice(offset, limit).to_list(), len(ids)

    @cached_property
    def _lower_case_ids(self) -> pl.Series:
        """Kept, because a million ids take 30 ms."""
        return self._rows.get_column(self.column).str.to_lowercase()

    def position(self, row_id: str) -> int | None:
        """As in the base class."""
        return self._positions.get(row_id)
