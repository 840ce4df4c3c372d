"""From requests and batches to scores."""
