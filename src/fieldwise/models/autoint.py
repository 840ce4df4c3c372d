"""AutoInt and AutoInt+ (Song et al., CIKM 2019, arXiv 1810.11921), with the differences between implementations.

Letters: B batch, F fields, D embedding size, H heads, A total attention size of all heads.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.layers import FirstOrder, InteractingLayer, InteractingOptions, linear
from fieldwise.layers.activations import Activation
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import (
    DataDefaults,
    EmbeddingSettings,
    Positive,
    Rate,
    Size,
    Sizes,
    choices,
)
from fieldwise.ops.interacting import Norm, Residual

Variant = Literal["paper", "authors", "fuxictr", "transformer"]


@dataclass(frozen=True, kw_only=True)
class _Choices(InteractingOptions):
    """The differences between the implementations; the defaults are the paper's.

    `field_vectors`: one learned vector per field is added to its embedding (position embeddings).
    """

    field_vectors: bool = False


PRESETS: dict[Variant, _Choices] = {
    "paper": _Choices(),
    # With an epsilon of 1e-8 the gradient of a nearly constant vector is very large.
    "authors": _Choices(
        relu_on_projections=True, bias=True, scale=True, norm="after_relu", norm_epsilon=1e-8
    ),
    # In FuxiCTR scale and norm are options, both off by default; its norm is `before_relu`.
    "fuxictr": _Choices(residual="identity"),
    # NOTE[DIFF]: a transformer's residual is its input, which requires attention_dim ==
    # embedding_dim. If they differ, the first layer's residual is projected here.
    "transformer": _Choices(
        scale=True,
        residual="identity",
        norm="before_relu",
        output_projection=True,
        output_relu=False,
        field_vectors=True,
    ),
}


@register_model("autoint")
@dataclass(frozen=True, kw_only=True)
class AutoInt(EmbeddingSettings):
    """Settings of AutoInt. A setting whose default is None takes the variant's value.

    Args:
        variant: `paper`, `authors` (their code), `fuxictr` (the code of the BARS runs) or
            `transformer` (tutorials): what its attention layers have (`docs/models/autoint.md`).
        layers: number of attention layers.
        heads: H.
        attention_dim: A, the total size of all heads in every layer; divisible by `heads`.
        wide: add the first-order sum to the logit (without another bias: the last unit has one).
        embedding_dropout: dropout rate of the embeddings' entries.
        attention_dropout: dropout rate of the attention weights.
        scale: scores are divided by sqrt(A/H) (`authors`, `transformer`).
        bias: a bias in the maps of Q, K, V and the projected residual (`authors`), and in the map
            of the concatenated heads, which only `transformer` has; a tutorial's linear layers have
            all four.
        residual: what is added to the heads: the layer's input, `projected` (`paper`, `authors`) or
            as it is, `identity` (`fuxictr`, `transformer`; projected where sizes differ), or
            nothing, `none`.
        norm: LayerNorm of the layer's sum `after_relu` (`authors`), `before_relu` (`transformer`:
            it has no ReLU, so this is the end of the layer), or `none` (`paper`, `fuxictr`).
        position_std: standard deviation of the initial position vectors of `transformer`
            (tutorials: 1); `embedding_std` if omitted.

    Errors:
        ConfigError: a setting out of range, an attention_dim that heads do not divide, or a
            position_std without position vectors; `build`: no field.

    >>> sum(p.numel() for p in AutoInt(layers=1).build(Layout.of_sizes([3, 4])).parameters())
    4337
    >>> AutoInt(attention_dim=5)
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: attention_dim must be divisible by heads, found attention_dim 5 and heads 2
    """

    data_defaults = DataDefaults(
        settings={"layers": 2, "attention_dim": 64, "embedding_dropout": 0.1}
    )

    variant: Variant = "paper"
    layers: Size = 3
    heads: Size = 2
    attention_dim: Size = 64
    wide: bool = False
    embedding_dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    scale: bool | None = None
    bias: bool | None = None
    residual: Residual | None = None
    norm: Norm | None = None
    position_std: Positive | None = None

    def check(self) -> None:
        super().check()
        if self.attention_dim % self.heads:
            raise ConfigError(
                f"attention_dim must be divisible by heads, found attention_dim {self.attention_dim} and heads "
                f"{self.heads}"
            )
        if self.position_std is not None and not PRESETS[self.variant].field_vectors:
            known = ", ".join(name for name, preset in PRESETS.items() if preset.field_vectors)
            raise ConfigError(
                f"position_std needs a variant with position vectors ({known}), found the variant {self.variant}: "
                "leave position_std out"
            )

    def build(self, layout: Layout) -> "AutoIntNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "attends to fields")
        return AutoIntNetwork(self, layout)


@register_model("autoint+")
@dataclass(frozen=True, kw_only=True)
class AutoIntPlus(AutoInt):
    """Settings of AutoInt+: those of `AutoInt`, and an MLP on the same embeddings whose logit is added.

    The MLP's last unit has its own bias besides AutoInt's, as in the authors' code and in FuxiCTR.

    Args:
        hidden: sizes of the MLP's layers.
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).

    Errors:
        ConfigError: as `AutoInt`, or a size or share out of range.

    >>> AutoIntPlus(hidden=(8,)).build(Layout.of_sizes([3, 4])).mlp.output
    Linear(in_features=8, out_features=1, bias=True)
    """

    data_defaults = DataDefaults(
        normalizes=True,
        settings={
            "layers": 1,
            "attention_dim": 32,
            "embedding_dropout": 0.1,
            "hidden": (128,),
            "mlp_dropout": 0.2,
            "wide": True,
        },
    )

    title = "AutoInt+"
    hidden: Sizes = (400, 400)
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.0
    batch_norm: bool = False


class AutoIntNetwork(nn.Module):
    """`logit = w . flatten(layers(x)) + b`, plus the first-order sum if wide, plus the MLP's logit for AutoInt+.

    NOTE[DIFF]: linear units start from Xavier's normal distribution with biases of zero in every
    variant; the paper gives no initial values, and the authors' code draws the biases of last units
    and MLP at random.

    Shape:
        forward: Batch of B rows -> [B]. `attention_weights`: one [B, H, F, F] per layer.
    """

    def __init__(self, settings: AutoInt, layout: Layout) -> None:
        super().__init__()
        inputs = layout.num_fields * settings.embedding_dim
        mlp = settings.make_mlp(inputs) if isinstance(settings, AutoIntPlus) else None
        chosen = choices(settings, PRESETS[settings.variant])
        size = settings.attention_dim
        dims = [settings.embedding_dim, *[size] * (settings.layers - 1)]
        layers = [
            InteractingLayer(dim, size, settings.heads, chosen, settings.attention_dropout)
            for dim in dims
        ]
        vectors_shape = layout.num_fields, settings.embedding_dim
        position_std = (
            settings.embedding_std if settings.position_std is None else settings.position_std
        )
        field_vectors = torch.randn(vectors_shape) * position_std if chosen.field_vectors else None
        self.embedding = settings.make_embedding(layout)
        self.layers = nn.ModuleList(layers)
        self.head = linear(layout.num_fields * size, 1)
        self.first_order = FirstOrder(layout, bias=False) if settings.wide else None
        self.mlp = mlp
        self.field_vectors = None if field_vectors is None else nn.Parameter(field_vectors)
        self.embedding_dropout = settings.embedding_dropout

    def forward(self, batch: Batch) -> Tensor:
        x_BFD = F.dropout(self.embedding(batch), self.embedding_dropout, self.training)
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
        return self.attend(F.dropout(self.embedding(batch), self.embedding_dropout, self.training))[
            1
        ]

    def attend(self, x_BFD: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output of the attention layers [B, F, A], and every layer's attention weights [B, H, F, F]."""
        y_BFA = x_BFD if self.field_vectors is None else x_BFD + self.field_vectors
        results = []
        for layer in self.layers:
            assert isinstance(layer, InteractingLayer)
            y_BFA, weights_BHFF = layer.attend(y_BFA)
            results.append(weights_BHFF)
        return y_BFA, results

    def logit_terms(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        x_BFD = self.embedding(batch)
        y_BFA, attention = self.attend(x_BFD)
        weight_FA = self.head.weight.view(y_BFA.shape[1:])
        added = {"bias": self.head.bias.expand(batch.size), "attended": (y_BFA * weight_FA).sum(2)}
        if self.first_order is not None:
            added |= self.first_order.terms(batch)
        if self.mlp is not None:
            added["mlp"] = self.mlp(x_BFD.flatten(1)).squeeze(1)
        return added, {"attention": torch.stack(attention, 1)}
