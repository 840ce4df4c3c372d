"""COLD (Wang et al., DLP-KDD 2020), field by field."""

import numpy as np
from parity.reference.common import blocks, field_vectors, mlp, sigmoid

from fieldwise import COLD

SMALL = {"embedding_dim": 4, "hidden": (7, 6), "mlp_dropout": 0.2}

CASES = {
    "paper": COLD(**SMALL),
    "own": COLD(**SMALL, se_block="own"),
    "no-block": COLD(**SMALL, se_block="none"),
    "normalized": COLD(**SMALL, batch_norm=True),
    "fields-kept": COLD(**SMALL, fields_kept=("f2", "f0")),
    "served": COLD(**SMALL, se_block="none", fields_kept=("f1", "f2")),
}


def kept(settings, layout):
    """Positions of the fields that the network reads."""
    return [i for i, f in enumerate(layout.fields) if f.name in (settings.fields_kept or [f.name])]


def importance(settings, x, w):
    """s [B, F] from the kept fields' vectors."""
    s = np.ones(x.shape[:2])
    for f in range(x.shape[1]):
        if settings.se_block == "joint":
            s[:, f] = sigmoid(
                x.reshape(len(x), -1) @ w["se_block.weight"][f] + w["se_block.bias"][f]
            )
        elif settings.se_block == "own":
            s[:, f] = sigmoid(x[:, f] @ w["se_block.weight"][f] + w["se_block.bias"][f])
    return s


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])[:, kept(settings, layout)]
    v = importance(settings, x, w)[:, :, None] * x
    return mlp(v.reshape(len(x), -1), w, "mlp.")[:, 0]


def permuted(settings, layout, order, w):
    """The fields' vectors stand side by side in the inputs of the MLP and of a joint SE block; s_i is field i's."""
    positions = kept(settings, layout)
    moved = [positions.index(i) for i in order if i in positions]
    name, size = "mlp.layers.0.0.weight", settings.embedding_dim
    changed = {name: blocks(w[name], moved, 1, size)}
    if settings.se_block != "none":
        changed |= {n: blocks(w[n], moved, 0) for n in ("se_block.weight", "se_block.bias")}
    if settings.se_block == "joint":
        changed["se_block.weight"] = blocks(changed["se_block.weight"], moved, 1, size)
    return changed
