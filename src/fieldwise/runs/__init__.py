"""Runs of recipes: pipeline, comparison, tuning, records."""
