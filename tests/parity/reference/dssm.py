"""DSSM (Huang et al., CIKM 2013) as two towers over fields, with a learned temperature."""

import itertools

import numpy as np
from parity.reference.common import batch_norm, blocks, field_vectors, linear, relu
from parity.reference.inttower import sides

from fieldwise import DSSM

SMALL = {"embedding_dim": 4, "hidden": (7, 6), "output_dim": 5, "mlp_dropout": 0.2}

# behind a ReLU, a few random units are often all dead
WIDE = SMALL | {"hidden": (24, 24), "output_dim": 16}

NEEDS = "towers"
CASES = {
    "paper": DSSM(**SMALL),
    "dot": DSSM(**SMALL, similarity="dot"),
    "dot-of-one-number": DSSM(**(SMALL | {"output_dim": 1, "similarity": "dot"})),
    "linear-output": DSSM(**SMALL, output_activation=False),
    "relu": DSSM(**WIDE, activation="relu"),
    "relu-linear-output-normalized": DSSM(
        **SMALL, activation="relu", output_activation=False, batch_norm=True
    ),
    "one-hidden-layer": DSSM(**(SMALL | {"hidden": (6,), "mlp_dropout": 0.0})),
}


def tower(x, w, prefix, settings):
    """One side's output: Linear, BatchNorm where there is one, activation; the last layer is without BatchNorm."""
    activation = np.tanh if settings.activation == "tanh" else relu
    for i in itertools.count():
        name = f"{prefix}layers.{i}."
        if f"{name}0.weight" not in w:
            break
        x = linear(x, w, f"{name}0")
        if f"{name}1.running_mean" in w:
            x = batch_norm(x, w, f"{name}1")
        x = activation(x)
    y = linear(x, w, f"{prefix}output")
    return activation(y) if settings.output_activation else y


def similarity(u, v, w, settings):
    """The logit of two outputs."""
    out = np.zeros(len(u))
    for b in range(len(u)):
        if settings.similarity == "dot":
            out[b] = u[b] @ v[b]
        else:
            lengths = np.linalg.norm(u[b]) * np.linalg.norm(v[b])
            # nothing lies in the direction of zeros
            cosine = u[b] @ v[b] / lengths if lengths else 0.0
            out[b] = cosine * np.exp(w["similarity.log_scale"])
    return out + w["similarity.bias"]


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    user_side, item_side = sides(layout)
    u = tower(x[:, user_side].reshape(len(x), -1), w, "user_tower.", settings)
    v = tower(x[:, item_side].reshape(len(x), -1), w, "item_tower.", settings)
    return similarity(u, v, w, settings)


def permuted(settings, layout, order, w, joined=0):
    """Each tower's first layer, whose last `joined` columns belong to no field."""
    changed = {}
    for side, prefix in zip(sides(layout), ("user_tower.", "item_tower."), strict=True):
        name = f"{prefix}layers.0.0.weight"
        fields = w[name].shape[1] - joined
        moved = blocks(
            w[name][:, :fields],
            [side.index(i) for i in order if i in side],
            1,
            settings.embedding_dim,
        )
        changed[name] = np.concatenate([moved, w[name][:, fields:]], 1)
    return changed
