"""A table in Redis: one hash, whose fields are the ids, and whose values are the rows as JSON texts.

    users  "u1"  {"user_id": "u1", "country": "FI", "tags": ["a", "b"], "age": null}
           ""    {"format": 2, "column": "user_id", "columns": ["user_id", "country", "tags",
           "age"]}

A lookup is one HMGET. A load fills another hash and renames it, so no lookup sees rows of two
tables.
"""

import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial

import polars as pl

from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.serving.rows import FAULTS
from fieldwise.serving.stores import NOT_OURS, UNREADABLE, RemoteStore, Row, StoreError

try:
    import redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as e:
    raise MissingExtraError(
        f"features in Redis need {e.name}: pip install 'fieldwise[redis]'"
    ) from None

FORMAT = 2
START_S = 5.0  # maximum time of the first connection
CONNECTIONS = 4  # each of which may be broken after a restart of the server
EXPIRY_S = 600  # after which Redis removes what a killed load has written
_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


class RedisStore(RemoteStore):
    """A table in Redis that `load` wrote."""

    kind = "redis"
    # TypeError: an unknown option in an address
    failures = (redis.RedisError, OSError, ValueError, TypeError)
    _client: redis.asyncio.Redis

    async def connect(self) -> list[str] | None:
        """As in the base class; ConfigError if the table has another format."""
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            self.url,
            max_connections=CONNECTIONS,
            retry=Retry(NoBackoff(), CONNECTIONS, supported_errors=(redis.ConnectionError,)),
            **dict.fromkeys(("timeout", "socket_timeout", "socket_connect_timeout"), START_S),
        )
        self._client = await self._connections.enter_async_context(
            redis.asyncio.Redis.from_pool(pool)
        )
        (text,) = await self._client.hmget(self.table, [""])
        try:
            return None if text is None else [self._read_manifest(text)]
        except StoreError as e:
            raise ConfigError(
                f"{self.shown} was not written by this version of fieldwise store load ({e}): write it again"
            ) from None

    async def get(
        self, ids: Sequence[str], columns: Collection[str] | None = None
    ) -> list[Row | None]:
        """The rows of these ids with all columns; `UNREADABLE` where the text is not a JSON object."""
        manifest, *texts = await self._client.hmget(self.table, ["", *ids])
        self._read_manifest(manifest)
        return list(map(self._row, ids, texts))

    def _read_manifest(self, text: bytes | str | None) -> str:
        """The column of ids; sets `columns`. A StoreError if the text is something else."""
        with suppress(*FAULTS):
            result = json.loads(text or b"")
            if result["format"] == FORMAT:
                self.columns = [str(name) for name in result["columns"]]
                return str(result["column"])
        raise StoreError("damaged", f"no table of format {FORMAT}")

    def _row(self, one: str, text: bytes | str | None) -> Row | None:
        with suppress(*FAULTS):
            return {**json.loads(text), self.column: one} if one and text is not None else None
        return UNREADABLE

    def load(self, empty: pl.DataFrame, batches: Iterator[pl.DataFrame], count: int) -> int | None:
        """As in the base class; a killed load leaves another hash too, which Redis removes later."""
        name = self.table
        new = f"{self.table}:{secrets.token_hex(8)}"
        manifest = {"format": FORMAT, "column": self.column, "columns": empty.columns}
        with redis.Redis.from_url(
            self.url, socket_timeout=30, socket_connect_timeout=START_S
        ) as client:
            known = client.type(name) in (b"hash", "hash") and client.hexists(name, "")
            if not known and client.exists(name):
                raise ConfigError(f"{self.shown} {NOT_OURS}")
            before = client.hlen(name) - 1 if known else None
            client.hset(new, "", _json(manifest))
            client.expire(new, EXPIRY_S)
            for batch in batches:
                if texts := {row[self.column]: _json(row) for row in batch.iter_rows(named=True)}:
                    client.hset(new, mapping=texts)
                client.expire(new, EXPIRY_S)
            with client.pipeline(transaction=True) as switch:
                switch.persist(new).unlink(name).rename(new, name).execute()
            return before
