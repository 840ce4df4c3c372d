"""Wide & Deep (Cheng et al., DLRS 2016), Equations 1 to 3.

Crosses name fields that only some of the laboratory's layouts have, so
`tests/models/test_widedeep.py` tests them.
"""

import numpy as np
from parity.reference.common import blocks, field_vectors, first_order, mlp

from fieldwise import WideDeep

CASES = {
    "dropout": WideDeep(embedding_dim=4, hidden=(7, 5), mlp_dropout=0.2),
    "paper": WideDeep(embedding_dim=3, hidden=(6, 5, 4)),
    "bars": WideDeep(embedding_dim=3, hidden=(6, 5), batch_norm=True),
}


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    wide = first_order(layout, batch, w["first_order.embedding.weight"])
    if settings.crosses:
        wide = wide + crossed(settings, layout, batch, w["crosses.weight"][:, 0])
    return wide + mlp(x.reshape(len(x), -1), w, "mlp.")[:, 0]


def crossed(settings, layout, batch, weight):
    """For every cross the weights lie as a matrix, categories of its first field by those of its second."""
    singles = [f for f in layout.fields if f.kind != "bag"]
    out, used = np.zeros(batch.ids.shape[0]), 0
    for names in settings.crosses:
        (a, column_a), (b, column_b) = [
            (f, c) for n in names for c, f in enumerate(singles) if f.name == n
        ]
        matrix = weight[used : used + a.rows * b.rows].reshape(a.rows, b.rows)
        used += matrix.size
        for row in range(len(out)):
            out[row] += matrix[
                int(batch.ids[row, column_a]) - a.offset, int(batch.ids[row, column_b]) - b.offset
            ]
    assert used == weight.size
    return out


def permuted(settings, layout, order, w):
    """The MLP's first layer reads the fields side by side."""
    name = "mlp.layers.0.0.weight"
    return {name: blocks(w[name], order, 1, settings.embedding_dim)}
