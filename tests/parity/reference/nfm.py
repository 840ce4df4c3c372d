"""Neural Factorization Machine (He & Chua, SIGIR 2017), Equations 2 to 7 and 12, pair by pair."""

from parity.reference.common import batch_norm, field_vectors, first_order, mlp, pairs

from fieldwise import NFM

NEEDS = "pairs"
CASES = {
    "authors": NFM(embedding_dim=4, hidden=(6,), pooled_dropout=0.2, mlp_dropout=0.2),
    "bars": NFM(
        embedding_dim=3, hidden=(6, 5), pooled_dropout=0.0, mlp_dropout=0.1, batch_norm=False
    ),
    "nfm-0": NFM(embedding_dim=4, hidden=(), batch_norm=False),
    "nfm-0 normalized": NFM(embedding_dim=4, hidden=()),
}


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    z = sum(x[:, i] * x[:, j] for i, j in pairs(layout.num_fields))
    if settings.batch_norm:
        z = batch_norm(z, w, "pooled_norm")
    z = mlp(z, w, "mlp.")
    return (
        first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
        + z @ w["h"]
    )
