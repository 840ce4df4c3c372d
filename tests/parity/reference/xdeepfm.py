"""xDeepFM (Lian et al., KDD 2018), map by map and pair by pair."""

import numpy as np
from parity.reference.common import blocks, field_vectors, first_order, linear, mlp, relu

from fieldwise import XDeepFM

SMALL = {"embedding_dim": 3, "hidden": (5,)}
CASES = {
    "paper": XDeepFM(embedding_dim=4, cin_layers=(4, 3), hidden=(8,), mlp_dropout=0.2),
    "authors": XDeepFM(**SMALL, cin_layers=(6, 4, 3), variant="authors"),
    "deepctr": XDeepFM(**SMALL, cin_layers=(6, 4), variant="deepctr", batch_norm=True),
    "fuxictr": XDeepFM(**SMALL, cin_layers=(4, 3), variant="fuxictr"),
    "one-layer": XDeepFM(**SMALL, cin_layers=(3,), variant="deepctr"),
    "cin": XDeepFM(embedding_dim=3, cin_layers=(4, 4), hidden=(), wide=False),
    "cin-wide": XDeepFM(embedding_dim=3, cin_layers=(4,), hidden=(), variant="fuxictr"),
}
SPLITS, RELU = ("authors", "deepctr"), ("deepctr",)


def cin(settings, x, w):
    """The sums of the maps of all layers for one row x [F, D] (Equations 6 and 7)."""
    split, act = settings.variant in SPLITS, settings.variant in RELU
    maps, out = x, []
    for k, size in enumerate(settings.cin_layers):
        weight, bias = w[f"cin.layers.{k}.weight"], w.get(f"cin.layers.{k}.bias", np.zeros(size))
        new = np.zeros((size, x.shape[1])) + bias[:, None]
        for h in range(size):
            for i in range(len(maps)):
                for j in range(len(x)):
                    new[h] += weight[j, i, h] * maps[i] * x[j]
        new = relu(new) if act else new
        if split and k < len(settings.cin_layers) - 1:
            maps, leaving = new[: size // 2], new[size // 2 :]
        else:
            maps = leaving = new
        out += [m.sum() for m in leaving]
    return out


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    out = linear(np.array([cin(settings, row, w) for row in x]), w, "head")[:, 0]
    if settings.hidden:
        out = out + mlp(x.reshape(len(x), -1), w, "mlp.")[:, 0]
    if settings.wide:
        out = out + first_order(layout, batch, w["first_order.embedding.weight"])
    return out


def permuted(settings, layout, order, w):
    """Every layer has an axis of the fields, and the first layer's maps are the fields as well."""
    moved = {}
    for k in range(len(settings.cin_layers)):
        moved[f"cin.layers.{k}.weight"] = blocks(w[f"cin.layers.{k}.weight"], order, 0)
    moved["cin.layers.0.weight"] = blocks(moved["cin.layers.0.weight"], order, 1)
    if settings.hidden:
        moved["mlp.layers.0.0.weight"] = blocks(
            w["mlp.layers.0.0.weight"], order, 1, settings.embedding_dim
        )
    return moved
