"""One contender's process: `python -m benchmarks.worker` answers JSON lines on standard input with JSON lines.

It needs only Python, so it also runs in the environment of other libraries. Requests:
`{"do": "make", "make": "module:function", "options": {...}}` loads data and model, `{"do": "turn"}`
does the work once and returns its measures; the end of input ends the process. Between requests it
is blocked in a read.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.case import NotAvailableError

PACKAGE = "benchmarks.contenders"


class Process:
    """The state that requests use."""

    def __init__(self) -> None:
        self.turn: Callable[[], Mapping[str, float]] | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to one request; errors are also returned as replies."""
        try:
            if request["do"] == "make":
                return self._make(request["make"], request["options"])
            return self._turn()
        except ModuleNotFoundError as e:
            return {"absent": f"{e.name} is not installed"}
        except Exception as e:
            return {"error": f"{type(e).__name__}: {e}", "traceback": traceback.format_exc()}

    def _make(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        module, function = name.split(":")
        try:
            made = getattr(importlib.import_module(f"{PACKAGE}.{module}"), function)(options)
        except NotAvailableError as e:
            return {"absent": str(e)}
        self.turn, facts = made
        return {"facts": dict(facts)}

    def _turn(self) -> dict[str, Any]:
        assert self.turn is not None, "a turn comes after make"
        gc.collect()  # outside the measured time
        began = time.perf_counter()
        measures = dict(self.turn())
        measures.setdefault("seconds", time.perf_counter() - began)
        return {"measures": {name: float(value) for name, value in measures.items()}}


def main() -> None:
    """Answer until the input ends. Libraries' output goes to standard error: the protocol uses standard output."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    process = Process()
    for line in sys.stdin:
        reply = process.answer(json.loads(line))
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
