"""Suggestions of next commands, written so that they run on this machine from this folder."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fieldwise.cli.options import IMPORTS, reading_words
from fieldwise.cli.show import say

if TYPE_CHECKING:
    from fieldwise.bundle.bundle import Bundle

__all__ = ["command", "command_name", "log_words", "suggest", "suggest_report"]


def command_name() -> list[str]:
    """The words that start fieldwise: its name if the shell finds this installation, else this Python with `-m`."""
    found = shutil.which("fieldwise")
    if found is not None and Path(found).resolve().parent in _script_folders():
        return ["fieldwise"]
    python = Path(sys.executable)
    if shutil.which(python.name) == str(python):
        return [python.name, "-m", "fieldwise"]
    if python.is_relative_to(Path.cwd()):
        return [str(python.relative_to(Path.cwd())), "-m", "fieldwise"]
    return [str(python), "-m", "fieldwise"]


def command(*parts: object) -> str:
    """A fieldwise command as one line, quoted for the shell."""
    imports = [word for module in IMPORTS for word in ("--import", module)]
    words = [*command_name(), *imports, *(str(part) for part in parts)]
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def suggest(what: str, *parts: object, needs: str | None = None) -> None:
    """Print one line to standard error: a useful next step and the command for it, if the package it needs is here."""
    if needs is None or find_spec(needs) is not None:
        say(f"next, {what}: {command(*parts)}")


def log_words(bundle: "Bundle") -> list[str]:
    """The `--log` of `serve` with the table that a bundle was trained on; nothing if it is gone or has no users."""
    data = bundle.about.get("recipe", {}).get("settings", {}).get("data", {})
    path, roles = data.get("path"), {field.role for field in bundle.schema.fields}
    if path is None or not Path(path).is_file() or not {"user", "item"} <= roles:
        return []
    return ["--log", path, *reading_words(data.get("separator"), data.get("encoding", "utf-8"), data.get("columns"))]


def suggest_report(bundle: "Bundle", folder: Path) -> bool:
    """Suggest a report of a bundle if one can be made; returns whether it can."""
    if "recipe" not in bundle.about or find_spec("jinja2") is None:
        return False
    suggest("an HTML report with intervals, curves, calibration and slices", "report", folder)
    return True


def _script_folders() -> set[Path]:
    """Folders of this Python's scripts, including the user's."""
    schemes = [sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")]
    return {Path(sysconfig.get_path("scripts", scheme)).resolve() for scheme in schemes}
