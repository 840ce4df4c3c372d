"""Plain NumPy in float64 that the reference models share. Nothing here is clever."""

import itertools

import numpy as np
from parity.lab import field_vectors, first_order

__all__ = [
    "batch_norm", "blocks", "field_vectors", "first_order", "linear", "mlp", "pair_blocks", "pairs", "relu", "sigmoid",
    "silu",    "softmax",
]  # fmt: skip

EPS = 1e-5  # of torch's normalization layers


def relu(x):
    return np.maximum(x, 0.0)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def linear(x, w, name):
    """A torch Linear layer named `name`, with or without bias, on the last axis of x."""
    out = x @ w[f"{name}.weight"].T
    return out + w[f"{name}.bias"] if f"{name}.bias" in w else out


def batch_norm(x, w, name):
    """BatchNorm in evaluation mode, on the last axis."""
    scaled = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + EPS)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def mlp(x, w, prefix, *, levels=False, activation=relu):
    """`fieldwise.layers.MLP` in evaluation mode: Linear, BatchNorm (or none), activation; at the end a Linear or none.

    `prefix` ends with a dot, as in "mlp.". With `levels`, the list of hidden outputs instead.
    """
    results = []
    for i in itertools.count():
        if f"{prefix}layers.{i}.0.weight" not in w:
            break
        x = linear(x, w, f"{prefix}layers.{i}.0")
        if f"{prefix}layers.{i}.1.running_mean" in w:
            x = batch_norm(x, w, f"{prefix}layers.{i}.1")
        x = activation(x)
        results.append(x)
    if levels:
        return results
    return linear(x, w, f"{prefix}output") if f"{prefix}output.weight" in w else x


def pairs(fields):
    """All i < j, ordered by i, then j."""
    return list(itertools.combinations(range(fields), 2))


def blocks(array, order, axis, size=1):
    """The array whose k-th block of `size` entries along `axis` is block `order[k]` of the given one.

    For a parameter that holds the fields one after another along an axis, `size` entries each.
    """
    index = np.concatenate([np.arange(i * size, (i + 1) * size) for i in order])
    return np.take(array, index, axis)


def pair_blocks(array, order, axis, size=1):
    """As `blocks`, for an axis of pairs i < j: the pair of new fields (a, b) is that of old fields order[a], order[b].

    Right only where a pair's parameters do not tell its first field from its second.
    """
    old = {frozenset(pair): n for n, pair in enumerate(pairs(len(order)))}
    return blocks(
        array, [old[frozenset((order[a], order[b]))] for a, b in pairs(len(order))], axis, size
    )
