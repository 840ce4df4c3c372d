"""From files and frames to encoded rows: sources, splits, negatives, encoder, batches."""
