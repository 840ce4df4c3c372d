"""Memory and processor time of a server's processes, read from /proc."""

import os
from pathlib import Path

__all__ = ["cpu_seconds", "idle_seconds", "memory", "pss"]

TICKS = os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """Memory of a process in MiB, without mapped files."""
    text = Path(f"/proc/{process}/status").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("RssAnon", "RssShmem"))) / 1024


def pss(process: int) -> float:
    """Proportional set size in MiB of a process and its children: pages that processes share count in parts."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    own = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return own / 1024 + sum(map(pss, _children(process)))


def cpu_seconds(process: int) -> tuple[float, float]:
    """Processor seconds of a process and its children, in programs and in the kernel."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    all_of = [(int(fields[11]) / TICKS, int(fields[12]) / TICKS), *map(cpu_seconds, _children(process))]
    return sum(user for user, _ in all_of), sum(system for _, system in all_of)


def idle_seconds() -> float:
    """Seconds that the machine's cores have had nothing to do."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(first[4]) + int(first[5])) / TICKS


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
