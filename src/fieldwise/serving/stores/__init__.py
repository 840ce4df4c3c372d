"""Where features of users and items come from when a request does not bring them: memory, Redis, PostgreSQL."""

from fieldwise.serving.stores.base import FeatureStore, StoreError
from fieldwise.serving.stores.complete import Missing, Stores
from fieldwise.serving.stores.lookup import Lookup
from fieldwise.serving.stores.table import TableStore
from fieldwise.serving.stores.url import StoreURL, open_store

__all__ = ["FeatureStore", "Lookup", "Missing", "StoreError", "StoreURL", "Stores", "TableStore", "open_store"]
