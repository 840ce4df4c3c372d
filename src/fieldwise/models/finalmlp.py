"""FinalMLP (Mao et al., AAAI 2023, arXiv 2304.00902): two MLPs on differently gated features, fused bilinearly.

Letters: B batch, F fields, D embedding size, M and N sizes of the streams' outputs, C fields that a
gate reads.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import MLP, BilinearFusion, SubsetEmbedding
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import (
    DataDefaults,
    EmbeddingSettings,
    Rate,
    Size,
    Sizes,
    check_field_names,
)

Fusion = Literal["bilinear", "sum"]


def _check_names(setting: str, names: tuple[str, ...]) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f'{setting} must be a tuple of field names, as in ("user_id",), found {names!r}'
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"{setting} must name a field once, found {names!r}")


Names = Annotated[tuple[str, ...], _check_names]


@register_model("finalmlp")
@dataclass(frozen=True, kw_only=True)
class FinalMLP(EmbeddingSettings):
    """Settings of FinalMLP; default sizes as in the authors' code.

    Args:
        embedding_dim: D, of the shared table and of the gates' own tables.
        stream1_hidden: sizes of the first MLP's layers.
        stream2_hidden: sizes of the second MLP's layers.
        stream1_dropout: dropout rate of the first MLP's hidden units.
        stream2_dropout: dropout rate of the second MLP's hidden units.
        batch_norm: BatchNorm after each linear layer of both MLPs.
        gates: whether features are gated; without gates and with `sum` this is the paper's DualMLP.
        stream1_gate_fields: names of the fields whose own embeddings the first gate reads; () for a
            learned vector.
        stream2_gate_fields: the same for the second gate.
        gate_hidden: sizes of both gates' hidden layers.
        fusion: `bilinear`, or `sum` of the two streams' linear outputs.
        heads: H of the bilinear fusion; divides the last sizes of both streams.
        embedding_std: standard deviation of all embeddings' and learned vectors' initial values.

    Errors:
        ConfigError: a setting out of range, or heads that do not divide the streams' outputs;
            `build`: no field, or a gate field that is not in the layout.

    >>> network = FinalMLP(stream1_gate_fields=("field_0",)).build(Layout.of_sizes([3, 4]))
    >>> network.gate1.fields.weight.shape, network.gate2.vector.shape
    (torch.Size([3, 10]), torch.Size([10]))
    """

    data_defaults = DataDefaults(
        settings={
            "embedding_dim": 16,
            "stream1_hidden": (128,),
            "stream2_hidden": (128,),
            "stream1_dropout": 0.2,
            "stream2_dropout": 0.2,
        }
    )

    embedding_dim: Size = 10
    stream1_hidden: Sizes = (64, 64, 64)
    stream2_hidden: Sizes = (64, 64, 64)
    stream1_dropout: Rate = 0.0
    stream2_dropout: Rate = 0.0
    batch_norm: bool = False
    gates: bool = True
    stream1_gate_fields: Names = ()
    stream2_gate_fields: Names = ()
    gate_hidden: Sizes = (64,)
    fusion: Fusion = "bilinear"
    heads: Size = 1

    def check(self) -> None:
        super().check()
        size1 = self.stream1_hidden[-1]
        size2 = self.stream2_hidden[-1]
        if size1 % self.heads or size2 % self.heads:
            found = f"heads {self.heads} for sizes {size1} and {size2}"
            raise ConfigError(
                f"heads must divide the last sizes of both streams, found {found}: take a common divisor"
            )

    def build(self, layout: Layout) -> "FinalMLPNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "reads fields")
        return FinalMLPNetwork(self, layout)


class FeatureGate(nn.Module):
    """`2 sigmoid(mlp(c))`, a factor for every entry of the fields' vectors, around 1 at the start.

    `c` holds the gate's own embeddings of some fields, or is one learned vector for all rows.

    NOTE[DIFF]: the authors' code initialises the learned vector with zeros, where ReLU passes no
    gradient to the vector or the hidden layers, so only the gate's last bias ever learns. Here it
    is initialised like an embedding.

    Shape:
        forward: Batch of B rows -> [B, F * D], or [1, F * D] for a learned vector.
    """

    def __init__(self, settings: FinalMLP, layout: Layout, setting: str) -> None:
        super().__init__()
        names: tuple[str, ...] = getattr(settings, setting)
        check_field_names(layout, setting, names)
        dim = settings.embedding_dim
        std = settings.embedding_std
        self.fields = SubsetEmbedding(layout, names, dim, std=std) if names else None
        vector = None if names else torch.randn(dim) * std
        self.mlp = MLP(
            dim * max(1, len(names)), settings.gate_hidden, outputs=layout.num_fields * dim
        )
        self.vector = None if vector is None else nn.Parameter(vector)

    def forward(self, batch: Batch) -> Tensor:
        if self.fields is not None:
            c = self.fields(batch).flatten(1)
        else:
            assert self.vector is not None, "a gate reads fields or a learned vector"
            c = self.vector.unsqueeze(0)
        return 2.0 * torch.sigmoid(self.mlp(c))


class FinalMLPNetwork(nn.Module):
    """`logit = b + w1 . o1 + w2 . o2 + sum over heads of o1_h^T W_h o2_h`, `o_k = mlp_k(2 sigmoid(gate_k) * x)`.

    `x` is all fields' vectors, flattened; `o1_h` and `o2_h` are the h-th of H equal parts of the
    streams' outputs.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: FinalMLP, layout: Layout) -> None:
        super().__init__()
        hidden1 = settings.stream1_hidden
        hidden2 = settings.stream2_hidden
        batch_norm = settings.batch_norm
        inputs = layout.num_fields * settings.embedding_dim
        self.embedding = settings.make_embedding(layout)
        self.gate1 = (
            FeatureGate(settings, layout, "stream1_gate_fields") if settings.gates else None
        )
        self.gate2 = (
            FeatureGate(settings, layout, "stream2_gate_fields") if settings.gates else None
        )
        self.stream1 = MLP(inputs, hidden1, dropout=settings.stream1_dropout, batch_norm=batch_norm)
        self.stream2 = MLP(inputs, hidden2, dropout=settings.stream2_dropout, batch_norm=batch_norm)
        self.fusion = BilinearFusion(
            (hidden1[-1], hidden2[-1]), heads=settings.heads if settings.fusion == "bilinear" else 0
        )

    def forward(self, batch: Batch) -> Tensor:
        x = self.embedding(batch).flatten(1)
        one_BM = self.stream1(x if self.gate1 is None else x * self.gate1(batch))
        two_BN = self.stream2(x if self.gate2 is None else x * self.gate2(batch))
        return self.fusion(one_BM, two_BN)
