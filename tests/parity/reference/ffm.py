"""Field-aware Factorization Machine (Juan et al., RecSys 2016), pair by pair.

A field's vectors stand in its rows by the fields that they face: all but the field that owns the
rows.
"""

import numpy as np
from parity.reference.common import field_vectors, first_order, pairs

from fieldwise import FFM

NEEDS = "pairs"
CASES = {"first order": FFM(embedding_dim=4, first_order=True), "plain": FFM(embedding_dim=3)}


def owner(layout, i):
    """The field whose rows field i uses."""
    names = [f.name for f in layout.fields]
    return names.index(layout.fields[i].shares or names[i])


def faced(layout, i):
    """The fields that the vectors in field i's rows face, in their order."""
    return [f for f in range(layout.num_fields) if f != owner(layout, i)]


def toward(layout, x, i, j):
    """Field i's vector toward field j [B, D]; a field that shares j's rows finds there the one toward itself."""
    blocks = dict(
        zip(faced(layout, i), np.split(x[:, i], layout.num_fields - 1, axis=1), strict=True)
    )
    return blocks[j] if j in blocks else blocks[i]


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    out = np.zeros(len(x))
    if settings.first_order:
        out = first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
    return out + sum(
        (toward(layout, x, i, j) * toward(layout, x, j, i)).sum(1)
        for i, j in pairs(layout.num_fields)
    )


def permuted(settings, layout, order, w):
    """Within every row the vectors follow the fields that they face."""
    table, dim = w["embedding.weight"], settings.embedding_dim
    moved = table.copy()
    for i, field in enumerate(layout.fields):
        if field.shares is None:
            rows = slice(field.offset, field.offset + field.rows)
            places = [faced(layout, i).index(f) for f in order if f != i]
            moved[rows] = np.concatenate(
                [table[rows, p * dim : (p + 1) * dim] for p in places], axis=1
            )
    return {"embedding.weight": moved}
