"""`fieldwise export`: a bundle's network for ONNX Runtime, or for PyTorch alone."""

from pathlib import Path
from typing import Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.storage.outputs import check_folder, check_not_input


def run(
    *,
    bundle: opt.BundleFolder,
    out: Annotated[
        Path, Option(help="Folder for the network, sample rows and an example that runs it.")
    ],
    to: Annotated[
        str, Option(help="onnx, or aoti: a library compiled for this processor type.")
    ] = "onnx",
    overwrite: opt.Overwrite = False,
) -> None:
    """Export a network for ONNX Runtime, or for PyTorch alone.

    The exported network needs no fieldwise. The command runs it on sample rows, and compares its
    results with the bundle's.
    """
    check_not_input(out, [bundle])
    check_folder(out)
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.bundle.export import EXPORT, FILES, export_bundle

    EXPORT.check_folder(out, overwrite=overwrite)

    difference = export_bundle(Bundle.load(bundle), out, to)  # type: ignore[arg-type]
    print(
        f"{out / FILES[to]}: logits of the sample rows agree within {difference:.1e}; see {out / 'example.py'}"
    )
