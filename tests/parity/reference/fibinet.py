"""FiBiNET (Huang et al., RecSys 2019), pair by pair."""

import numpy as np
from parity.reference.common import (
    blocks,
    field_vectors,
    first_order,
    mlp,
    pair_blocks,
    pairs,
    relu,
    sigmoid,
)

from fieldwise import FiBiNET

SMALL = {"embedding_dim": 4, "hidden": (8, 6)}
NEEDS = "pairs"
CASES = {
    "interaction": FiBiNET(**SMALL, reduction_ratio=1.0, mlp_dropout=0.2, batch_norm=True),
    "each": FiBiNET(**SMALL, bilinear="each", senet_activation="sigmoid"),
    "all": FiBiNET(**SMALL, bilinear="all", reduction_ratio=0.5),
    "shared": FiBiNET(**SMALL, bilinear="interaction", shared_bilinear=True, batch_norm=True),
    "shared-all": FiBiNET(**SMALL, bilinear="all", shared_bilinear=True, reduction_ratio=2),
    "shallow": FiBiNET(embedding_dim=4, hidden=(), bilinear="each"),
}
ORDER_MATTERS = "a pair's first field is mapped by W and its second is not; only a diagonal W cannot tell them apart"


def senet(settings, x, w):
    out = np.zeros_like(x)
    for b in range(len(x)):
        z = np.array([x[b, f].mean() for f in range(x.shape[1])])
        a = w["senet.expand.weight"] @ relu(w["senet.reduce.weight"] @ z)
        a = relu(a) if settings.senet_activation == "relu" else sigmoid(a)
        for f in range(x.shape[1]):
            out[b, f] = a[f] * x[b, f]
    return out


def bilinear(settings, x, W):
    results = []
    for n, (i, j) in enumerate(pairs(x.shape[1])):
        matrix = W if settings.bilinear == "all" else W[i] if settings.bilinear == "each" else W[n]
        results.append((x[:, i] @ matrix) * x[:, j])
    return results


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    weighted = "bilinear.W" if settings.shared_bilinear else "weighted_bilinear.W"
    p = bilinear(settings, x, w["bilinear.W"])
    q = bilinear(settings, senet(settings, x, w), w[weighted])
    c = np.concatenate(p + q, 1)
    wide = first_order(
        layout, batch, w["first_order.embedding.weight"], w.get("first_order.bias", 0.0)
    )
    return wide + (mlp(c, w, "mlp.")[:, 0] if settings.hidden else c.sum(1))


def order_free(settings, w):
    """Diagonal matrices, the same for all first fields: then a pair's vector is that of the pair turned round."""
    changed = {}
    for name in ("bilinear.W", "weighted_bilinear.W"):
        if name in w:
            W = w[name] * np.eye(settings.embedding_dim)
            changed[name] = np.broadcast_to(W[:1], W.shape) if settings.bilinear == "each" else W
    return changed


def permuted(settings, layout, order, w):
    """Columns and rows of SENET are fields; matrices of `interaction` and the MLP's inputs are pairs (p, then q)."""
    changed = {
        "senet.reduce.weight": blocks(w["senet.reduce.weight"], order, 1),
        "senet.expand.weight": blocks(w["senet.expand.weight"], order, 0),
    }
    if settings.bilinear == "interaction":
        for name in ("bilinear.W", "weighted_bilinear.W"):
            if name in w:
                changed[name] = pair_blocks(w[name], order, 0)
    if settings.hidden:
        first = "mlp.layers.0.0.weight"
        halves = np.split(w[first], 2, 1)
        changed[first] = np.concatenate(
            [pair_blocks(h, order, 1, settings.embedding_dim) for h in halves], 1
        )
    return changed
