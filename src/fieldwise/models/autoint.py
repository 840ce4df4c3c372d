"""AutoInt and AutoInt+ (Song et al., CIKM 2019, arXiv 1810.11921), with the choices of its implementations named."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.layers import MLP, FieldEmbedding, FirstOrder, InteractingLayer, linear
from fieldwise.layers.interacting import Norm, Residual
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import check_at_least, check_choice, check_positive, check_shares, check_sizes

__all__ = ["AutoInt", "AutoIntNetwork", "AutoIntPlus"]


@dataclass(frozen=True, kw_only=True)
class _Interacting:
    """What AutoInt and AutoInt+ share (abstract); the defaults are the paper's."""

    embedding_dim: int = 16
    layers: int = 3
    heads: int = 2
    attention_dim: int = 64
    wide: bool = False
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    relu_on_projections: bool = False
    projection_bias: bool = False
    scale: bool = False
    residual: Residual = "projected"
    norm: Norm = "none"
    output_projection: bool = False
    output_relu: bool = True
    field_vectors: bool = False
    embedding_std: float = 0.01

    def __post_init__(self) -> None:
        check_at_least(
            1,
            embedding_dim=self.embedding_dim,
            layers=self.layers,
            heads=self.heads,
            attention_dim=self.attention_dim,
        )
        if self.attention_dim % self.heads:
            found = f"attention_dim {self.attention_dim} and heads {self.heads}"
            raise ConfigError(f"attention_dim must be divisible by heads, found {found}")
        check_shares(embedding_dropout=self.embedding_dropout, attention_dropout=self.attention_dropout)
        check_choice("residual", self.residual, Residual)
        check_choice("norm", self.norm, Norm)
        check_positive(embedding_std=self.embedding_std)

    def _network(self, layout: Layout, mlp: MLP | None) -> "AutoIntNetwork":
        fields = layout.num_fields
        if fields < 1:
            raise ConfigError("AutoInt needs at least 1 field, found none")
        layers = [
            InteractingLayer(
                self.attention_dim if i else self.embedding_dim,
                self.attention_dim,
                self.heads,
                relu_on_projections=self.relu_on_projections,
                bias=self.projection_bias,
                scale=self.scale,
                residual=self.residual,
                norm=self.norm,
                output_projection=self.output_projection,
                output_relu=self.output_relu,
                dropout=self.attention_dropout,
            )
            for i in range(self.layers)
        ]
        return AutoIntNetwork(
            embedding=FieldEmbedding(layout, self.embedding_dim, std=self.embedding_std),
            layers=layers,
            head=linear(fields * self.attention_dim, 1),
            first_order=FirstOrder(layout, bias=False) if self.wide else None,
            mlp=mlp,
            field_vectors=torch.randn(fields, self.embedding_dim) * self.embedding_std if self.field_vectors else None,
            embedding_dropout=self.embedding_dropout,
        )


@dataclass(frozen=True, kw_only=True)
class AutoInt(_Interacting):
    """Settings of AutoInt; the defaults are the paper's.

    Args:
        embedding_dim: D.
        layers: number of interacting layers.
        heads: H.
        attention_dim: A of every layer, all heads together; divisible by `heads`.
        wide: the first-order sum is added to the logit (without a bias of its own: the last unit has one).
        embedding_dropout: share of the embeddings' entries dropped.
        attention_dropout: share of the attention weights dropped.
        relu_on_projections: ReLU on Q, K, V and the projected residual (the authors' code).
        projection_bias: a bias in those (the authors' code).
        scale: scores are divided by sqrt(A/H) (the authors' code, transformers).
        residual: `projected` always (paper), `where_sizes_differ` and the input itself elsewhere, or `none`.
        norm: LayerNorm of the layer's sum `before_relu`, `after_relu` (the authors' code), or `none` (paper).
        output_projection: one more linear map of the joined heads (transformers).
        output_relu: ReLU on the layer's sum (all but transformers).
        field_vectors: one learned vector a field is added to its embedding (transformers' positions).
        embedding_std: deviation of the embeddings' starting values.

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
        return self._network(layout, None)


@dataclass(frozen=True, kw_only=True)
class AutoIntPlus(_Interacting):
    """Settings of AutoInt+: those of `AutoInt`, and an MLP on the same embeddings whose logit is added.

    Args:
        hidden: sizes of the MLP's layers.
        mlp_dropout: share of the MLP's hidden units dropped.
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
        inputs = layout.num_fields * self.embedding_dim
        mlp = MLP(inputs, self.hidden, outputs=1, dropout=self.mlp_dropout, batch_norm=self.batch_norm)
        return self._network(layout, mlp)


class AutoIntNetwork(nn.Module):
    """`logit = w . flatten(layers(x)) + b`, plus the first-order sum where wide, plus the MLP's logit where AutoInt+.

    Shape:
        forward: Batch of B rows -> [B]. `attention_weights`: one [B, H, F, F] a layer.
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
        """Every layer's weights [B, H, F, F]: how much each field (third axis) takes from each other (last axis)."""
        x_BFD = self._embed(batch)
        y_BFA = x_BFD if self.field_vectors is None else x_BFD + self.field_vectors
        found = []
        for layer in self.layers:
            assert isinstance(layer, InteractingLayer)
            y_BFA, weights_BHFF = layer.attend(y_BFA)
            found.append(weights_BHFF)
        return found

    def _embed(self, batch: Batch) -> Tensor:
        return F.dropout(self.embedding(batch), self.embedding_dropout, self.training)
