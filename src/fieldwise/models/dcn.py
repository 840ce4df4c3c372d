"""Deep & Cross Network (Wang et al., ADKDD 2017, arXiv 1708.05123).

Letters: B batch, F fields, D embedding size, N = F * D.
"""

from dataclasses import dataclass

from fieldwise.layers import CrossVector
from fieldwise.layers.activations import Activation
from fieldwise.layout import Layout
from fieldwise.models.dcnv2 import DCNv2Network
from fieldwise.models.registry import register_model
from fieldwise.models.settings import (
    SMALL_MLP,
    DataDefaults,
    EmbeddingSettings,
    OptionalSizes,
    Rate,
    Size,
)


@register_model("dcn")
@dataclass(frozen=True, kw_only=True)
class DCN(EmbeddingSettings):
    """Settings of DCN; the defaults are the paper's best for Criteo.

    Args:
        embedding_dim: D. In the paper it depends on the field; see the network.
        layers: number of cross layers.
        hidden: sizes of the MLP's layers; none, `()`, for the cross network alone (CrossNet).
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers.

    >>> layout = Layout.of_sizes([3, 4])
    >>> sum(p.numel() for p in DCN(embedding_dim=10, layers=2, hidden=()).build(layout).parameters())
    171
    """

    data_defaults = DataDefaults(
        settings={"embedding_dim": 16, "layers": 2} | SMALL_MLP | {"batch_norm": False}
    )

    layers: Size = 6
    hidden: OptionalSizes = (1024, 1024)
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.0
    batch_norm: bool = True

    def build(self, layout: Layout) -> "DCNNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "crosses fields")
        return DCNNetwork(self, layout, CrossVector, "parallel", self.layers, self.hidden)


class DCNNetwork(DCNv2Network):
    """`logit = w . [x_L, MLP(x_0)] + b`, where x_L is the cross of x_0 (Equations 2 to 5).

    x_0 is all fields' vectors concatenated.

    Of L cross layers `x_{l+1} = x_0 (x_l . w_l) + b_l + x_l`. So x_L minus the sum of all b_l is
    x_0 times one number per row, a polynomial of degree L in x_0; DCN V2 lifts this limit.

    NOTE[DIFF]: in the paper every field has its own size, 6 times the fourth root of its number of
    categories, and numbers enter x_0 directly. Here all fields have size D, and a number is its
    value times a learned vector.

    NOTE[DIFF]: the last unit has a bias, which the paper's Equation 5 omits and every
    implementation has.

    Shape:
        forward: Batch of B rows -> [B].
    """
