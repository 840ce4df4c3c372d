"""From an address to the feature store there."""

from urllib.parse import SplitResult, unquote, urlsplit

from fieldwise.errors import ConfigError
from fieldwise.serving.stores.remote import RemoteStore

REDIS_SCHEMES = ("redis", "rediss")
POSTGRES_SCHEMES = ("postgresql", "postgres")


def open_store(address: str, column: str, default: str | None = None) -> RemoteStore:
    """The store at `SCHEME://[USER:PASSWORD@]HOST[:PORT]/DATABASE[?OPTIONS][#TABLE]`, not connected yet.

    >>> open_store("redis://me:secret@localhost:6379/0#users", "user_id").shown
    'redis://localhost:6379/0#users'
    """
    scheme, separator, _ = address.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in (*REDIS_SCHEMES, *POSTGRES_SCHEMES):
        raise ConfigError(
            "a store's address begins with redis://, rediss://, postgresql:// or postgres://"
        )
    parts = _parsed(address, scheme)
    table = unquote(parts.fragment) or default
    if not table:
        raise ConfigError(
            f"a store's address must name the table, as in {scheme}://HOST/DATABASE#users"
        )

    url = parts._replace(fragment="").geturl()
    if scheme in REDIS_SCHEMES:
        from fieldwise.serving.stores.redis import RedisStore

        return RedisStore(url, table, column)
    from fieldwise.serving.stores.postgres import PostgresStore

    return PostgresStore(url, table, column)


def _parsed(address: str, scheme: str) -> SplitResult:
    """The parts of an address; a ConfigError, which never shows it, as it holds a password."""
    try:
        parts = urlsplit(address)
        port = parts.port  # an invalid one raises a ValueError
    except ValueError:
        is_valid = False
    else:
        is_valid = "@" not in f"{parts.path}{parts.query}{parts.fragment}{port}"
    if not is_valid:
        raise ConfigError(
            f"a store's address must be {scheme}://USER:PASSWORD@HOST:PORT/DATABASE#TABLE: write the characters "
            "/ # ? @ : % of a password as %2F %23 %3F %40 %3A %25"
        )
    return parts
