"""xDeepFM, the eXtreme Deep Factorization Machine (Lian et al., KDD 2018, arXiv 1803.05170).

Letters: B batch, F fields, D embedding size.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import CIN, MLP, FieldEmbedding, FirstOrder, linear
from fieldwise.layers.cin import CINActivation
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import (
    check_choice,
    check_fields,
    check_shares,
    check_sizes,
)
from fieldwise.models.settings import EmbeddingSettings
from fieldwise.models.variants import choices

__all__ = ["XDeepFM", "XDeepFMNetwork"]

Variant = Literal["paper", "authors", "deepctr", "fuxictr"]


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """The differences between the implementations; the defaults are the paper's."""

    split_half: bool = False
    cin_activation: CINActivation = "identity"
    cin_bias: bool = False
    cin_output_bias: bool = False


PRESETS: dict[Variant, _Choices] = {
    "paper": _Choices(),
    "authors": _Choices(split_half=True, cin_output_bias=True),
    "deepctr": _Choices(split_half=True, cin_activation="relu", cin_bias=True),
    "fuxictr": _Choices(cin_bias=True, cin_output_bias=True),
}


@dataclass(frozen=True, kw_only=True)
class XDeepFM(EmbeddingSettings):
    """Settings of xDeepFM; sizes are the paper's best for Criteo. A setting that is None takes the variant's value.

    Args:
        variant: `paper`, `authors` (their code), `deepctr` (DeepCTR's) or `fuxictr` (the code of the BARS runs).
        embedding_dim: D.
        cin_layers: number of maps of each of the CIN's layers.
        hidden: sizes of the MLP's layers; none, `()`, for no MLP.
        wide: add the first-order sum to the logit. The paper's CIN alone is `hidden=(), wide=False`.
        split_half: in each CIN layer but the last, half of the maps are passed to the next layer and the other half to
            the output (`authors`, `deepctr`); else all maps go to both.
        cin_activation: of the maps: `identity`, or `relu` (`deepctr`).
        cin_bias: every map has a bias (`deepctr`, `fuxictr`).
        cin_output_bias: the CIN's last unit has a bias besides the MLP's (`authors`, `fuxictr`); only their sum has an
            effect. Without an MLP it always has a bias.
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).
        embedding_std: standard deviation of the embeddings' initial values.

    Errors:
        ConfigError: a setting out of range, or an odd number of maps that `split_half` halves; `build`: no field.

    >>> XDeepFM(cin_layers=(9, 4), variant="authors")
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: cin_layers[0] must be even where split_half is on, found 9
    """

    variant: Variant = "paper"
    embedding_dim: int = 10
    cin_layers: tuple[int, ...] = (200, 200, 200)
    hidden: tuple[int, ...] = (400, 400)
    wide: bool = True
    split_half: bool | None = None
    cin_activation: CINActivation | None = None
    cin_bias: bool | None = None
    cin_output_bias: bool | None = None
    mlp_dropout: float = 0.0
    batch_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("variant", self.variant, Variant)
        check_sizes("cin_layers", self.cin_layers)
        if self.hidden != ():
            check_sizes("hidden", self.hidden)
        chosen = choices(self, PRESETS[self.variant])
        check_choice("cin_activation", chosen.cin_activation, CINActivation)
        for i, size in enumerate(self.cin_layers[:-1]):
            if chosen.split_half and size % 2:
                raise ConfigError(f"cin_layers[{i}] must be even where split_half is on, found {size}")
        check_shares(mlp_dropout=self.mlp_dropout)

    def build(self, layout: Layout) -> "XDeepFMNetwork":
        """A network with fresh weights."""
        check_fields(layout, 1, "XDeepFM", "multiplies fields")
        chosen, inputs = choices(self, PRESETS[self.variant]), layout.num_fields * self.embedding_dim
        cin = CIN(
            layout.num_fields,
            self.cin_layers,
            split_half=chosen.split_half,
            activation=chosen.cin_activation,
            bias=chosen.cin_bias,
        )
        mlp = None
        if self.hidden:
            mlp = MLP(inputs, self.hidden, outputs=1, dropout=self.mlp_dropout, batch_norm=self.batch_norm)
        return XDeepFMNetwork(
            embedding=self.make_embedding(layout),
            cin=cin,
            head=linear(cin.outputs, 1, bias=mlp is None or chosen.cin_output_bias),
            mlp=mlp,
            first_order=FirstOrder(layout, bias=False) if self.wide else None,
        )


class XDeepFMNetwork(nn.Module):
    """`logit = sum_f w_f(x) + w_cin . CIN(x) + MLP(flatten(x))`, the MLP's last unit holding the bias (Equation 15).

    The CIN's layer k has maps of degree k + 1: `X^k_h = sum_ij W^kh_ij X^{k-1}_i * X^0_j`, whose sums over D are its
    output; see `CIN`.

    NOTE[DIFF]: without an MLP the CIN's last unit has a bias, which the paper's Equation 8 omits.

    NOTE[DIFF]: `authors` is their first code. Their later code (Microsoft's recommenders) also takes the products of a
    field with itself out of the first layer, and adds the unweighted sum of all maps to the logit; neither is offered.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(
        self,
        *,
        embedding: FieldEmbedding,
        cin: CIN,
        head: nn.Linear,
        mlp: MLP | None = None,
        first_order: FirstOrder | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.cin, self.head, self.mlp, self.first_order = embedding, cin, head, mlp, first_order

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
        x_BFD = self.embedding(batch)
        logit_B: Tensor = self.head(self.cin(x_BFD)).squeeze(1)
        if self.mlp is not None:
            logit_B = logit_B + self.mlp(x_BFD.flatten(1)).squeeze(1)
        if self.first_order is not None:
            logit_B = logit_B + self.first_order(batch)
        return logit_B
