"""Inferring a schema from a table."""
