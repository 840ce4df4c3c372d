"""DAT (Yu et al., DLP-KDD 2021): DSSM's towers with one more vector each, that of the row's user or item."""

import numpy as np
from parity.reference import dssm
from parity.reference.common import field_vectors
from parity.reference.inttower import sides

from fieldwise import DAT

NEEDS = "towers"
# the others have no categorical field of role user, or none of role item
LAYOUTS = ("categorical", "history")

SMALL = {"embedding_dim": 4, "hidden": (7, 6), "output_dim": 5, "mlp_dropout": 0.2}

CASES = {
    "default": DAT(**SMALL, user_id="f0", item_id="f1"),
    "first-fields": DAT(**SMALL),
    "paper": DAT(**dssm.WIDE, output_activation=True),
    "dot": DAT(**SMALL, similarity="dot"),
    "tanh": DAT(**SMALL, activation="tanh", output_activation=True),
    "normalized": DAT(**SMALL, batch_norm=True),
    "category": DAT(**SMALL, category="f1", category_weight=0.5),
}


def augmented(layout, batch, w, side, name):
    """The rows of the side's table that the named field's ids point at; the first categorical field where unnamed."""
    singles = [f for f in layout.fields if f.kind != "bag"]
    fields = [f for f in singles if f.kind == "id" and f.role == side and name in (None, f.name)]
    ids = batch.ids[:, singles.index(fields[0])].numpy()
    return np.stack([w[f"{side}_augmented.weight"][i - fields[0].offset] for i in ids])


def logit(settings, layout, batch, w):
    x = field_vectors(layout, batch, w["embedding.weight"])
    outputs = []
    for positions, side, name in zip(
        sides(layout), ("user", "item"), (settings.user_id, settings.item_id), strict=True
    ):
        z = np.concatenate(
            [x[:, positions].reshape(len(x), -1), augmented(layout, batch, w, side, name)], 1
        )
        outputs.append(dssm.tower(z, w, f"{side}_tower.", settings))
    return dssm.similarity(*outputs, w, settings)


def permuted(settings, layout, order, w):
    """As DSSM's; the vector that is joined stands last."""
    return dssm.permuted(settings, layout, order, w, joined=settings.output_dim)
