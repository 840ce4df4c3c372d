"""Scoring of requests and batches."""
