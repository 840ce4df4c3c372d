"""Where features of users and items come from when a request does not bring them: memory, Redis, PostgreSQL.

A `FeatureStore` has rows by id. A `Lookup` guards one: queries that are joined, a time limit, a
circuit breaker and a quarantine. `Stores` completes requests: given values take precedence, missing
ones are null and reported, or an error.
"""

from fieldwise.serving.stores.address import open_store
from fieldwise.serving.stores.base import (
    REASON_TEXTS,
    UNREADABLE,
    FeatureStore,
    Reason,
    Row,
    StoreError,
)
from fieldwise.serving.stores.enrich import (
    Missing,
    OnFailure,
    StoreFacts,
    StoreRefusedError,
    Stores,
)
from fieldwise.serving.stores.lookup import Lookup
from fieldwise.serving.stores.memory import TableStore
from fieldwise.serving.stores.remote import RemoteStore, load_table

__all__ = [
    "REASON_TEXTS",
    "UNREADABLE",
    "FeatureStore",
    "Lookup",
    "Missing",
    "OnFailure",
    "Reason",
    "RemoteStore",
    "Row",
    "StoreError",
    "StoreFacts",
    "StoreRefusedError",
    "Stores",
    "TableStore",
    "load_table",
    "open_store",
]
