"""A table in Redis: one hash, whose fields are the ids, and whose values are the rows as JSON texts.

    users  "u1"  {"user_id": "u1", "country": "FI", "tags": ["a", "b"], "age": null}
           ""    {"format": 2, "column": "user_id", "columns": ["user_id", "country", "tags", "age"]}

A lookup is one HMGET. A load fills another hash and renames it, so no lookup sees rows of two tables.
"""

import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.serving.rows import FAULTS
from fieldwise.serving.stores.feature_store import UNREADABLE, RemoteStore, Row, StoreError, StoreURL

try:
    from redis import Redis
    from redis import asyncio as aioredis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import RedisError
except ImportError as e:
    raise MissingExtraError(f"features in Redis need {e.name}: pip install 'fieldwise[redis]'") from None

__all__ = ["RedisStore"]

FORMAT = 2
START_S = 5.0  # maximum time of the first connection
CONNECTIONS = 4  # each of which may be broken after a restart of the server
EXPIRY_S = 600  # after which Redis removes what a killed load has written


class RedisStore(RemoteStore):
    """A table in Redis that `load` wrote."""

    kind = "redis"
    failures = (RedisError, OSError, ValueError, TypeError)  # TypeError: an unknown option in an address
    _client: aioredis.Redis | None = None

    async def connect(self) -> None:
        """Connect and read what the table holds; ConfigError if there is none with this name and id column."""
        where, limits = self.address.shown, ("timeout", "socket_timeout", "socket_connect_timeout")
        pool = aioredis.BlockingConnectionPool.from_url(
            self.address.url,
            max_connections=CONNECTIONS,
            retry=Retry(NoBackoff(), CONNECTIONS, supported_errors=(RedisConnectionError,)),
            **dict.fromkeys(limits, START_S),
        )
        self._client = aioredis.Redis.from_pool(pool)
        (text,) = await self._client.hmget(self.address.table, [""])
        if text is None:
            raise ConfigError(f"{where} holds no table of this name: write it with fieldwise store load")
        try:
            column, self.columns = _read_manifest(text)
        except ValueError as e:
            raise ConfigError(
                f"{where} was not written by this version of fieldwise store load ({e}): write it again"
            ) from None
        if column != self.column:
            raise ConfigError(f"the ids of {where} are in column {column!r}, not {self.column!r}: give that column")

    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The rows of these ids with all columns; `UNREADABLE` where the text is not a JSON object."""
        if self._client is None:
            raise StoreError("gone", "not open")
        try:
            manifest, *texts = await self._client.hmget(self.address.table, ["", *ids])
            _, self.columns = _read_manifest(manifest)
        except (RedisError, OSError) as e:
            raise StoreError("gone", self.address.redacted(e)) from None
        except ValueError as e:
            raise StoreError("damaged", str(e)) from None
        return list(map(self._row, ids, texts))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose(close_connection_pool=True)
        self._client = None

    def _row(self, one: str, text: bytes | str | None) -> Row | None:
        if text is None or not one:
            return None
        try:
            return {**json.loads(text), self.column: one}
        except FAULTS:
            return UNREADABLE

    @staticmethod
    def load(address: StoreURL, column: str, empty: pl.DataFrame, batches: Iterator[pl.DataFrame]) -> int | None:
        """As in the base class; a killed load leaves another hash too, which Redis removes later."""
        name, new = address.table, f"{address.table}:{secrets.token_hex(8)}"
        manifest = {"format": FORMAT, "column": column, "columns": empty.columns}
        with Redis.from_url(address.url, socket_timeout=30, socket_connect_timeout=START_S) as client:
            known = client.type(name) in (b"hash", "hash") and client.hexists(name, "")
            if not known and client.exists(name):
                raise ConfigError(f"{address.shown} is a key that fieldwise did not write: use another name")
            before = client.hlen(name) - 1 if known else None
            client.hset(new, "", _json(manifest))
            client.expire(new, EXPIRY_S)
            for batch in batches:
                if texts := {row[column]: _json(row) for row in batch.iter_rows(named=True)}:
                    client.hset(new, mapping=texts)
                client.expire(new, EXPIRY_S)
            with client.pipeline(transaction=True) as switch:
                switch.persist(new).unlink(name).rename(new, name).execute()
            return before


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_manifest(text: bytes | str | None) -> tuple[str, list[str]]:
    """The column of ids, and the columns of the rows.

    Errors:
        ValueError: the text is something else.
    """
    try:
        found = json.loads(text or b"")
        if found["format"] == FORMAT:
            return str(found["column"]), [str(name) for name in found["columns"]]
    except FAULTS:
        pass
    raise ValueError(f"no table of format {FORMAT}")
