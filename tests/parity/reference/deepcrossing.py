"""Deep Crossing (Shan et al., KDD 2016): embedding, stacking, residual units, scoring."""

from parity.reference.common import batch_norm, blocks, field_vectors, linear, relu

from fieldwise import DeepCrossing

CASES = {
    "dropout": DeepCrossing(embedding_dim=4, hidden=(6, 5), unit_dropout=0.2),
    "authors": DeepCrossing(embedding_dim=3, hidden=(7, 6, 5)),
    "bars": DeepCrossing(embedding_dim=3, hidden=(6, 6), embedding_relu=False, batch_norm=True),
}


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    if settings.embedding_relu:
        x = relu(x + w["embedding_bias"])
    x = x.reshape(len(x), -1)
    for i in range(len(settings.hidden)):
        x = x + linear(relu(linear(x, w, f"units.{i}.inner")), w, f"units.{i}.outer")
        if settings.batch_norm:
            x = batch_norm(x, w, f"units.{i}.norm")
        x = relu(x)
    return linear(x, w, "head")[:, 0]


def permuted(settings, layout, order, w):
    """Every unit's input and output hold the fields side by side."""
    changed = {"head.weight": blocks(w["head.weight"], order, 1, settings.embedding_dim)}
    if settings.embedding_relu:
        changed["embedding_bias"] = blocks(w["embedding_bias"], order, 0)
    for name, array in w.items():
        if name.endswith(".inner.weight"):
            changed[name] = blocks(array, order, 1, settings.embedding_dim)
        elif ".outer." in name or (".norm." in name and array.ndim):
            changed[name] = blocks(array, order, 0, settings.embedding_dim)
    return changed
