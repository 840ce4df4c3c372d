"""One JSON file of results, which every command adds to."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldwise.runs.environment import environment
from fieldwise.storage.files import write_atomically

__all__ = ["store"]


def store(path: Path, name: str, words: Sequence[str], found: Mapping[str, Any]) -> None:
    """Append a result, with the command, date, machine, versions and commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    former = json.loads(path.read_text("utf-8")) if path.exists() else []
    command = " ".join(["python -m benchmarks.large", *words])
    entry = {"name": name, "command": command, "environment": environment(), **found}
    write_atomically(path, json.dumps([*former, entry], indent=1).encode())
