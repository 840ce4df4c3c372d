"""Display of objects in notebooks: HTML tables, pandas frames, and Matplotlib plots (extra `plots`)."""
