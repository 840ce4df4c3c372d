"""Checks, before any work, that a result can be written where it shall go; another place for one that could not."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from fieldwise.errors import Argument, ConfigError, DataError, FieldwiseError
from fieldwise.storage.files import cannot_write

PROBE_BYTES = 1 << 20


def already_exists(out: Path, argument: str) -> ConfigError:
    """The error for an output that exists, and is not to be replaced; `argument` is the one that gives it."""
    overwrite = Argument("overwrite", True)
    return ConfigError(
        f"{out} exists: give ", overwrite, " to replace it, or another ", Argument(argument)
    )


def check_not_input(out: Path, inputs: Iterable[Path], argument: str = "out") -> None:
    """Check that an output would replace none of the inputs: files, folders, or files in these folders.

    Errors:
        ConfigError: it would, under this name or another one (a link).
    """
    if not out.exists():
        return
    for path in inputs:
        same = path.exists() and path.samefile(out)
        if same or (
            path.is_dir() and out.is_file() and out.resolve().is_relative_to(path.resolve())
        ):
            shown = (
                f"{out}"
                if path == out
                else f"{out}, which is {'' if same else 'part of '}the input {path}"
            )
            raise ConfigError(
                Argument(argument),
                f" must not be an input, which it would replace, found {shown}: choose another name",
            )


def check_output(
    out: Path, *, overwrite: bool, inputs: Iterable[Path] = (), argument: str = "out"
) -> None:
    """Check, before any work, that a file can be written and replaces nothing unless `overwrite` says so.

    `argument` is the one that gives the file. An input is never replaced. Folders that are replaced as a whole have
    `ArtifactKind.check_folder`.

    Errors:
        ConfigError: the file exists, or is one of the inputs: see `check_not_input`.
        DataError: as for `check_file`.
    """
    check_not_input(out, inputs, argument)
    check_file(out)
    if out.exists() and not overwrite:
        raise already_exists(out, argument)


def check_file(path: Path) -> None:
    """Check, before any work, that a file can be written; errors as for `check_folder` on its folder."""
    if path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder; choose another name")
    check_folder(path.parent, path)


def check_folder(folder: Path, wanted: Path | None = None) -> None:
    """Check, before any work, that files can be written to a folder; it need not exist, and is not created.

    A file of one megabyte is written there and removed: permissions do not show a read-only or full
    disk, and always allow root. Errors name the file that is `wanted` there, or the folder.
    """
    wanted = wanted or folder
    there = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path)
    )
    if not there.is_dir():
        raise DataError(f"cannot write {wanted}: {there} is not a folder; choose a writable folder")
    probe = there / f".{secrets.token_hex(6)}.part"
    try:
        try:
            with open(probe, "xb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as e:
        raise cannot_write(wanted, e) from e


def keep_elsewhere(write: Callable[[Path], object], failure: Exception) -> Path:
    """Save a result to another place if its own failed, so that nothing computed is lost.

    `write` writes into the folder that it is given.

    Returns:
        The new folder: in the system's temporary folder, the user's home or the current folder, the
        first that worked.

    Errors:
        The `failure` of its own place, if none did.
    """
    for candidate in (tempfile.gettempdir, Path.home, Path.cwd):
        try:
            folder = Path(tempfile.mkdtemp(prefix="fieldwise-kept-", dir=candidate()))
        except (OSError, RuntimeError):  # RuntimeError: a user without a home
            continue
        try:
            write(folder)
        except (OSError, FieldwiseError):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return folder
    raise failure
