"""The machine and software of a run."""

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

__all__ = ["commit", "environment", "machine"]


def environment(device: torch.device = CPU) -> dict[str, Any]:
    """Date (UTC), machine, device, threads, versions and commit, as plain values."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "device": device_words(device),
        "threads": torch.get_num_threads(),
        "fieldwise": __version__,
        "torch": torch.__version__,
        "commit": commit(),
    }


def machine() -> str:
    """The processor's name and number of cores."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = (line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line)
        name = next(models, name)
    return f"{name}, {os.cpu_count()} cores"


@cache
def commit() -> str:
    """The running commit, with `+` if the tree has changes; `unknown` if the package is not a checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):  # an installed copy inside another checkout
            return "unknown"
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
