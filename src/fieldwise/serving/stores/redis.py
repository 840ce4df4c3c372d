"""A table in Redis: one hash, whose fields are the ids, and whose values are the rows as JSON texts.

    users  "u1"  {"user_id": "u1", "country": "FI", "tags": ["a", "b"]}
           ""    {"format": 2, "column": "user_id", "columns": ["user_id", "country", "tags"]}

The field without a name, which is no id, describes the table.
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
from fieldwise.serving.stores.base import UNREADABLE, Row, StoreError
from fieldwise.serving.stores.remote import NOT_OURS, RemoteStore

try:
    import redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as e:
    raise MissingExtraError(
        f"features in Redis need {e.name}: pip install 'fieldwise[redis]'"
    ) from None

FORMAT = 2
FIRST_CONNECTION_TIMEOUT_S = 5.0
LOAD_TIMEOUT_S = 30.0
CONNECTIONS = 4
"""Each of which may be broken after a restart of the server."""
EXPIRY_S = 600
"""After which Redis removes what a killed load has written."""
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
            timeout=FIRST_CONNECTION_TIMEOUT_S,
            socket_timeout=FIRST_CONNECTION_TIMEOUT_S,
            socket_connect_timeout=FIRST_CONNECTION_TIMEOUT_S,
        )
        client = redis.asyncio.Redis.from_pool(pool)
        self._client = await self._connections.enter_async_context(client)

        (manifest,) = await self._client.hmget(self.table, [""])
        if manifest is None:
            return None
        try:
            return [self._read_manifest(manifest)]
        except StoreError as e:
            raise ConfigError(
                f"{self.shown} was not written by this version of fieldwise store load ({e}): write it again"
            ) from None

    async def get(
        self, ids: Sequence[str], columns: Collection[str] | None = None
    ) -> list[Row | None]:
        """The rows of these ids with all columns; `UNREADABLE` where the text is not a JSON object."""
        texts = await self._client.hmget(self.table, ["", *ids])
        self._read_manifest(texts[0])
        return [self._row(row_id, text) for row_id, text in zip(ids, texts[1:], strict=True)]

    def _read_manifest(self, text: bytes | str | None) -> str:
        """The column of ids; sets `columns`. A StoreError if the text is something else."""
        with suppress(*FAULTS):
            manifest = json.loads(text or b"")
            if manifest["format"] == FORMAT:
                self.columns = [str(name) for name in manifest["columns"]]
                return str(manifest["column"])
        raise StoreError("damaged", f"no table of format {FORMAT}")

    def _row(self, row_id: str, text: bytes | str | None) -> Row | None:
        if text is None or not row_id:  # the manifest is at the empty id
            return None
        with suppress(*FAULTS):
            return {**json.loads(text), self.column: row_id}
        return UNREADABLE

    def load(self, empty: pl.DataFrame, batches: Iterator[pl.DataFrame], count: int) -> int | None:
        """As in the base class; a killed load leaves another hash too, which Redis removes later."""
        name = self.table
        new = f"{self.table}:{secrets.token_hex(8)}"
        manifest = {"format": FORMAT, "column": self.column, "columns": empty.columns}
        with redis.Redis.from_url(
            self.url,
            socket_timeout=LOAD_TIMEOUT_S,
            socket_connect_timeout=FIRST_CONNECTION_TIMEOUT_S,
        ) as client:
            is_ours = client.type(name) in (b"hash", "hash") and client.hexists(name, "")
            if not is_ours and client.exists(name):
                raise ConfigError(f"{self.shown} {NOT_OURS}")
            rows_before = client.hlen(name) - 1 if is_ours else None  # less the manifest

            client.hset(new, "", _json(manifest))
            client.expire(new, EXPIRY_S)
            for batch in batches:
                texts = {row[self.column]: _json(row) for row in batch.iter_rows(named=True)}
                if texts:
                    client.hset(new, mapping=texts)
                client.expire(new, EXPIRY_S)

            with client.pipeline(transaction=True) as transaction:
                transaction.persist(new).unlink(name).rename(new, name).execute()
            return rows_before
