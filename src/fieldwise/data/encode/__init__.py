"""From a table's columns to integer ids and numbers, fitted on training rows."""
