"""IntTower (Li et al., CIKM 2022), row by row, level by level, head by head."""

import numpy as np
from parity.reference.common import blocks, field_vectors, linear, mlp, relu, softmax

from fieldwise import IntTower

SMALL = {
    "embedding_dim": 4,
    "hidden": (6, 5, 4),
    "user_heads": 3,
    "item_heads": 2,
    "head_dim": 4,
    "dropout": 0.2,
}

NEEDS = "towers"
CASES = {
    "paper": IntTower(**SMALL),
    "one-level": IntTower(**(SMALL | {"hidden": (4,), "user_heads": 1, "item_heads": 4})),
    "two-levels": IntTower(**(SMALL | {"hidden": (5, 4), "user_heads": 2, "item_heads": 2})),
    "four-levels": IntTower(**(SMALL | {"hidden": (4, 6, 3, 5), "item_heads": 3})),
    "plain-layers": IntTower(**(SMALL | {"dropout": 0.0, "batch_norm": False})),
    "output-bias": IntTower(**SMALL, output_bias=True),
    "one-input": IntTower(**(SMALL | {"hidden": (5,)}), variant="authors"),
    "authors": IntTower(variant="authors", **SMALL),
    "raw-numbers": IntTower(**SMALL, dense_inputs="raw"),
    "raw-numbers-authors": IntTower(variant="authors", **SMALL, dense_inputs="raw", init_std=1e-4),
    "tanh": IntTower(**SMALL, activation="tanh"),
}


def sides(layout):
    """Positions of the fields of the user tower (user and context) and of the item tower."""
    item = [i for i, f in enumerate(layout.fields) if f.role == "item"]
    return [i for i in range(layout.num_fields) if i not in item], item


def inputs(settings, layout, side):
    """A side's fields with vectors, and those whose numbers are appended to them."""
    raw = [i for i in side if settings.dense_inputs == "raw" and layout.fields[i].kind == "value"]
    return [i for i in side if i not in raw], raw


def numbers(layout, batch, raw):
    """The fields' numbers [B, N] cell by cell, 0 in the row of missing ones."""
    singles = [i for i, f in enumerate(layout.fields) if f.kind != "bag"]
    values = layout.positions(kind="value")
    out = np.zeros((batch.size, len(raw)))
    for b in range(batch.size):
        for n, i in enumerate(raw):
            has_missing_row = layout.fields[i].rows > 1
            if (
                not has_missing_row
                or int(batch.ids[b, singles.index(i)]) != layout.fields[i].offset
            ):
                out[b, n] = float(batch.values[b, values.index(i)])
    return out


def tower(x, numbers, w, prefix, activation):
    """The tower's input, and the output of every layer."""
    k = softmax(linear(x.mean(2), w, f"{prefix}light_se.excite"))
    z = np.concatenate([(x + k[:, :, None] * x).reshape(len(x), -1), numbers], 1)
    return [z, *mlp(z, w, f"{prefix}mlp.", levels=True, activation=activation)]


def logit(settings, layout, batch, w):
    authors = settings.variant == "authors"
    x = field_vectors(layout, batch, w["embedding.weight"])
    towers = []
    for side, prefix in zip(sides(layout), ("user_tower.", "item_tower."), strict=True):
        embedded, raw = inputs(settings, layout, side)
        activation = {"relu": relu, "tanh": np.tanh}[settings.activation]
        towers.append(tower(x[:, embedded], numbers(layout, batch, raw), w, prefix, activation))
    user, item = towers
    heads = (-1, settings.item_heads, settings.head_dim)
    m_v = linear(item[-1], w, "block.item_projection").reshape(heads)
    out = np.zeros(len(x)) + w.get("bias", 0.0)
    for i in range(len(settings.hidden)):
        level = user[i] if authors else user[i + 1]
        m_u = linear(level, w, f"block.user_projections.{i}").reshape(
            -1, settings.user_heads, settings.head_dim
        )
        for b in range(len(x)):
            for hu in range(settings.user_heads):
                out[b] += max(m_u[b, hu] @ m_v[b, hv] for hv in range(settings.item_heads))
    return out


def permuted(settings, layout, order, w):
    """Each tower's Light-SE on both axes, its first layer, and what projects its input."""
    changed = {}
    for side, prefix in zip(sides(layout), ("user_tower.", "item_tower."), strict=True):
        moved = [side.index(i) for i in order if i in side]
        excite, bias = f"{prefix}light_se.excite.weight", f"{prefix}light_se.excite.bias"
        changed[excite] = blocks(blocks(w[excite], moved, 0), moved, 1)
        if bias in w:
            changed[bias] = blocks(w[bias], moved, 0)
        inputs = [f"{prefix}mlp.layers.0.0.weight"]
        if prefix == "user_tower." and settings.variant == "authors":
            inputs.append("block.user_projections.0.weight")
        for name in inputs:
            changed[name] = blocks(w[name], moved, 1, settings.embedding_dim)
    return changed
