"""Saved models: format, prediction, recommendation, warm start, export."""
