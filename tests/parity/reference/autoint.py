"""AutoInt (Song et al., CIKM 2019), Equations 5 to 9, head by head and field by field, with the variants' choices.

The table of choices is written out once more here: a preset that changes must be changed in both
places.
"""

import numpy as np
from parity.reference.common import blocks, field_vectors, first_order, linear, relu, softmax

from fieldwise import AutoInt

CHOICES = (
    "relu_on_projections", "bias", "scale", "residual", "norm", "output_projection", "output_relu",
    "field_vectors", "norm_epsilon",
)  # fmt: skip
VARIANTS = {
    "paper": dict(
        zip(
            CHOICES,
            (False, False, False, "projected", "none", False, True, False, 1e-5),
            strict=True,
        )
    ),
    "authors": dict(
        zip(
            CHOICES,
            (True, True, True, "projected", "after_relu", False, True, False, 1e-8),
            strict=True,
        )
    ),
    "fuxictr": dict(
        zip(
            CHOICES,
            (False, False, False, "identity", "none", False, True, False, 1e-5),
            strict=True,
        )
    ),
    "transformer": dict(
        zip(
            CHOICES,
            (False, False, True, "identity", "before_relu", True, False, True, 1e-5),
            strict=True,
        )
    ),
}
SMALL = {"embedding_dim": 4, "layers": 2, "heads": 2, "attention_dim": 6}
CASES = {
    "paper": AutoInt(**SMALL, attention_dropout=0.3, embedding_dropout=0.2),
    "authors": AutoInt(**SMALL, variant="authors"),
    "fuxictr": AutoInt(**SMALL, variant="fuxictr"),
    "transformer": AutoInt(**(SMALL | {"attention_dim": 4}), variant="transformer"),
    "transformer-sizes-differ": AutoInt(**SMALL, variant="transformer", embedding_std=0.1),
    "bars": AutoInt(**SMALL, variant="fuxictr", scale=True, norm="before_relu", wide=True),
    "one-layer-one-head": AutoInt(embedding_dim=4, layers=1, heads=1, attention_dim=4),
    "normed-authors": AutoInt(**SMALL, variant="authors", scale=False, norm="before_relu"),
    "tutorial": AutoInt(
        **(SMALL | {"attention_dim": 4}), variant="transformer", bias=True, position_std=1.0
    ),
    "tutorial-sizes-differ": AutoInt(**SMALL, variant="transformer", bias=True),
    "no-residual": AutoInt(**SMALL, residual="none", norm="before_relu"),
    "no-residual-transformer": AutoInt(**SMALL, variant="transformer", residual="none"),
    "biased": AutoInt(**SMALL, bias=True, residual="identity", wide=True),
}


def chosen(settings):
    """What the settings mean: the variant's choices, and over them those that are given."""
    given = {name: getattr(settings, name) for name in ("scale", "bias", "residual", "norm")}
    return VARIANTS[settings.variant] | {
        name: value for name, value in given.items() if value is not None
    }


def layer_norm(x, w, name, epsilon):
    """LayerNorm over the last axis."""
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def interacting_layer(x, w, prefix, settings, choice):
    """One row's vectors [F, D] to [F, A]."""
    heads, size = settings.heads, settings.attention_dim // settings.heads
    differs = x.shape[1] != settings.attention_dim
    projects = choice["residual"] == "projected" or (choice["residual"] == "identity" and differs)
    maps = np.split(linear(x, w, f"{prefix}projection"), 4 if projects else 3, axis=1)
    assert (f"{prefix}projection.bias" in w) == choice["bias"]
    if choice["relu_on_projections"]:
        maps = [relu(m) for m in maps]
    joined = np.zeros((len(x), settings.attention_dim))
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        query, key, value = (m[:, part] for m in maps[:3])
        for m in range(len(x)):
            scores = np.array([query[m] @ key[k] for k in range(len(x))])
            a = softmax(scores / np.sqrt(size) if choice["scale"] else scores)
            joined[m, part] = sum(a[k] * value[k] for k in range(len(x)))
    if choice["output_projection"]:
        joined = linear(joined, w, f"{prefix}output")
    if choice["residual"] != "none":
        joined = joined + (maps[3] if projects else x)
    if choice["norm"] == "before_relu":
        joined = layer_norm(joined, w, f"{prefix}norm", choice["norm_epsilon"])
    if choice["output_relu"]:
        joined = relu(joined)
    return (
        layer_norm(joined, w, f"{prefix}norm", choice["norm_epsilon"])
        if choice["norm"] == "after_relu"
        else joined
    )


def logit(settings, layout, batch, w):
    choice, out = chosen(settings), []
    for x in field_vectors(layout, batch, w["embedding.weight"]):
        y = x + w["field_vectors"] if choice["field_vectors"] else x
        for i in range(settings.layers):
            y = interacting_layer(y, w, f"layers.{i}.", settings, choice)
        out.append(w["head.weight"][0] @ y.reshape(-1) + w["head.bias"][0])
    wide = first_order(layout, batch, w["first_order.embedding.weight"]) if settings.wide else 0.0
    return np.array(out) + wide


def permuted(settings, layout, order, w):
    """The last unit reads the fields one after another, and a field's vector belongs to it; the layers do not care."""
    moved = {"head.weight": blocks(w["head.weight"], order, 1, settings.attention_dim)}
    if chosen(settings)["field_vectors"]:
        moved["field_vectors"] = blocks(w["field_vectors"], order, 0)
    return moved
