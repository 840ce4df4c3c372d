"""Recipes, and what turns them into figures: the pipeline, comparison, tuning, records."""
