"""DeepFM (Guo et al., IJCAI 2017), Equations 1 to 4, pair by pair."""

from parity.reference.common import blocks, field_vectors, first_order, mlp, pairs

from fieldwise.models import DeepFM

CASES = {
    "paper": DeepFM(embedding_dim=4, hidden=(7, 5), mlp_dropout=0.5),
    "bars": DeepFM(embedding_dim=3, hidden=(6, 5), mlp_dropout=0.0, batch_norm=True),
}


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    fm = first_order(layout, batch, w["first_order.embedding.weight"])
    fm = fm + sum((x[:, i] * x[:, j]).sum(1) for i, j in pairs(layout.num_fields))
    return fm + mlp(x.reshape(len(x), -1), w, "mlp.")[:, 0]


def permuted(settings, layout, order, w):
    """The MLP's first layer reads the fields side by side."""
    name = "mlp.layers.0.0.weight"
    return {name: blocks(w[name], order, 1, settings.embedding_dim)}
