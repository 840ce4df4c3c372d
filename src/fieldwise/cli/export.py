"""`fieldwise export`."""

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.options import BundleFolder

__all__ = ["run"]


def run(
    *,
    bundle: BundleFolder,
    out: Annotated[Path, typer.Option(help="Folder for the network, sample rows and an example that runs it.")],
    to: Annotated[str, typer.Option(help="onnx, or aoti: a library compiled for this processor type.")] = "onnx",
) -> None:
    """Export a bundle's network for ONNX Runtime, or for PyTorch without fieldwise; run it there and compare."""
    from fieldwise.storage.files import check_folder

    check_folder(out)
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.bundle.export import FILES, export_bundle

    difference = export_bundle(Bundle.load(bundle), out, to)  # type: ignore[arg-type]
    print(f"{out / FILES[to]}: logits of the sample rows agree within {difference:.1e}; see {out / 'example.py'}")
