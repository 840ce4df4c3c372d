"""Preparing data: labels, splits, negatives, histories, target encoding."""
