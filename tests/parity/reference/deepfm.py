"""DeepFM (Guo et al., IJCAI 2017), Equations 1 to 4, pair by pair."""

from parity.reference.common import field_vectors, first_order, mlp, pairs
from parity.reference.widedeep import permuted

from fieldwise import DeepFM

__all__ = ["CASES", "logit", "permuted"]

CASES = {
    "paper": DeepFM(embedding_dim=4, hidden=(7, 5), mlp_dropout=0.5),
    "bars": DeepFM(embedding_dim=3, hidden=(6, 5), mlp_dropout=0.0, batch_norm=True),
}


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    fm = first_order(layout, batch, w["first_order.embedding.weight"])
    fm = fm + sum((x[:, i] * x[:, j]).sum(1) for i, j in pairs(layout.num_fields))
    return fm + mlp(x.reshape(len(x), -1), w, "mlp.")[:, 0]
