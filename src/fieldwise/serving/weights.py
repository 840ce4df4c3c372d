"""A network's weights in memory that several processes share."""

import hashlib
from functools import partial

import numpy as np
import torch
from torch import nn

from fieldwise.storage.shared import SharedArrays

__all__ = ["share_weights"]

LEAST = 1 << 16  # bytes; smaller tensors are not worth a file


def share_weights(network: nn.Module, shared: SharedArrays) -> None:
    """Replace the large weights of a network by equal ones in shared memory; they must not be changed afterwards.

    Args:
        network: in evaluation mode; weights on another device stay as they are.
        shared: where; equal tensors are stored once, by their digest.
    """
    done: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for weight in [*network.parameters(), *network.buffers()]:
            plain = weight.device.type == "cpu" and weight.dtype != torch.bfloat16 and weight.is_contiguous()
            if weight.nbytes < LEAST or not plain:
                continue
            address = weight.data_ptr()
            if address not in done:
                values = weight.detach().numpy()
                digest = hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).hexdigest()
                kept = shared.array(f"weights-{digest}-{values.dtype.str[1:]}", partial(np.asarray, values))
                done[address] = torch.from_numpy(kept)
            weight.data = done[address].view(weight.shape)
