"""xDeepFM, the eXtreme Deep Factorization Machine (Lian et al., KDD 2018, arXiv 1803.05170).

Letters: B batch, F fields, D embedding size.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import CIN, FirstOrder, linear
from fieldwise.layers.activations import Activation
from fieldwise.layers.crosses import CINActivation
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import (
    SMALL_MLP,
    DataDefaults,
    EmbeddingSettings,
    OptionalSizes,
    Rate,
    Size,
    Sizes,
)

Variant = Literal["paper", "authors", "deepctr", "fuxictr"]


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """The differences between the implementations; the defaults are the paper's.

    Args:
        split_half: in each CIN layer but the last, half of the maps are passed to the next layer
            and the other half to the output; else all maps go to both.
        activation: of the maps.
        bias: every map has a bias.
        output_bias: the CIN's last unit has a bias besides the MLP's; only their sum has an effect.
    """

    split_half: bool = False
    activation: CINActivation = "identity"
    bias: bool = False
    output_bias: bool = False


PRESETS: dict[Variant, _Choices] = {
    "paper": _Choices(),
    "authors": _Choices(split_half=True, output_bias=True),
    "deepctr": _Choices(split_half=True, activation="relu", bias=True),
    "fuxictr": _Choices(bias=True, output_bias=True),
}


@register_model("xdeepfm")
@dataclass(frozen=True, kw_only=True)
class XDeepFM(EmbeddingSettings):
    """Settings of xDeepFM; sizes are the paper's best for Criteo.

    Args:
        variant: `paper`, `authors` (their code), `deepctr` (DeepCTR's) or `fuxictr` (the code of
            the BARS runs): what maps go where, their activation and biases
            (`docs/models/xdeepfm.md`).
        cin_layers: number of maps of each of the CIN's layers.
        hidden: sizes of the MLP's layers; none, `()`, for no MLP.
        wide: add the first-order sum to the logit. The paper's CIN alone is
            `hidden=(), wide=False`.
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).

    Errors:
        ConfigError: a setting out of range, or an odd number of maps that the variant halves;
            `build`: no field.

    >>> XDeepFM(cin_layers=(9, 4), variant="authors")
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: cin_layers[0] must be even in the variant authors, found 9
    """

    data_defaults = DataDefaults(settings={"embedding_dim": 16, "cin_layers": (32, 32)} | SMALL_MLP)

    variant: Variant = "paper"
    embedding_dim: Size = 10
    cin_layers: Sizes = (200, 200, 200)
    hidden: OptionalSizes = (400, 400)
    wide: bool = True
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.0
    batch_norm: bool = False

    def check(self) -> None:
        super().check()
        for i, size in enumerate(self.cin_layers[:-1]):
            if PRESETS[self.variant].split_half and size % 2:
                raise ConfigError(
                    f"cin_layers[{i}] must be even in the variant {self.variant}, found {size}"
                )

    def build(self, layout: Layout) -> "XDeepFMNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "multiplies fields")
        return XDeepFMNetwork(self, layout)


class XDeepFMNetwork(nn.Module):
    """`logit = sum_f w_f(x) + w_cin . CIN(x) + MLP(flatten(x))`, the MLP's last unit holding the bias (Equation 15).

    The CIN's layer k has maps of degree k + 1: `X^k_h = sum_ij W^kh_ij X^{k-1}_i * X^0_j`, whose
    sums over D are its output; see `CIN`.

    NOTE[DIFF]: without an MLP the CIN's last unit has a bias, which the paper's Equation 8 omits.

    NOTE[DIFF]: `authors` is their first code. Their later code (Microsoft's recommenders) also
    takes the products of a field with itself out of the first layer, and adds the unweighted sum of
    all maps to the logit; neither is offered.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: XDeepFM, layout: Layout) -> None:
        super().__init__()
        chosen = PRESETS[settings.variant]
        fields = layout.num_fields
        halves = chosen.split_half
        activation = chosen.activation
        cin = CIN(
            fields, settings.cin_layers, split_half=halves, activation=activation, bias=chosen.bias
        )
        mlp = settings.make_mlp(fields * settings.embedding_dim) if settings.hidden else None
        self.embedding = settings.make_embedding(layout)
        self.cin = cin
        self.head = linear(cin.outputs, 1, bias=mlp is None or chosen.output_bias)
        self.mlp = mlp
        self.first_order = FirstOrder(layout, bias=False) if settings.wide else None

    def forward(self, batch: Batch) -> Tensor:
        x_BFD = self.embedding(batch)
        logit_B: Tensor = self.head(self.cin(x_BFD)).squeeze(1)
        if self.mlp is not None:
            logit_B = logit_B + self.mlp(x_BFD.flatten(1)).squeeze(1)
        if self.first_order is not None:
            logit_B = logit_B + self.first_order(batch)
        return logit_B
