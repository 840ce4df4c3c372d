"""AutoInt+ (Song et al., CIKM 2019, section 5.5): AutoInt's logit plus that of an MLP on the same vectors."""

from parity.reference import autoint
from parity.reference.common import blocks, field_vectors, mlp, relu, silu

from fieldwise import AutoIntPlus

SMALL = autoint.SMALL | {"hidden": (5, 3)}
ACTIVATIONS = {"relu": relu, "silu": silu}
CASES = {
    "paper": AutoIntPlus(**SMALL, attention_dropout=0.2, embedding_dropout=0.1, mlp_dropout=0.3),
    "authors": AutoIntPlus(**SMALL, variant="authors"),
    "fuxictr": AutoIntPlus(**SMALL, variant="fuxictr", batch_norm=True),
    "transformer": AutoIntPlus(**SMALL, variant="transformer"),
    "bars": AutoIntPlus(
        **SMALL,
        variant="fuxictr",
        scale=True,
        norm="before_relu",
        wide=True,
        batch_norm=True,
        mlp_dropout=0.1,
    ),
    "one-hidden-layer": AutoIntPlus(**(SMALL | {"hidden": (6,)})),
    "silu": AutoIntPlus(**SMALL, mlp_activation="silu", batch_norm=True),
}


def logit(settings, layout, batch, w):
    # The MLP reads the fields' vectors as they are, without the vectors of the fields' places.
    x = field_vectors(layout, batch, w["embedding.weight"])
    activation = ACTIVATIONS[settings.mlp_activation]
    deep = mlp(x.reshape(len(x), -1), w, "mlp.", activation=activation)
    return autoint.logit(settings, layout, batch, w) + deep[:, 0]


def permuted(settings, layout, order, w):
    """The MLP's first layer, too, reads the fields one after another."""
    first = "mlp.layers.0.0.weight"
    moved = {first: blocks(w[first], order, 1, settings.embedding_dim)}
    return autoint.permuted(settings, layout, order, w) | moved
