"""Feature store in Redis: one JSON text per id, and a manifest that names the current generation of rows.

    NAME:current          {"format": 1, "generation": "0f3c...", "column": "user_id", "columns": [...], "rows": 6040}
    NAME:rows:0f3c...:ID  {"user_id": "u1", "country": "FI", "tags": ["a", "b"], "age": null}

A lookup is one MGET of the manifest and of the ids' rows in the generation that was last seen. If that generation is
no longer the current one, the lookup is repeated. So a lookup never mixes the rows of two tables.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.serving.faults import FAULTS
from fieldwise.serving.stores.base import UNREADABLE, Row, StoreError
from fieldwise.serving.stores.url import StoreURL

try:
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import RedisError
except ImportError as e:
    raise MissingExtraError(f"features from Redis need {e.name}: pip install 'fieldwise[redis]'") from None

__all__ = ["FORMAT", "Manifest", "RedisStore"]

FORMAT = 1
START = 5.0  # maximum seconds for the first connection
GENERATIONS = 5  # attempts of a lookup while the table is replaced


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The value of the key `NAME:current`.

    Args:
        generation: the current generation of rows.
        column: column of the ids.
        columns: columns of the rows; a row may lack some, which are null.
        rows: number of rows.
    """

    generation: str
    column: str
    columns: tuple[str, ...]
    rows: int

    def to_json(self) -> str:
        """The manifest as JSON text."""
        return json.dumps({"format": FORMAT, **vars(self)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: bytes | str) -> "Manifest":
        """The manifest in a JSON text.

        Errors:
            ValueError: the text is not a manifest.

        >>> whole = Manifest(generation="0f", column="id", columns=("id", "age"), rows=2)
        >>> Manifest.from_json(whole.to_json().encode()) == whole
        True
        """
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                raise ValueError(f"no manifest of format {FORMAT}")
            generation, column, columns, rows = (found[key] for key in ("generation", "column", "columns", "rows"))
            return cls(generation=str(generation), column=str(column), columns=tuple(map(str, columns)), rows=int(rows))
        except KeyError as e:
            raise ValueError(f"no {e}") from None
        except (TypeError, OverflowError, RecursionError) as e:
            raise ValueError(str(e)) from None


class RedisStore:
    """Feature store in Redis.

    Args:
        address: address of the server, with the prefix of the keys.
        column: column of the user or item ids.
        connections: maximum number of connections; further lookups wait for a free one.
    """

    kind = "redis"

    def __init__(self, address: StoreURL, column: str, *, connections: int = 4) -> None:
        self.column = column
        self._address, self._connections = address, connections
        self._client: Redis | None = None
        self._manifest: Manifest | None = None

    @property
    def columns(self) -> Sequence[str]:
        """Columns of the rows, by the manifest that was read last."""
        return self._manifest.columns if self._manifest else ()

    async def open(self) -> None:
        """Connect and read the manifest.

        Errors:
            ConfigError: there is no connection, no permission, or no table with this name and id column.
        """
        where = self._address.shown
        try:
            pool = BlockingConnectionPool.from_url(
                self._address.url,
                max_connections=self._connections,
                timeout=START,
                socket_timeout=START,
                socket_connect_timeout=START,
                retry=Retry(NoBackoff(), self._connections, supported_errors=(RedisConnectionError,)),
            )
            self._client = Redis.from_pool(pool)
            text = await self._client.get(f"{self._address.table}:current")
        except (RedisError, OSError, ValueError, TypeError) as e:  # TypeError: an unknown option
            await self.close()
            raise ConfigError(
                f"{where} must answer: {self._address.told(e)}; check address, user and password"
            ) from None
        if text is None:
            await self.close()
            raise ConfigError(f"{where} holds no table of this name: write it with fieldwise store load")
        try:
            self._manifest = Manifest.from_json(text)
        except ValueError as e:
            await self.close()
            raise ConfigError(
                f"{where} was not written by this version of fieldwise store load ({e}): write it again"
            ) from None
        if self._manifest.column != self.column:
            await self.close()
            raise ConfigError(
                f"the ids of {where} are in column {self._manifest.column!r}, not {self.column!r}: give that column"
            )

    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The rows of these ids; each is one text in Redis, so all its columns are returned.

        Errors:
            StoreError: the server does not answer, or the manifest cannot be read.
        """
        if self._client is None or self._manifest is None:
            raise StoreError("gone", "not open")
        try:
            for _ in range(GENERATIONS):
                generation, name = self._manifest.generation, self._address.table
                text, *rows = await self._client.mget(
                    [f"{name}:current", *(f"{name}:rows:{generation}:{one}" for one in ids)]
                )
                if text is None:
                    raise StoreError("damaged", f"{name}:current is gone")
                self._manifest = Manifest.from_json(text)
                if self._manifest.generation == generation:
                    found = zip(rows, ids, strict=True)
                    return [None if row is None else self._row(row, one, columns) for row, one in found]
        except (RedisError, OSError) as e:
            raise StoreError("gone", self._address.told(e)) from None
        except ValueError as e:
            raise StoreError("damaged", str(e)) from None
        raise StoreError("damaged", f"{self._address.table} was replaced {GENERATIONS} times during a lookup")

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose(close_connection_pool=True)
        self._client = None

    def _row(self, text: bytes | str, one: str, columns: Collection[str] | None) -> Row:
        """A row's values; all are `UNREADABLE` if the text is not a JSON object."""
        try:
            row = json.loads(text, parse_constant=_constant)
        except FAULTS:
            row = None
        if not isinstance(row, dict):
            row = dict.fromkeys(self.columns if columns is None else columns, UNREADABLE)
        return {**row, self.column: one}


def _constant(name: str) -> Any:
    """The value of a JSON constant: NaN, which other programs may write, is null."""
    return None if name == "NaN" else float(name)
