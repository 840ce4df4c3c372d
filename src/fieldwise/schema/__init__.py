"""Schemas: the meaning of a table's columns, written in Python or TOML, or inferred (`fieldwise.data.infer.schema`)."""

from fieldwise.schema.fields import (
    Bag,
    Categorical,
    Field,
    ListField,
    Numeric,
    Pooling,
    Role,
    Sequence,
)
from fieldwise.schema.label import Label
from fieldwise.schema.schema import Schema

__all__ = [
    "Bag",
    "Categorical",
    "Field",
    "Label",
    "ListField",
    "Numeric",
    "Pooling",
    "Role",
    "Schema",
    "Sequence",
]
