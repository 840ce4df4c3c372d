"""Writes tables into Redis, in the form that `redis_store` reads."""

import json
import re
import secrets
from collections.abc import Callable
from contextlib import suppress

from fieldwise.errors import ConfigError, DataError, MissingExtraError
from fieldwise.serving.stores.load import Source
from fieldwise.serving.stores.redis_store import Manifest
from fieldwise.serving.stores.url import StoreURL

try:
    from redis import Redis
    from redis.exceptions import LockError, RedisError
except ImportError as e:
    raise MissingExtraError(f"features for Redis need {e.name}: pip install 'fieldwise[redis]'") from None

__all__ = ["load_redis"]

LOCK = 60  # seconds after which the lock of a killed load expires
SCANNED = 1000  # keys scanned or removed in one step


def load_redis(source: Source, address: StoreURL) -> int | None:
    """Write the rows as a new generation, switch to it, and remove the others; returns the old number of rows.

    A load that is killed leaves the old generation in place; the next load removes the rows that it wrote.

    Errors:
        ConfigError: there is no connection, Redis refuses a write, or another load is running.
        DataError: a value of the rows is infinite, or their file is truncated.
    """
    client: Redis | None = None
    try:
        client = Redis.from_url(address.url, socket_timeout=30, socket_connect_timeout=5)
        lock = client.lock(f"{address.table}:loading", timeout=LOCK, blocking=False)
        if not lock.acquire():
            raise ConfigError(
                f"only one load may run at a time, and another one writes {address.shown}: wait for its end (if it was "
                f"killed, {LOCK} s)"
            )
        try:
            return _write(client, source, address, lock.reacquire)
        finally:
            with suppress(RedisError):  # the lock expires by itself
                lock.release()
    except LockError:
        raise ConfigError(
            f"another load wrote {address.shown} at the same time: nothing was changed, try again"
        ) from None
    except (RedisError, OSError, ValueError, TypeError) as e:  # TypeError: an unknown option
        if isinstance(e, (ConfigError, DataError)):
            raise
        raise ConfigError(f"{address.shown} was not written: {address.told(e)}") from None
    finally:
        if client is not None:
            client.close()


def _write(client: Redis, source: Source, address: StoreURL, alive: Callable[[], object]) -> int | None:
    name, generation = address.table, secrets.token_hex(8)
    old = client.get(f"{name}:current")
    try:
        before = None if old is None else Manifest.from_json(old).rows
    except ValueError:
        raise ConfigError(
            f"{address.shown} has a key {name}:current that fieldwise did not write: use another name"
        ) from None
    try:
        for batch in source.batches():
            ids = batch.get_column(source.column).to_list()
            rows = batch.iter_rows(named=True)
            texts = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
            if ids:
                client.mset({f"{name}:rows:{generation}:{one}": text for one, text in zip(ids, texts, strict=True)})
            alive()
        manifest = Manifest(
            generation=generation, column=source.column, columns=tuple(source.empty.columns), rows=source.rows
        )
        client.set(f"{name}:current", manifest.to_json())
    except BaseException:
        _remove(client, name, lambda found: found == generation)
        raise
    _remove(client, name, lambda found: found != generation)
    return before


def _remove(client: Redis, name: str, wanted: Callable[[str], bool]) -> None:
    """Remove the rows of the generations for which `wanted` is true."""
    own = re.compile(re.escape(f"{name}:rows:".encode()) + rb"([0-9a-f]{16}):")
    escaped = re.sub(r"([\\*?\[\]^-])", r"\\\1", name)
    gone: list[bytes] = []
    for key in client.scan_iter(match=f"{escaped}:rows:*", count=SCANNED):
        found = own.match(key)
        if found and wanted(found[1].decode()):
            gone.append(key)
        if len(gone) >= SCANNED:
            client.unlink(*gone)
            gone.clear()
    if gone:
        client.unlink(*gone)
