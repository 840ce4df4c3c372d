"""DeepFM (Guo et al., IJCAI 2017, arXiv 1703.04247): an FM and an MLP on the same embeddings.

Letters: B batch, F fields, D embedding size.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from fieldwise.layers import FirstOrder
from fieldwise.layers.activations import Activation
from fieldwise.layers.candidates import Part, first_order_candidates, mlp_candidates
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import SMALL_MLP, DataDefaults, EmbeddingSettings, Rate, Size, Sizes
from fieldwise.ops import fm_second_order
from fieldwise.ops.fm import fm_second_order_candidates


@register_model("deepfm")
@dataclass(frozen=True, kw_only=True)
class DeepFM(EmbeddingSettings):
    """Settings of DeepFM; the defaults are the paper's for Criteo.

    Args:
        embedding_dim: D, shared by the FM and the MLP's input.
        hidden: sizes of the MLP's layers.
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).

    >>> sum(p.numel() for p in DeepFM(embedding_dim=10, hidden=(8,)).build(Layout.of_sizes([3, 4])).parameters())
    254
    """

    data_defaults = DataDefaults(settings=SMALL_MLP)

    embedding_dim: Size = 10
    hidden: Sizes = (400, 400, 400)
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.5
    batch_norm: bool = False

    def build(self, layout: Layout) -> "DeepFMNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "reads fields")
        return DeepFMNetwork(self, layout)


class DeepFMNetwork(nn.Module):
    """`logit = sum_f w_f(x) + sum_{i<j} <x_i, x_j> + MLP(flatten(x))`, x_f field f's vector (times its value).

    Equations 1 to 4 of the paper. Its Equation 2 omits the constant, which here is the bias of the
    MLP's last unit.

    NOTE[DIFF]: the paper writes the MLP's last unit with an activation, `y_DNN = sigma(W a + b)`,
    and takes the sigmoid of `y_FM + y_DNN` again. Read as a sigmoid, the MLP could only add a
    number between 0 and 1 to the logit; here its last unit is linear, as in all known
    implementations.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: DeepFM, layout: Layout) -> None:
        super().__init__()
        self.embedding = settings.make_embedding(layout)
        self.first_order = FirstOrder(layout, bias=False)
        self.mlp = settings.make_mlp(layout.num_fields * settings.embedding_dim)

    def forward(self, batch: Batch) -> Tensor:
        x_BFD = self.embedding(batch)
        deep_B = self.mlp(x_BFD.flatten(1)).squeeze(1)
        return self.first_order(batch) + fm_second_order(x_BFD) + deep_B

    def score_candidates(self, context: Part, candidates: Part) -> Tensor:
        """Logits [N]; the context's sums and its part of the MLP's first layer are computed once."""
        x_CD = context.vectors(self.embedding)[0]
        x_NID = candidates.vectors(self.embedding)
        deep_N = mlp_candidates(self.mlp, x_CD, x_NID, context, candidates).squeeze(1)
        first_N = first_order_candidates(self.first_order, context, candidates)
        return first_N + fm_second_order_candidates(x_CD, x_NID) + deep_N
