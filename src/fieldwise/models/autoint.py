"""AutoInt and AutoInt+ (Song et al., CIKM 2019, arXiv 1810.11921), with the differences between implementations.

Letters: B batch, F fields, D embedding size, H heads, A total attention size of all heads.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.layers import MLP, FieldEmbedding, FirstOrder, InteractingLayer, linear
from fieldwise.layers.interacting import Norm, Residual
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import (
    check_at_least,
    check_choice,
    check_fields,
    check_positive,
    check_shares,
    check_sizes,
)
from fieldwise.models.settings import EmbeddingSettings
from fieldwise.models.variants import choices

__all__ = ["AutoInt", "AutoIntNetwork", "AutoIntPlus"]

Variant = Literal["paper", "authors", "fuxictr", "transformer"]


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """The differences between the implementations; the defaults are the paper's."""

    relu_on_projections: bool = False
    projection_bias: bool = False
    scale: bool = False
    residual: Residual = "projected"
    norm: Norm = "none"
    norm_epsilon: float = 1e-5
    output_projection: bool = False
    output_relu: bool = True
    field_vectors: bool = False


PRESETS: dict[Variant, _Choices] = {
    "paper": _Choices(),
    "authors": _Choices(
        relu_on_projections=True, projection_bias=True, scale=True, norm="after_relu", norm_epsilon=1e-8
    ),
    # In FuxiCTR scale and norm are options, both off by default; its norm is `before_relu`.
    "fuxictr": _Choices(residual="where_sizes_differ"),
    # NOTE[DIFF]: a transformer's residual is its input, which requires attention_dim == embedding_dim. If they differ,
    # the first layer's residual is projected here.
    "transformer": _Choices(
        scale=True,
        residual="where_sizes_differ",
        norm="before_relu",
        output_projection=True,
        output_relu=False,
        field_vectors=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class _Interacting(EmbeddingSettings):
    """Base class of AutoInt's and AutoInt+'s settings (abstract)."""

    variant: Variant = "paper"
    layers: int = 3
    heads: int = 2
    attention_dim: int = 64
    wide: bool = False
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    relu_on_projections: bool | None = None
    projection_bias: bool | None = None
    scale: bool | None = None
    residual: Residual | None = None
    norm: Norm | None = None
    norm_epsilon: float | None = None
    output_projection: bool | None = None
    output_relu: bool | None = None
    field_vectors: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("variant", self.variant, Variant)
        check_at_least(1, attention_dim=self.attention_dim, layers=self.layers, heads=self.heads)
        if self.attention_dim % self.heads:
            found = f"attention_dim {self.attention_dim} and heads {self.heads}"
            raise ConfigError(f"attention_dim must be divisible by heads, found {found}")
        check_shares(embedding_dropout=self.embedding_dropout, attention_dropout=self.attention_dropout)
        chosen = self._choices()
        check_choice("residual", chosen.residual, Residual)
        check_choice("norm", chosen.norm, Norm)
        check_positive(norm_epsilon=chosen.norm_epsilon)

    def _choices(self) -> _Choices:
        return choices(self, PRESETS[self.variant])

    def _network(self, layout: Layout, mlp: MLP | None) -> "AutoIntNetwork":
        chosen, fields = self._choices(), layout.num_fields
        layers = [
            InteractingLayer(
                self.attention_dim if i else self.embedding_dim,
                self.attention_dim,
                self.heads,
                relu_on_projections=chosen.relu_on_projections,
                bias=chosen.projection_bias,
                scale=chosen.scale,
                residual=chosen.residual,
                norm=chosen.norm,
                norm_epsilon=chosen.norm_epsilon,
                output_projection=chosen.output_projection,
                output_relu=chosen.output_relu,
                dropout=self.attention_dropout,
            )
            for i in range(self.layers)
        ]
        vectors_FD = torch.randn(fields, self.embedding_dim) * self.embedding_std if chosen.field_vectors else None
        return AutoIntNetwork(
            embedding=self.make_embedding(layout),
            layers=layers,
            head=linear(fields * self.attention_dim, 1),
            first_order=FirstOrder(layout, bias=False) if self.wide else None,
            mlp=mlp,
            field_vectors=vectors_FD,
            embedding_dropout=self.embedding_dropout,
        )


@dataclass(frozen=True, kw_only=True)
class AutoInt(_Interacting):
    """Settings of AutoInt. A setting whose default is None takes the variant's value.

    Args:
        variant: `paper`, `authors` (their code), `fuxictr` (the code of the BARS runs) or `transformer` (tutorials).
        embedding_dim: D.
        layers: number of attention layers.
        heads: H.
        attention_dim: A, the total size of all heads in every layer; divisible by `heads`.
        wide: add the first-order sum to the logit (without another bias: the last unit has one).
        embedding_dropout: dropout rate of the embeddings' entries.
        attention_dropout: dropout rate of the attention weights.
        relu_on_projections: ReLU on Q, K, V and the projected residual (`authors`).
        projection_bias: a bias in these projections (`authors`).
        scale: scores are divided by sqrt(A/H) (`authors`, `transformer`).
        residual: always `projected` (`paper`, `authors`); `where_sizes_differ`, else the input itself
            (`fuxictr`, `transformer`), or `none`.
        norm: LayerNorm of the layer's sum `after_relu` (`authors`), `before_relu` (`transformer`: it has no ReLU, so
            this is the end of the layer), or `none` (`paper`, `fuxictr`).
        norm_epsilon: LayerNorm's epsilon: 1e-8 (`authors`) or 1e-5, PyTorch's value (all others).
            With 1e-8 the gradient of a nearly constant vector is very large.
        output_projection: a linear map of the concatenated heads (`transformer`).
        output_relu: ReLU on the layer's sum (all but `transformer`).
        field_vectors: one learned vector per field is added to its embedding (`transformer`: position embeddings).
        embedding_std: standard deviation of the embeddings' initial values.

    Errors:
        ConfigError: a setting out of range, or an attention_dim that heads do not divide; `build`: no field.

    >>> sum(p.numel() for p in AutoInt(layers=1).build(Layout.of_sizes([3, 4])).parameters())
    4337
    >>> AutoInt(attention_dim=5)
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: attention_dim must be divisible by heads, found attention_dim 5 and heads 2
    """

    def build(self, layout: Layout) -> "AutoIntNetwork":
        """A network with fresh weights."""
        check_fields(layout, 1, "AutoInt", "attends to fields")
        return self._network(layout, None)


@dataclass(frozen=True, kw_only=True)
class AutoIntPlus(_Interacting):
    """Settings of AutoInt+: those of `AutoInt`, and an MLP on the same embeddings whose logit is added.

    The MLP's last unit has its own bias besides AutoInt's, as in the authors' code and in FuxiCTR.

    Args:
        hidden: sizes of the MLP's layers.
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).

    Errors:
        ConfigError: as `AutoInt`, or a size or share out of range.

    >>> AutoIntPlus(hidden=(8,)).build(Layout.of_sizes([3, 4])).mlp.output
    Linear(in_features=8, out_features=1, bias=True)
    """

    hidden: tuple[int, ...] = (400, 400)
    mlp_dropout: float = 0.0
    batch_norm: bool = False

    def __post_init__(self) -> None:
        _Interacting.__post_init__(self)
        check_sizes("hidden", self.hidden)
        check_shares(mlp_dropout=self.mlp_dropout)

    def build(self, layout: Layout) -> "AutoIntNetwork":
        """A network with fresh weights."""
        check_fields(layout, 1, "AutoInt+", "attends to fields")
        inputs = layout.num_fields * self.embedding_dim
        mlp = MLP(inputs, self.hidden, outputs=1, dropout=self.mlp_dropout, batch_norm=self.batch_norm)
        return self._network(layout, mlp)


class AutoIntNetwork(nn.Module):
    """`logit = w . flatten(layers(x)) + b`, plus the first-order sum if wide, plus the MLP's logit for AutoInt+.

    NOTE[DIFF]: linear units start from Xavier's normal distribution with biases of zero in every variant; the paper
    gives no initial values, and the authors' code draws the biases of last units and MLP at random.

    Shape:
        forward: Batch of B rows -> [B]. `attention_weights`: one [B, H, F, F] per layer.
    """

    def __init__(
        self,
        *,
        embedding: FieldEmbedding,
        layers: list[InteractingLayer],
        head: nn.Linear,
        first_order: FirstOrder | None = None,
        mlp: MLP | None = None,
        field_vectors: Tensor | None = None,
        embedding_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding, self.layers, self.head = embedding, nn.ModuleList(layers), head
        self.first_order, self.mlp = first_order, mlp
        self.field_vectors = None if field_vectors is None else nn.Parameter(field_vectors)
        self.embedding_dropout = embedding_dropout

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
        x_BFD = self._embed(batch)
        y_BFA = x_BFD if self.field_vectors is None else x_BFD + self.field_vectors
        for layer in self.layers:
            y_BFA = layer(y_BFA)
        logit_B: Tensor = self.head(y_BFA.flatten(1)).squeeze(1)
        if self.mlp is not None:
            logit_B = logit_B + self.mlp(x_BFD.flatten(1)).squeeze(1)
        if self.first_order is not None:
            logit_B = logit_B + self.first_order(batch)
        return logit_B

    def attention_weights(self, batch: Batch) -> list[Tensor]:
        """Every layer's attention weights [B, H, F, F]: from query field (third axis) to key field (last axis)."""
        return self.attend(self._embed(batch))[1]

    def attend(self, x_BFD: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output of the attention layers [B, F, A], and every layer's attention weights [B, H, F, F]."""
        y_BFA = x_BFD if self.field_vectors is None else x_BFD + self.field_vectors
        found = []
        for layer in self.layers:
            assert isinstance(layer, InteractingLayer)
            y_BFA, weights_BHFF = layer.attend(y_BFA)
            found.append(weights_BHFF)
        return y_BFA, found

    def _embed(self, batch: Batch) -> Tensor:
        return F.dropout(self.embedding(batch), self.embedding_dropout, self.training)
