"""FinalMLP (Mao et al., AAAI 2023), head by head."""

import numpy as np
from parity.reference.common import blocks, field_vectors, linear, mlp, sigmoid

from fieldwise import FinalMLP

SMALL = {"embedding_dim": 4, "stream1_hidden": (6, 8), "stream2_hidden": (4,), "gate_hidden": (5,)}
CASES = {
    "gated": FinalMLP(
        **SMALL,
        heads=2,
        stream1_gate_fields=("f0",),
        stream1_dropout=0.2,
        stream2_dropout=0.1,
        batch_norm=True,
    ),
    "vectors": FinalMLP(**SMALL, heads=4),
    "fields": FinalMLP(**SMALL, stream1_gate_fields=("f2", "f0"), stream2_gate_fields=("f1", "f2")),
    "ungated": FinalMLP(**SMALL, heads=2, gates=False),
    "sum": FinalMLP(**SMALL, fusion="sum", stream2_gate_fields=("f2",)),
    "dual-mlp": FinalMLP(**SMALL, fusion="sum", gates=False, batch_norm=True),
}


def own_vectors(layout, batch, names, table):
    """The chosen fields' vectors from a table that holds their rows alone, one field after another."""
    by_name = {f.name: (i, f) for i, f in enumerate(layout.fields)}
    whole, start, done = np.zeros((layout.num_rows, table.shape[1])), 0, set()
    for _, f in (by_name[name] for name in names):
        if f.offset not in done:
            whole[f.offset : f.offset + f.rows] = table[start : start + f.rows]
            start += f.rows
            done.add(f.offset)
    assert start == len(table)
    x = field_vectors(layout, batch, whole)
    return np.stack([x[:, by_name[name][0]] for name in names], 1)


def gated(settings, layout, batch, w, k, x):
    if not settings.gates:
        return x
    names = getattr(settings, f"stream{k}_gate_fields")
    if names:
        c = own_vectors(layout, batch, names, w[f"gate{k}.fields.weight"]).reshape(len(x), -1)
    else:
        c = np.tile(w[f"gate{k}.vector"], (len(x), 1))
    return x * 2 * sigmoid(mlp(c, w, f"gate{k}.mlp."))


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    x = x.reshape(len(x), -1)
    o1 = mlp(gated(settings, layout, batch, w, 1, x), w, "stream1.")
    o2 = mlp(gated(settings, layout, batch, w, 2, x), w, "stream2.")
    out = (linear(o1, w, "fusion.w1") + linear(o2, w, "fusion.w2"))[:, 0]
    if settings.fusion == "bilinear":
        m, n = o1.shape[1] // settings.heads, o2.shape[1] // settings.heads
        for h in range(settings.heads):
            for b in range(len(x)):
                out[b] += o1[b, h * m : (h + 1) * m] @ w["fusion.W"][h] @ o2[b, h * n : (h + 1) * n]
    return out


def permuted(settings, layout, order, w):
    """The streams' inputs are fields, and so are the gates' outputs; what a gate reads stands by the fields' names."""
    size = settings.embedding_dim
    changed = {
        name: blocks(w[name], order, 1, size)
        for name in ("stream1.layers.0.0.weight", "stream2.layers.0.0.weight")
    }
    if settings.gates:
        for k in (1, 2):
            for part in ("weight", "bias"):
                name = f"gate{k}.mlp.output.{part}"
                changed[name] = blocks(w[name], order, 0, size)
    return changed
