"""Scoring of requests and batches, and the defaults of requests: the command line, servers and the page read these."""

from typing import Literal

Seen = bool | Literal["positive"]
"""Which items of a user's rows are excluded: those of positive rows (`positive`), all (True) or none (False)."""
EXCLUDE_SEEN: Seen = "positive"
"""A row that is not positive may be an item that was only shown."""
PRERANK = 200
"""Items that an IntTower leaves to the ranking bundle."""


def seen_words(positive: str | None, seen: Seen) -> str:
    """A message on the items that are excluded as seen, if any; `positive` is the rule of a positive row in words."""
    if not seen:
        return ""
    if seen is True or not positive:
        return "items of a user's rows are excluded (--include-seen keeps them)"
    preposition = "where" if positive.startswith("“") else "with"
    options = "(--exclude-seen: of all rows, --include-seen: none)"
    return f"items of a user's rows {preposition} {positive} are excluded {options}"
