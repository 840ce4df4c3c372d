"""What ended the training of a saved bundle."""

from pathlib import Path

from fieldwise.bundle.files import BUNDLE
from fieldwise.errors import BundleError

__all__ = ["stopped_by"]


def stopped_by(folder: Path) -> str | None:
    """`stopped` of the training result, from the manifest alone; None if the bundle or that is missing or damaged."""
    try:
        run = BUNDLE.open(folder).about.get("about", {}).get("run", {})
    except (BundleError, AttributeError):
        return None
    return str(run["stopped"]) if isinstance(run, dict) and "stopped" in run else None
