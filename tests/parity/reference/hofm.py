"""Higher-Order Factorization Machine (Blondel et al., NIPS 2016): the sum over all subsets of 2 to M fields."""

import itertools

import numpy as np
from parity.reference.common import field_vectors, first_order

from fieldwise import HOFM

NEEDS = "three fields"
CASES = {
    "plain": HOFM(embedding_dim=4),
    "order 2": HOFM(embedding_dim=4, order=2),
    "shared": HOFM(embedding_dim=4, sharing="plain"),
    "shared and weighted": HOFM(embedding_dim=4, sharing="weighted"),
}


def logit(settings, layout, batch, w):
    out = first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
    for t in range(2, settings.order + 1):
        own = settings.sharing == "none" and t > 2
        x = field_vectors(
            layout, batch, w[f"order_embeddings.{t}.weight" if own else "embedding.weight"]
        )
        theta = w["order_weights"][t - 2] if settings.sharing == "weighted" else np.ones(x.shape[2])
        for subset in itertools.combinations(range(layout.num_fields), t):
            out = out + np.prod([x[:, f] for f in subset], axis=0) @ theta
    return out
