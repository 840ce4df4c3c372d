"""The memory and cores that this process may use, amounts of memory as text, and work on columns in threads."""

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import TypeVar

from fieldwise.errors import ConfigError

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)(I?)B?", re.IGNORECASE)
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# of mallopt
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_RETURNED = 1 << 22
_KEPT = 1 << 27
_ASSUMED_FREE = 1 << 32  # bytes, where the system reports none
_UNLIMITED = 1 << 60  # version 1 of cgroups writes a huge number for no limit


def parse_bytes(amount: str | float, what: str) -> int:
    """The number of bytes of an amount such as `2GB`, `1.5 GiB`, `512MB` or a plain number.

    KB, MB, GB and TB are powers of 1,000, KiB, MiB, GiB and TiB of 1,024. Errors name the setting
    `what`.

    >>> parse_bytes("2GB", "data.memory"), parse_bytes("1.5GiB", "data.memory")
    (2000000000, 1610612736)
    >>> parse_bytes(1e9, "data.memory")
    1000000000
    """
    # TOML reads 1e9 as a float
    text = f"{amount:.0f}" if isinstance(amount, float) else str(amount).strip()
    result = _AMOUNT.fullmatch(text)
    if result is None:
        raise ConfigError(
            f"{what} must be an amount of memory such as '2GB', '512MB' or bytes, found {amount!r}"
        )
    number, unit, binary = result.groups()
    power = " KMGT".index(unit.upper() or " ")
    return int(float(number) * (1024 if binary and power else 1000) ** power)


def available_memory() -> int:
    """The bytes that this process may still take: what the machine has free or can free, within a container's limit."""
    if (kilobytes := number_in(_MEMINFO, r"^MemAvailable: *(\d+) kB")) is not None:
        free = kilobytes * 1024
    else:
        try:  # other systems do not report what is free
            free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        except (AttributeError, ValueError, OSError):
            free = _ASSUMED_FREE
    for folder, limit, used, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):  # what a control group leaves, whose use counts cached files that can be dropped
        most = number_in(_CGROUP / folder / limit)
        taken = number_in(_CGROUP / folder / used)
        if most is not None and taken is not None and most < _UNLIMITED:
            dropped = number_in(_CGROUP / folder / "memory.stat", rf"^{cached} (\d+)$") or 0
            return max(1, min(free, most - taken + dropped))
    return max(1, free)


def return_freed_memory() -> None:
    """Return freed memory to the system, where the C library is glibc, which keeps it in its threads' arenas."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_arrays(most: int = _KEPT) -> None:
    """Keep freed arrays of up to 128 MiB for the next ones, from now on in this process, where the C library is glibc.

    For work whose arrays have the same sizes in every batch. By itself glibc keeps at most 32 MiB,
    and has the system clear the pages of each larger array again. Arrays of at least `most` bytes
    are mapped one by one.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, most)
        library.mallopt(_TRIM_THRESHOLD, 2 * most)


@contextlib.contextmanager
def arrays_returned() -> Iterator[None]:
    """A context in which large arrays go back to the system as soon as they are freed, where the C library is glibc.

    Freed arrays that are kept lie in the arena of each thread, where those of other sizes do not
    fit: work in chunks of many sizes then takes ever more memory. Those of less than 4 MiB, such as
    a column of a chunk, are kept: the system clears a new array's pages, which takes as long as
    much of the work on them. A training in this context would take half as long again. Ends with
    `keep_freed_arrays`.
    """
    keep_freed_arrays(_RETURNED)
    try:
        yield
    finally:
        keep_freed_arrays()
        return_freed_memory()


def number_in(path: Path, pattern: str = r"^(\d+)") -> int | None:
    """The number in a file of the system; None if it has none."""
    try:
        result = re.search(pattern, path.read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(result[1]) if result is not None else None


def available_cores() -> int:
    """How many cores this process may use: the machine's, unless `taskset`, Slurm or a container allows fewer."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_set() -> int | None:
    """The threads that OMP_NUM_THREADS sets, as PyTorch and the native operations have them; None if it sets none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) or None if first.isdecimal() else None


T = TypeVar("T")
R = TypeVar("R")
FEW_ROWS = 65_536  # with fewer rows, threads cost more than they gain


def each(work: Callable[[T], R], items: Iterable[T], *, rows: int) -> list[R]:
    """The results of `work` for every item, in order; if several raise, the first item's error is raised.

    Uses as many threads as polars (set by POLARS_MAX_THREADS).
    With few rows the items are processed one after another.

    >>> each(len, ["a", "bc"], rows=2)
    [1, 2]
    """
    import polars as pl  # slow, and not needed to count cores

    known = list(items)
    threads = min(pl.thread_pool_size(), len(known))
    if threads < 2 or rows < FEW_ROWS:
        return [work(item) for item in known]
    contexts = [copy_context() for _ in known]  # the caller's variables
    with ThreadPoolExecutor(threads) as pool:  # after an error `map` cancels what has not begun
        return list(pool.map(lambda context, item: context.run(work, item), contexts, known))


def ahead(items: Iterable[T]) -> Generator[T]:
    """The items of an iterable, each made in another thread, in the caller's context, while the one before is used.

    >>> list(ahead(map(len, ["a", "bc"])))
    [1, 2]
    """
    iterator = iter(items)
    end = object()
    context = copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="fieldwise-ahead") as thread:
        coming = thread.submit(context.run, lambda: next(iterator, end))
        while (item := coming.result()) is not end:
            coming = thread.submit(context.run, lambda: next(iterator, end))
            yield item  # type: ignore[misc]
