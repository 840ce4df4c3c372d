"""Amounts of memory: as text, and what the machine has available."""

import contextlib
import ctypes
import os
import re
from pathlib import Path

from fieldwise.errors import ConfigError

__all__ = ["available_memory", "parse_bytes", "return_freed_memory"]

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)(I?)B?", re.IGNORECASE)
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_MMAP_THRESHOLD = -3  # of mallopt: larger arrays are mapped one by one, and the limit no longer grows
_UNTOLD = 1 << 32  # where a system tells nothing
_UNLIMITED = 1 << 60  # version 1 of cgroups writes a huge number for no limit


def parse_bytes(amount: str | int, what: str) -> int:
    """The number of bytes of an amount such as `2GB`, `1.5 GiB`, `512MB` or a plain number.

    Args:
        amount: the amount; KB, MB, GB and TB are powers of 1,000, KiB, MiB, GiB and TiB of 1,024.
        what: the setting that errors name.

    Errors:
        ConfigError: no such amount.

    >>> parse_bytes("2GB", "data.memory"), parse_bytes("1.5GiB", "data.memory")
    (2000000000, 1610612736)
    """
    found = _AMOUNT.fullmatch(str(amount).strip())
    if found is None:
        raise ConfigError(f"{what} must be an amount of memory such as '2GB', '512MB' or bytes, found {amount!r}")
    number, unit, binary = found.groups()
    power = " KMGT".index(unit.upper() or " ")
    return int(float(number) * (1024 if binary and power else 1000) ** power)


def available_memory() -> int:
    """The bytes that this process may still take: what the machine has free or can free, within its container's limit.

    >>> available_memory() > 0
    True
    """
    return max(1, min(_of_machine(), _of_container()))


def return_freed_memory() -> None:
    """Let the process return large arrays to the system when they are freed.

    glibc keeps freed arrays of up to 32 MiB in the arena of each thread, where those of other sizes do not fit: work in
    pieces then takes ever more memory. It has no effect where the C library is another.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


def _of_machine() -> int:
    try:
        found = re.search(r"^MemAvailable: *(\d+) kB", _MEMINFO.read_text("ascii"), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    except OSError:
        pass
    try:  # other systems do not tell what is free
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return _UNTOLD


def _of_container() -> int:
    """What a control group leaves, whose use counts cached files that can be dropped."""
    for folder, limit, used, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = (_CGROUP / folder / limit).read_text("ascii").strip()
            if most == "max" or int(most) >= _UNLIMITED:
                continue
            taken = int((_CGROUP / folder / used).read_text("ascii"))
            dropped = re.search(
                rf"^{cached} (\d+)$", (_CGROUP / folder / "memory.stat").read_text("ascii"), re.MULTILINE
            )
            return int(most) - taken + (int(dropped[1]) if dropped else 0)
        except (OSError, ValueError):
            continue
    return _UNLIMITED
