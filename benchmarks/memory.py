"""The peak of a process's resident memory while some work is done, from what Linux counts for it."""

import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["peak_bytes"]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(work: Callable[[], object]) -> int | None:
    """How far resident memory rose above where it stood before `work`; None where the system does not count it.

    Meant for a fresh process whose code is warm: what an allocator keeps from earlier work is not seen to rise again.
    """
    try:
        _RESET.write_text("5")  # resets the peak to the memory that is resident now
        before = _peak()
        work()
        return max(0, _peak() - before)
    except (OSError, LookupError):
        return None


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
    if found is None:
        raise LookupError("VmHWM")
    return int(found[1]) * 1024
