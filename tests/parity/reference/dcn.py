"""Deep & Cross Network (Wang et al., ADKDD 2017), row by row and with the outer product of Equation 3 written out."""

import numpy as np
from parity.reference.common import blocks, field_vectors, linear, mlp

from fieldwise import DCN

CASES = {
    "batch_norm": DCN(embedding_dim=4, layers=3, hidden=(8, 6), mlp_dropout=0.2),
    "plain": DCN(embedding_dim=3, layers=1, hidden=(5,), batch_norm=False),
    "crossnet": DCN(embedding_dim=3, layers=4, hidden=()),
}


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    joined = x.reshape(len(x), -1)
    crossed = np.zeros_like(joined)
    for b, x0 in enumerate(joined):
        y = x0
        for i in range(settings.layers):
            y = np.outer(x0, y) @ w[f"cross.{i}.weight"] + w[f"cross.{i}.bias"] + y
        crossed[b] = y
    deep = [mlp(joined, w, "mlp.")] if settings.hidden else []
    return linear(np.concatenate([crossed, *deep], 1), w, "head")[:, 0]


def permuted(settings, layout, order, w):
    """The crossed vector holds the fields one after another; so do the first inputs of the head."""
    size, inputs = settings.embedding_dim, layout.num_fields * settings.embedding_dim
    names = [f"cross.{i}.{part}" for i in range(settings.layers) for part in ("weight", "bias")]
    moved = {name: blocks(w[name], order, 0, size) for name in names}
    head = w["head.weight"]
    moved["head.weight"] = np.concatenate(
        [blocks(head[:, :inputs], order, 1, size), head[:, inputs:]], 1
    )
    if settings.hidden:
        moved["mlp.layers.0.0.weight"] = blocks(w["mlp.layers.0.0.weight"], order, 1, size)
    return moved
