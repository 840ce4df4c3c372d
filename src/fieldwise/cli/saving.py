"""Where a command saves its result: checked before any work, with a fallback if the folder cannot be written."""

from collections.abc import Callable
from pathlib import Path

from fieldwise.errors import DataError, FieldwiseError
from fieldwise.storage.outputs import check_folder, keep_elsewhere


def check_out(folder: Path, *, overwrite: bool) -> None:
    """Check, before any work, that a bundle can be saved to a folder, where one is replaced only with `overwrite`."""
    from fieldwise.bundle.bundle import BUNDLE

    BUNDLE.check_folder(folder, overwrite=overwrite)
    check_folder(folder)


def save_or_keep(
    save: Callable[[Path], object], folder: Path, what: str
) -> tuple[Path, DataError | None]:
    """Save something to a folder, or to a fallback folder if that one cannot be written after all.

    Returns the folder that was used, and for the fallback the error that the command must end with.
    If neither is writable, the error is raised.
    """
    try:
        save(folder)
    except (FieldwiseError, OSError) as error:
        fallback = keep_elsewhere(save, error)
        return fallback, DataError(f"{error}. {what} was saved in {fallback}: move it from there")
    return folder, None
