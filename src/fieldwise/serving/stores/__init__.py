"""Where features of users and items come from when a request does not bring them: memory, Redis, PostgreSQL."""

from fieldwise.serving.stores.feature_store import (
    FeatureStore,
    StoreError,
    StoreURL,
    TableStore,
    load_table,
    open_store,
)
from fieldwise.serving.stores.lookup import Lookup, Stores

__all__ = ["FeatureStore", "Lookup", "StoreError", "StoreURL", "Stores", "TableStore", "load_table", "open_store"]
