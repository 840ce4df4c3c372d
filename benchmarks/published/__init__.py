"""Published results beside ours: tables of recipes, their runs, and docs/results.md."""
