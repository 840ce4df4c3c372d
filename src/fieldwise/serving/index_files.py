"""The files of an item index (see `serving.index` and `storage.artifact`), written as the heads come."""

import contextlib
from collections.abc import Iterator

import torch

from fieldwise.ops.stored_items import StoredItems
from fieldwise.storage.arrays import write_header, write_values
from fieldwise.storage.artifact import Kind
from fieldwise.storage.writer import Writer

__all__ = ["INDEX", "MANIFEST", "write_heads"]

MANIFEST = "index.json"
INDEX = Kind(
    name="index",
    manifest=MANIFEST,
    format=1,
    parts={"heads": "npy", "scale": "npy", "items": "arrow"},
    remedy="build it again",
    origin="give the folder of `fieldwise index`",
)


def write_heads(writer: Writer, blocks: Iterator[StoredItems], rows: int) -> None:
    """Write blocks of heads as they come: memory holds one."""
    with contextlib.ExitStack() as stack:
        files = {}
        for block in blocks:
            for name, tensor in block.tensors().items():
                array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
                if name not in files:
                    files[name] = stack.enter_context(writer.open(name))
                    write_header(files[name], array.dtype, (rows, *array.shape[1:]))
                write_values(files[name], array)
