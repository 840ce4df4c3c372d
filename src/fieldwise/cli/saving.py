"""Where commands write: places are tried before the work, and what could not be saved after it is kept elsewhere."""

from pathlib import Path

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.bundle import check_folder as check_bundle_folder
from fieldwise.errors import DataError, FieldwiseError
from fieldwise.storage.files import check_folder, keep_elsewhere

__all__ = ["check_out", "save_or_keep"]


def check_out(folder: Path) -> None:
    """Refuse, before any work, a folder that a bundle cannot be saved to.

    Errors:
        BundleError: it is a file, or holds files but no bundle.
        DataError: it cannot be written to, or the disk is full.
    """
    check_bundle_folder(folder)
    check_folder(folder)


def save_or_keep(bundle: Bundle, folder: Path) -> tuple[Path, DataError | None]:
    """Save a bundle, elsewhere where its folder does not take it after all.

    Returns:
        Where it is, and the error to end with where that is not `folder`.

    Errors:
        FieldwiseError, OSError: as saving gives them, where no other place took it either.
    """
    try:
        bundle.save(folder)
    except (FieldwiseError, OSError) as error:
        kept = keep_elsewhere(bundle.save)
        if kept is None:
            raise
        return kept, DataError(f"{error}. What was trained is not lost: its bundle is in {kept}, move it from there")
    return folder, None
