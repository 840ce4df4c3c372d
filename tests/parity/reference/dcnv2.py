"""DCN V2 (Wang et al., WWW 2021), row by row and expert by expert."""

import numpy as np
from parity.reference.common import blocks, field_vectors, linear, mlp, relu, sigmoid, softmax

from fieldwise import DCNv2

SMALL = {"embedding_dim": 3, "layers": 2, "hidden": (5,)}
CASES = {
    "stacked": DCNv2(embedding_dim=4, layers=2, hidden=(8,), mlp_dropout=0.2),
    "parallel": DCNv2(**SMALL, structure="parallel", batch_norm=True),
    "crossnet": DCNv2(embedding_dim=3, layers=3, hidden=()),
    "mixture": DCNv2(**SMALL, rank=2, experts=3),
    "mixture-parallel": DCNv2(
        **SMALL, structure="parallel", rank=2, experts=3, expert_activation="relu"
    ),
    "sigmoid": DCNv2(**SMALL, rank=2, experts=3, gate="sigmoid", expert_activation="identity"),
    "constant": DCNv2(**SMALL, rank=2, experts=3, gate="constant", expert_activation="hard_tanh"),
    "one-expert": DCNv2(embedding_dim=3, layers=3, hidden=(), rank=2, experts=1),
}

ACTIVATIONS = {"tanh": np.tanh, "hard_tanh": lambda z: np.clip(z, -1.0, 1.0), "relu": relu}


def gates(settings, x, w, prefix):
    """G of one row: a number for each expert."""
    if settings.experts == 1 or settings.gate == "constant":
        return np.ones(settings.experts)
    scores = linear(x, w, f"{prefix}gate")
    return softmax(scores) if settings.gate == "softmax" else sigmoid(scores)


def expert(settings, k, x0, x, w, prefix):
    """E_k of one row (Equation 4, or 3 for `identity`)."""
    z = w[f"{prefix}V"][k].T @ x
    if settings.expert_activation != "identity":
        g = ACTIVATIONS[settings.expert_activation]
        z = g(w[f"{prefix}C"][k] @ g(z))
    return x0 * (w[f"{prefix}U"][k] @ z + w[f"{prefix}bias"])


def cross(settings, x0, x, w, prefix):
    """One cross layer for one row (Equation 1, or 3)."""
    if settings.rank is None:
        return x0 * (w[f"{prefix}weight"] @ x + w[f"{prefix}bias"]) + x
    share = gates(settings, x, w, prefix)
    return (
        sum(share[k] * expert(settings, k, x0, x, w, prefix) for k in range(settings.experts)) + x
    )


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    joined = x.reshape(len(x), -1)
    crossed = np.zeros_like(joined)
    for b, x0 in enumerate(joined):
        y = x0
        for i in range(settings.layers):
            y = cross(settings, x0, y, w, f"cross.{i}.")
        crossed[b] = y
    if not settings.hidden:
        final = crossed
    elif settings.structure == "stacked":
        final = mlp(crossed, w, "mlp.")
    else:
        final = np.concatenate([crossed, mlp(joined, w, "mlp.")], 1)
    return linear(final, w, "head")[:, 0]


def permuted(settings, layout, order, w):
    """Whatever has an axis of the crossed vector holds the fields one after another on it."""
    size, inputs = settings.embedding_dim, layout.num_fields * settings.embedding_dim
    axes = {"weight": (0, 1), "bias": (0,), "U": (1,), "V": (1,), "gate.weight": (1,)}
    moved = {}
    for i in range(settings.layers):
        for part, along in axes.items():
            name = f"cross.{i}.{part}"
            if name in w:
                moved[name] = w[name]
                for axis in along:
                    moved[name] = blocks(moved[name], order, axis, size)
    if settings.hidden:
        moved["mlp.layers.0.0.weight"] = blocks(w["mlp.layers.0.0.weight"], order, 1, size)
    if not settings.hidden or settings.structure == "parallel":
        head = w["head.weight"]
        moved["head.weight"] = np.concatenate(
            [blocks(head[:, :inputs], order, 1, size), head[:, inputs:]], 1
        )
    return moved
