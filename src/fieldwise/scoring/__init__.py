"""Scoring of requests and batches, and the defaults of requests: the command line, servers and the page read these."""

PRERANK = 200  # items that an IntTower leaves to the ranking bundle
MAX_BODY = 1 << 20  # bytes of a request
TIMEOUT_S = 10.0  # for the answer to a request
