"""Published results compared with ours: tables of recipes, their runs, and docs/results.md."""
