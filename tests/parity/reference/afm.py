"""Attentional Factorization Machine (Xiao et al., IJCAI 2017), Equations 2 to 6, row by row and pair by pair.

Where dropout acts and how parameters start is what its variants differ in: in evaluation mode all
are one function.
"""

import numpy as np
from parity.reference.common import field_vectors, first_order, pairs, relu, softmax

from fieldwise import AFM

SMALL = {"embedding_dim": 4, "attention_dim": 5}
NEEDS = "pairs"
CASES = {
    "paper": AFM(**SMALL, dropout=0.3),
    "authors": AFM(**SMALL, variant="authors", dropout=0.3),
    "fuxictr": AFM(**SMALL, variant="fuxictr", dropout=0.3),
    "pooled": AFM(**SMALL, variant="pooled", dropout=0.3, embedding_std=0.1),
    "pairs-alone": AFM(**SMALL, pair_dropout=0.3, initial_p="standard_normal"),
}


def attention(x_BFD, w):
    """The products q [B, P, D] and their weights a [B, P]."""
    q = np.stack([x_BFD[:, i] * x_BFD[:, j] for i, j in pairs(x_BFD.shape[1])], 1)
    e = np.array(
        [
            [w["attention.h"] @ relu(w["attention.W"] @ v + w["attention.b"]) for v in row]
            for row in q
        ]
    )
    return q, softmax(e, 1)


def logit(settings, layout, batch, w):
    q, a = attention(field_vectors(layout, batch, w["embedding.weight"]), w)
    out = first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
    return out + np.array(
        [
            w["p"] @ sum(a_ij * q_ij for a_ij, q_ij in zip(*row, strict=True))
            for row in zip(a, q, strict=True)
        ]
    )
