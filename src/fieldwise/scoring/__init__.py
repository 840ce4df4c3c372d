"""Scoring of requests and batches, and the defaults of requests: the command line, servers and the page read these."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fieldwise.schema import Label

Seen = bool | Literal["positive"]
"""Which items of a user's rows are excluded: those of positive rows (`positive`), all (True) or none (False)."""
EXCLUDE_SEEN: Seen = "positive"
"""A row that is not positive may be an item that was only shown."""
PRERANK = 200
"""Items that an IntTower leaves to the ranking bundle."""


def seen_words(label: "Label | None", seen: Seen) -> str:
    """A message on the items that are excluded as seen, if any; `label` is what the user's rows have, if any."""
    if not seen:
        return ""
    if seen is True or label is None or label.rule is None:
        return "items of a user's rows are excluded (--include-seen keeps them)"
    preposition = "where" if label.rule_is_clause else "with"
    options = "(--exclude-seen: of all rows, --include-seen: none)"
    return f"items of a user's rows {preposition} {label.rule} are excluded {options}"
