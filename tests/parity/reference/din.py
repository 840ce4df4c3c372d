"""Deep Interest Network (Zhou et al., KDD 2018), value by value of every history."""

import numpy as np
from parity.reference.common import (
    batch_norm,
    blocks,
    field_vectors,
    linear,
    relu,
    sigmoid,
    softmax,
)

from fieldwise import DIN

NEEDS = "a history"
LAYOUTS = ("history", "histories")
SMALL = {"embedding_dim": 4, "attention_hidden": (5,), "hidden": (6, 5)}
CASES = {
    "plain": DIN(**SMALL, attention_dropout=0.2, mlp_dropout=0.2),
    "product": DIN(
        **SMALL, attention_inputs="product", activation="relu", attention_activation="relu"
    ),
    "difference": DIN(**SMALL, attention_inputs="difference"),
    "dice": DIN(**SMALL, attention_activation="dice", activation="dice"),
    "softmax": DIN(**SMALL, softmax=True, batch_norm=True, activation="sigmoid"),
    "authors": DIN(variant="authors", embedding_dim=4),
    "authors-2020": DIN(variant="authors_2020", embedding_dim=4),
    "fuxictr": DIN(
        variant="fuxictr", embedding_dim=4, attention_hidden=(6, 4), hidden=(7,), activation="dice"
    ),
}
AUTHORS = {
    "attention_inputs": "difference_product",
    "attention_hidden": (80, 40),
    "softmax": True,
    "scale": True,
}
PRESETS = {
    "paper": {"attention_inputs": "outer", "softmax": False, "scale": False},
    "authors": AUTHORS
    | {"attention_activation": "sigmoid", "hidden": (80, 40), "activation": "sigmoid"},
    "authors_2020": AUTHORS
    | {
        "attention_activation": "sigmoid",
        "hidden": (80, 40),
        "activation": "sigmoid",
        "interest_product": True,
    },
    "fuxictr": {
        "attention_inputs": "difference_product",
        "attention_activation": "dice",
        "softmax": False,
    },
}


def choice(settings, name, default=None):
    given = getattr(settings, name, None)
    return PRESETS[settings.variant].get(name, default) if given is None else given


def activation(name, x, w, prefix):
    if name == "prelu":
        return np.where(x > 0, x, w[f"{prefix}.weight"] * x)
    if name == "dice":
        p = sigmoid((x - w[f"{prefix}.running_mean"]) / np.sqrt(w[f"{prefix}.running_var"] + 1e-8))
        return p * x + (1 - p) * w[f"{prefix}.alpha"] * x
    return relu(x) if name == "relu" else sigmoid(x)


def unit(settings, h, c, w, prefix):
    """The weight of one value h for the candidate c, before any softmax."""
    joined = {
        "outer": [h, np.outer(h, c).ravel(), c],
        "product": [h, h * c, c],
        "difference": [h, h - c, c],
        "difference_product": [c, h, c - h, c * h],
    }[choice(settings, "attention_inputs")]
    x = np.concatenate(joined)
    for i in range(len(choice(settings, "attention_hidden"))):
        x = linear(x, w, f"{prefix}.layers.{i}.0")
        x = activation(
            choice(settings, "attention_activation", "prelu"), x, w, f"{prefix}.layers.{i}.1"
        )
    x = linear(x, w, f"{prefix}.output")[0]
    return x / np.sqrt(settings.embedding_dim) if choice(settings, "scale") else x


def histories(layout):
    return [f for f in layout.fields if f.kind == "bag" and f.ordered and f.shares]


def logit(settings, layout, batch, w):
    table = w["embedding.weight"]
    x = field_vectors(layout, batch, table)
    names = [f.name for f in layout.fields]
    bags = [f.name for f in layout.fields if f.kind == "bag"]
    for k, f in enumerate(histories(layout)):
        for b in range(len(x)):
            here = batch.bag_segments.numpy() == b * len(bags) + bags.index(f.name)
            values, c = table[batch.bag_ids.numpy()[here]], x[b, names.index(f.shares)].copy()
            a = np.array([unit(settings, h, c, w, f"units.{k}") for h in values])
            if choice(settings, "softmax") and len(a):
                a = softmax(a)
            x[b, names.index(f.name)] = sum(
                (weight * h for weight, h in zip(a, values, strict=True)), np.zeros(len(c))
            )
    z = x.reshape(len(x), -1)
    if choice(settings, "interest_product"):
        products = [
            x[:, names.index(f.name)] * x[:, names.index(f.shares)] for f in histories(layout)
        ]
        z = np.concatenate([z, *products], axis=1)
    depth = len(choice(settings, "hidden", (200, 80)))
    for i in range(depth):
        z, at = linear(z, w, f"mlp.{i}.0"), 1
        if settings.batch_norm:
            z, at = batch_norm(z, w, f"mlp.{i}.1"), 2
        z = activation(choice(settings, "activation", "prelu"), z, w, f"mlp.{i}.{at}")
    return linear(z, w, f"mlp.{depth}")[:, 0]


def permuted(settings, layout, order, w):
    """The MLP's first layer reads the fields one after another; units stand in the order of their histories."""
    old = [f.name for f in histories(layout)]
    new = [layout.fields[i].name for i in order if layout.fields[i].name in old]
    products = (
        [len(order) + old.index(name) for name in new]
        if choice(settings, "interest_product")
        else []
    )
    moved = {
        "mlp.0.0.weight": blocks(
            w["mlp.0.0.weight"], [*order, *products], 1, settings.embedding_dim
        )
    }
    for k, name in enumerate(new):
        start = f"units.{old.index(name)}."
        moved |= {
            f"units.{k}.{n.removeprefix(start)}": a for n, a in w.items() if n.startswith(start)
        }
    return moved
