"""Tensors as safetensors files, written piece by piece: no second copy of them in memory, and no pickle."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fieldwise.storage.checksums import Written

__all__ = ["read_tensors", "write_tensors"]

KINDS = {  # in the order in which safetensors' own writer sorts tensors, before their names: all are aligned
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
PIECE = 1 << 24  # bytes: other threads run between two pieces
ALIGNED = 8


def write_tensors(file: Written, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors on the CPU to an open file, with the bytes of `safetensors.torch.save`.

    Errors:
        OSError: the file cannot be written.
    """
    header, start, places = {}, 0, list(KINDS)
    in_order = sorted(tensors.items(), key=lambda one: (places.index(one[1].dtype), one[0]))
    for name, tensor in in_order:
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in in_order:
        octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        for begin in range(0, len(octets), PIECE):
            file.write(octets[begin : begin + PIECE])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of such a file, each in its own memory.

    Errors:
        OSError, SafetensorError: the file cannot be read.
    """
    return {name: tensor.clone() for name, tensor in load_file(path).items()}
