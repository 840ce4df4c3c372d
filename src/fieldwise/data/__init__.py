"""Data: reading tables, splits, negatives, encoding and batches."""
