"""Encoding a table's columns as integer ids and numbers, fitted on training rows."""
