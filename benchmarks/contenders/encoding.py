"""The contestants of `benchmarks.preparing` as contenders of a case."""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.absent import NotAvailableError
from benchmarks.case import Timed
from benchmarks.preparing import CONTESTANTS


def contestant(options: dict[str, Any]) -> Timed:
    """A turn encodes the file into a fresh folder."""
    encode, path, rows = CONTESTANTS[options["contestant"]], Path(options["path"]), options["rows"]

    def turn() -> dict[str, float]:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            began = time.perf_counter()
            found = encode(path, Path(folder))
            seconds = time.perf_counter() - began
        if found != rows:
            raise NotAvailableError(f"it encoded {found} of {rows} rows")
        return {"seconds": seconds, "rows per second": rows / seconds}

    return turn, {"rows": rows}
