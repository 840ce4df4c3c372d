"""A description of the machine and the software that a run had."""

import datetime
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fieldwise.ops.devices import CPU, device_words
from fieldwise.version import __version__


def environment(device: torch.device = CPU) -> dict[str, Any]:
    """Date (UTC), machine (processor and cores), device, threads, versions and commit, as plain values."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "device": device_words(device),
        "threads": torch.get_num_threads(),
        "fieldwise": __version__,
        "torch": torch.__version__,
        "commit": commit(),
    }


def _processor() -> str:
    """The processor's model if Linux tells it, or else what Python calls it."""
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        for line in cpu_info.read_text().splitlines():
            if "model name" in line:
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@cache
def commit() -> str:
    """The running commit, with `+` if the tree has changes; `unknown` if the package is not a checkout."""
    try:
        is_tracked = _git("ls-files", Path(__file__).name) != ""
        if not is_tracked:  # an installed copy inside another checkout
            return "unknown"
        head = _git("rev-parse", "--short", "HEAD")
        has_changes = _git("status", "--porcelain") != ""
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+" if has_changes else head


def _git(*arguments: str) -> str:
    """What git prints in the folder of this file."""
    process = subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        check=True,
        capture_output=True,
        text=True,
    )
    return process.stdout.strip()
