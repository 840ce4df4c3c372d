"""Schemas: the meaning of a table's columns, written in Python or TOML, or inferred (`fieldwise.data.infer.schema`)."""

from fieldwise.schema import fields
from fieldwise.schema.fields import *  # noqa: F403  # every kind of field
from fieldwise.schema.label import Label, Sampled
from fieldwise.schema.schema import Schema

__all__ = ["Label", "Sampled", "Schema"]
__all__ += fields.__all__
