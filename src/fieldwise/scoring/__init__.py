"""Scoring of requests and batches, and the defaults of requests: the command line, servers and the page read these."""

from typing import Literal

Seen = bool | Literal["positive"]
"""Which items of a user's rows are excluded: those of positive rows (`positive`), all (True) or none (False)."""
EXCLUDE_SEEN: Seen = "positive"
"""A row that is not positive may be an item that was only shown."""
PRERANK = 200  # items that an IntTower leaves to the ranking bundle
MAX_BODY = 1 << 20  # bytes of a request
TIMEOUT_S = 10.0  # for the answer to a request
