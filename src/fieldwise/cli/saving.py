"""Output folders of commands: checked before the work; if saving still fails, the result is saved elsewhere."""

from pathlib import Path

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.files import BUNDLE
from fieldwise.errors import DataError, FieldwiseError
from fieldwise.storage.files import check_folder, keep_elsewhere

__all__ = ["check_out", "save_or_keep"]


def check_out(folder: Path) -> None:
    """Check, before any work, that a bundle can be saved to a folder.

    Errors:
        BundleError: `folder` is a file, or holds files but no bundle.
        DataError: it is not writable, or the disk is full.
    """
    BUNDLE.check_folder(folder)
    check_folder(folder)


def save_or_keep(bundle: Bundle, folder: Path) -> tuple[Path, DataError | None]:
    """Save a bundle; if its folder cannot be written after all, save it elsewhere.

    Returns:
        Where the bundle is, and the error to end with if that is not `folder`.

    Errors:
        FieldwiseError, OSError: from saving, if no other place was writable either.
    """
    try:
        bundle.save(folder)
    except (FieldwiseError, OSError) as error:
        kept = keep_elsewhere(bundle.save)
        if kept is None:
            raise
        return kept, DataError(f"{error}. The trained bundle was saved in {kept}: move it from there")
    return folder, None
