"""Limits of a server, and its token."""

import hmac
from dataclasses import dataclass

from fieldwise.errors import ConfigError
from fieldwise.scoring import MAX_BODY, TIMEOUT_S
from fieldwise.serving.batching import MAX_BATCH, MAX_WAITING


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits of a server.

    Args:
        token: required token in `Authorization: Bearer`; None allows access without a token.
        allow_hosts: allowed values of the header `Host`, lower case, without port; None for any.
            This protects against DNS rebinding.
        max_body: maximum bytes of a request.
        max_rows: maximum rows of a prediction.
        max_ids: maximum ids of a list, and values of all filters.
        max_prerank: maximum items for the ranking bundle.
        max_explained: maximum rows of an explanation.
        max_k: maximum items of a response.
        timeout: maximum seconds for a response.
        max_batch: maximum requests in a batch.
        max_waiting: maximum number of waiting requests; further ones get 503 and `Retry-After` at
            once.

    Errors:
        ConfigError: an empty token.
    """

    token: str | None = None
    allow_hosts: frozenset[str] | None = None
    max_body: int = MAX_BODY
    max_rows: int = 1000
    max_ids: int = 100_000
    max_prerank: int = 10_000
    max_explained: int = 50
    max_k: int = 1000
    timeout: float = TIMEOUT_S
    max_batch: int = MAX_BATCH
    max_waiting: int = MAX_WAITING

    def __post_init__(self) -> None:
        if self.token is not None and not self.token.strip():
            raise ConfigError("a token must not be empty: give None to allow access without one")

    def bears_token(self, authorization: bytes) -> bool:
        """Whether a header `Authorization` has the token, or none is required."""
        if self.token is None:
            return True
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token, self.token.encode())
