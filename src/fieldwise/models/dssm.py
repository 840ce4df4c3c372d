"""DSSM (Huang et al., CIKM 2013) as a two-tower recommender.

Letters: B batch, D embedding size, E size of a representation.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, sides
from fieldwise.models.twotower import Similarity, Tower, TowerSettings


@register_model("dssm")
@dataclass(frozen=True, kw_only=True)
class DSSM(TowerSettings):
    """Settings of DSSM: one tower for the user and context fields, one for the item fields; defaults as in the paper.

    Args:
        hidden: sizes of both towers' hidden layers.
        output_dim: E.
        activation: of the hidden units; `tanh` (paper) or `relu`.
        output_activation: whether the representation's units have it too (paper).
        similarity: `cosine` (paper), divided by a learned temperature, or `dot`.
        temperature: initial value of the learned temperature; ignored for `dot`.
        mlp_dropout: dropout rate of the towers' hidden units.
        batch_norm: BatchNorm after each of the towers' hidden linear layers.

    Errors:
        ConfigError: a setting out of range; `build`: no field for the user tower, or none for the
            item tower.

    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> DSSM(embedding_dim=4, hidden=(8,), output_dim=5).build(layout).item_tower.output
    Linear(in_features=8, out_features=5, bias=True)
    """

    data_defaults = DataDefaults(settings={"hidden": (128,), "output_dim": 32, "mlp_dropout": 0.2})

    def build(self, layout: Layout) -> "DSSMNetwork":
        """A network with fresh weights."""
        return DSSMNetwork(self, layout)


class DSSMNetwork(nn.Module):
    """`logit = cos(y_u, y_v) / temperature + b`, `y = tanh(W_3 tanh(W_2 tanh(W_1 x + b_1) + b_2) + b_3)` of each side.

    NOTE[DIFF]: the paper's x is a hashed text; here it is the flattened vectors of a side's fields.
    NOTE[DIFF]: the paper trains by the softmax over a clicked document and four others, with a
    smoothing factor set on held-out data; here each row has a label, and the factor (1 /
    temperature) and b are learned.

    Shape:
        forward: Batch of B rows -> [B]. `user`, `item` -> [B, E], unit vectors for `cosine`;
            `score`: both -> [B].
    """

    def __init__(self, settings: DSSM, layout: Layout) -> None:
        super().__init__()
        user_tower, item_tower = (Tower(positions, settings) for positions in sides(layout, "DSSM"))
        self.embedding = settings.make_embedding(layout)
        self.user_tower = user_tower
        self.item_tower = item_tower
        self.similarity = Similarity(settings.similarity, temperature=settings.temperature)

    def forward(self, batch: Batch) -> Tensor:
        x_BAD = self.embedding(batch)
        represent = self.similarity.represent
        return self.score(represent(self.user_tower(x_BAD)), represent(self.item_tower(x_BAD)))

    def user(self, batch: Batch) -> Tensor:
        return self.similarity.represent(self.user_tower(self.embedding(batch)))

    def item(self, batch: Batch) -> Tensor:
        return self.similarity.represent(self.item_tower(self.embedding(batch)))

    def score(self, user_BE: Tensor, item_BE: Tensor) -> Tensor:
        return self.similarity(user_BE, item_BE)

    def score_all(self, user_BE: Tensor, item_CE: Tensor) -> Tensor:
        return self.similarity.all(user_BE, item_CE)
