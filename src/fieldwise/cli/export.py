"""`fieldwise export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.options import BundleFolder

__all__ = ["ExportOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of `fieldwise export`."""

    bundle: BundleFolder
    out: Annotated[Path, typer.Option(help="Folder for the network, sample rows and an example that runs it.")]
    to: Annotated[str, typer.Option(help="onnx, or aoti: a library compiled for this processor type.")] = "onnx"


def run(options: ExportOptions) -> None:
    """Export a bundle's network for ONNX Runtime, or for PyTorch without fieldwise; run it there and compare."""
    from fieldwise.storage.files import check_folder

    out, target = options.out, options.to
    check_folder(out)
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.bundle.export import FILES, export_bundle

    difference = export_bundle(Bundle.load(options.bundle), out, target)  # type: ignore[arg-type]
    print(f"{out / FILES[target]}: logits of the sample rows agree within {difference:.1e}; see {out / 'example.py'}")
