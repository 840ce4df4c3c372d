"""Suggestions of next commands, written so that they run on this machine from this folder."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fieldwise.cli.options import IMPORTS
from fieldwise.cli.show import say

if TYPE_CHECKING:
    from fieldwise.bundle.bundle import Bundle

__all__ = ["command", "command_name", "data_options", "suggest", "suggest_report", "text_options"]


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


def suggest(what: str, *parts: object, quiet: bool = False) -> None:
    """Print one line to standard error: a useful next step and the command for it."""
    if not quiet:
        say(f"next, {what}: {command(*parts)}")


def suggest_report(bundle: "Bundle", folder: Path, data_dir: Path | None, *, quiet: bool = False) -> bool:
    """Suggest a report of a bundle if one can be made; returns whether it can."""
    if "recipe" not in bundle.about or find_spec("jinja2") is None:
        return False
    what = "an HTML report with intervals, curves, calibration and slices"
    suggest(what, "report", folder, *data_options(data_dir), quiet=quiet)
    return True


def data_options(data_dir: Path | None) -> list[str]:
    """The --data-dir option, unless the environment sets the same folder."""
    if data_dir is None or str(data_dir) == os.environ.get("FIELDWISE_DATA"):
        return []
    return ["--data-dir", str(data_dir)]


def text_options(separator: str | None, encoding: str, columns: Sequence[str] | None = None) -> list[str]:
    """The options for reading a text file that differ from their defaults."""
    given = [] if separator is None else ["--separator", separator.replace("\t", r"\t")]
    given += [] if encoding == "utf-8" else ["--encoding", encoding]
    return given if columns is None else [*given, "--columns", ",".join(columns)]


def _script_folders() -> set[Path]:
    """Folders of this Python's scripts, including the user's."""
    schemes = [sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")]
    return {Path(sysconfig.get_path("scripts", scheme)).resolve() for scheme in schemes}
