"""Output folders of commands: checked before the work; if saving still fails, the result is saved elsewhere."""

from pathlib import Path

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.files import MANIFEST
from fieldwise.bundle.files import check_folder as check_bundle_folder
from fieldwise.bundle.stopped import stopped_by
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.storage.files import check_folder, keep_elsewhere

__all__ = ["check_out", "check_replaced", "save_or_keep"]


def check_out(folder: Path) -> None:
    """Check, before any work, that a bundle can be saved to a folder.

    Errors:
        BundleError: `folder` is a file, or holds files but no bundle.
        DataError: it is not writable, or the disk is full.
    """
    check_bundle_folder(folder)
    check_folder(folder)


def check_replaced(folder: Path, *, overwrite: bool, unfinished: bool) -> None:
    """Refuse to replace a finished bundle unasked; one that Ctrl-C left of an unfinished run may be replaced.

    Errors:
        ConfigError: there is a finished bundle, and `overwrite` is not given.
    """
    if overwrite or not (folder / MANIFEST).exists():
        return
    if not (unfinished and stopped_by(folder) == "interrupted"):
        raise ConfigError(
            f"{folder} holds a bundle already, which training would replace: give --overwrite, or another --out"
        )


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
