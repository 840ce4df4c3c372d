"""Trivial contenders for the tests of the harness."""

import os
import sys
from typing import Any

from benchmarks.case import NotAvailableError, Timed


def counting(options: dict[str, Any]) -> Timed:
    """Its turns give `start`, `start` + 1, ... and its process's environment; it also prints to standard output."""
    calls = []

    def turn() -> dict[str, float]:
        print("a library's own words")
        calls.append(None)
        return {"count": options["start"] + len(calls) - 1}

    told = {
        "threads": options["threads"],
        "OMP": os.environ.get("OMP_NUM_THREADS"),
        "process": os.getpid(),
    }
    return turn, {**told, "waits": os.environ.get("OMP_WAIT_POLICY")}


def absent(options: dict[str, Any]) -> Timed:
    """Cannot take part."""
    raise NotAvailableError(options["why"])


def failing(options: dict[str, Any]) -> Timed:
    """Fails after `good` successful turns, by an error or by ending its process."""
    left = [options["good"]]

    def turn() -> dict[str, float]:
        left[0] -= 1
        if left[0] < 0:
            if options.get("exits"):
                print("last words", file=sys.stderr)
                sys.stderr.flush()
                os._exit(3)
            raise ValueError("no more turns")
        return {"seconds": 1.0}

    return turn, {}
