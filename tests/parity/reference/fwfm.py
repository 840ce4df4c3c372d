"""Field-weighted Factorization Machine (Pan et al., WWW 2018), pair by pair."""

import numpy as np
import torch
from parity.reference.common import blocks, field_vectors, first_order, pair_blocks, pairs

from fieldwise import FwFM

NEEDS = "pairs"
CASES = {
    "field vectors": FwFM(embedding_dim=4),
    "feature vectors": FwFM(embedding_dim=4, linear="feature_vectors"),
    "weights": FwFM(embedding_dim=4, linear="weights"),
}


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    if settings.linear == "weights":
        out = first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
    elif settings.linear == "field_vectors":
        out = w["bias"] + np.einsum("bfd,fd->b", x, w["field_vectors"])
    else:
        without_values = batch._replace(values=torch.ones_like(batch.values))
        out = w["bias"] + (
            x * field_vectors(layout, without_values, w["feature_vectors.weight"])
        ).sum((1, 2))
    for r, (i, j) in zip(w["r"], pairs(layout.num_fields), strict=True):
        out = out + r * (x[:, i] * x[:, j]).sum(1)
    return out


def permuted(settings, layout, order, w):
    """A pair's strength follows its pair, a field's vector its field."""
    moved = {"r": pair_blocks(w["r"], order, axis=0)}
    if settings.linear == "field_vectors":
        moved["field_vectors"] = blocks(w["field_vectors"], order, axis=0)
    return moved
