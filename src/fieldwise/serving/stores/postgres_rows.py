"""Reads rows from PostgreSQL's driver as plain values; a value that cannot be decoded affects no other."""

from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.adapt import Transformer
from psycopg.pq import Format
from psycopg.rows import TupleRow

from fieldwise.serving.faults import FAULTS
from fieldwise.serving.stores.base import UNREADABLE
from fieldwise.serving.stores.plain import plain_value

__all__ = ["plain_rows"]


async def plain_rows(connection: AsyncConnection[TupleRow], cursor: AsyncCursor[TupleRow]) -> list[tuple[Any, ...]]:
    """All rows of an executed query; a value that Python cannot represent (the date `infinity`) is `UNREADABLE`."""
    try:
        rows = await cursor.fetchall()
    except FAULTS:
        rows = _one_by_one(connection, cursor)
    return [tuple(map(plain_value, row)) for row in rows]


def _one_by_one(connection: AsyncConnection[TupleRow], cursor: AsyncCursor[TupleRow]) -> list[tuple[Any, ...]]:
    result, reader = cursor.pgresult, Transformer(connection)
    assert result is not None, "the query was executed"
    loaders = [reader.get_loader(result.ftype(n), Format(result.fformat(n))) for n in range(result.nfields)]
    cells = [[result.get_value(row, n) for n in range(result.nfields)] for row in range(result.ntuples)]
    return [tuple(_loaded(loader, cell) for loader, cell in zip(loaders, row, strict=True)) for row in cells]


def _loaded(loader: Any, cell: bytes | None) -> Any:
    if cell is None:
        return None
    try:
        return loader.load(cell)
    except FAULTS:
        return UNREADABLE
