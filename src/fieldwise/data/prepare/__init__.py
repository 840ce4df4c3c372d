"""From raw rows to encoded parts: labels, splits, negatives, histories, target encoding."""
