"""FinalNet ("FINAL: Factorized Interaction Layer for CTR Prediction", Zhu et al., SIGIR 2023).

Letters: B batch, F fields, D embedding size, N factors.
"""

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwise.errors import ConfigError
from fieldwise.layers import FactorizedInteraction, linear
from fieldwise.layers.crosses import FactorActivation, FactorResidual
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import (
    DataDefaults,
    EmbeddingSettings,
    NonNegative,
    Rate,
    Size,
    Sizes,
)

Blocks = Literal["1B", "2B"]
Activation = Literal["none", "relu"]


@register_model("finalnet")
@dataclass(frozen=True, kw_only=True)
class FinalNet(EmbeddingSettings):
    """Settings of FinalNet; the defaults are those of the authors' code, by its documentation.

    NOTE[DIFF]: the paper's layer sums its products and applies an activation to each factor but the
    first. The authors' code, and so every published run, concatenates them without one; see
    `residual` and `factor_activation`.

    Args:
        blocks: `1B`, one block, or `2B`, the mean of two blocks' logits.
        block1_hidden: sizes of the first block's layers.
        block2_hidden: sizes of the second block's layers (only `2B`).
        block1_dropout: dropout rate of the first block's hidden units.
        block2_dropout: dropout rate of the second block's hidden units (only `2B`).
        batch_norm: BatchNorm after each factorized layer.
        activation: after BatchNorm: `relu` (documentation and published runs), or `none`, as the
            code has it if none is named, which leaves a polynomial.
        field_gate: the first block reads the gated fields in addition to the fields.
        factors: N of each layer; 1 makes a block an MLP. The authors' code has 2.
        residual: how a layer's products are combined: `concat` (the authors' code and the published
            runs) or `sum`.
        factor_activation: activation of a layer's factors but the first: `none` (the authors'
            code), `relu` or `sigmoid`.
        distillation_weight: weight of the loss that pulls each block towards the mean's probability
            (only `2B`). It is a cross-entropy for binary labels; set 0 for a regression.

    Errors:
        ConfigError: a setting out of range, or sizes that `factors` does not divide with `concat`;
            `build`: no field.

    >>> network = FinalNet(block1_hidden=(8,), block2_hidden=(6,)).build(Layout.of_sizes([3, 4]))
    >>> network.block1[0][0].linear, network.block2[0][0].linear
    (Linear(in_features=40, out_features=8, bias=True), Linear(in_features=20, out_features=6, bias=True))
    """

    data_defaults = DataDefaults(
        settings={
            "embedding_dim": 16,
            "block1_hidden": (128,),
            "block2_hidden": (128,),
            "batch_norm": False,
        }
    )

    embedding_dim: Size = 10
    blocks: Blocks = "2B"
    block1_hidden: Sizes = (64, 64, 64)
    block2_hidden: Sizes = (64, 64, 64)
    block1_dropout: Rate = 0.0
    block2_dropout: Rate = 0.0
    batch_norm: bool = True
    activation: Activation = "relu"
    field_gate: bool = True
    factors: Size = 2
    residual: FactorResidual = "concat"
    factor_activation: FactorActivation = "none"
    distillation_weight: NonNegative = 1.0

    def check(self) -> None:
        super().check()
        sizes = {f"block1_hidden[{i}]": size for i, size in enumerate(self.block1_hidden)}
        if self.blocks == "2B":
            sizes |= {f"block2_hidden[{i}]": size for i, size in enumerate(self.block2_hidden)}
        for name, size in sizes.items():
            if self.residual == "concat" and size % self.factors:
                found = f"{size} and factors {self.factors}"
                raise ConfigError(
                    f"{name} must be divisible by factors, found {found}: take a multiple, or residual = 'sum'"
                )

    def build(self, layout: Layout) -> "FinalNetNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "reads fields")
        return FinalNetNetwork(self, layout)


def _block(
    settings: FinalNet, inputs: int, hidden: tuple[int, ...], dropout: float
) -> nn.Sequential:
    """Factorized layer, BatchNorm, activation and dropout, for every size."""
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise((inputs, *hidden)):
        layer = FactorizedInteraction(
            before,
            after,
            factors=settings.factors,
            residual=settings.residual,
            activation=settings.factor_activation,
        )
        norm = [nn.BatchNorm1d(after)] if settings.batch_norm else []
        act = [nn.ReLU()] if settings.activation == "relu" else []
        drop = [nn.Dropout(dropout)] if dropout else []
        parts.append(nn.Sequential(layer, *norm, *act, *drop))
    return nn.Sequential(*parts)


class FieldGate(nn.Module):
    """`g_f = sum_k W_fk x_k + b_f` for every entry of D, then x concatenated with `g * x`; g is initially 1.

    Shape:
        forward: [B, F, D] -> [B, 2 F, D].
    """

    def __init__(self, num_fields: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_fields, num_fields)
        nn.init.zeros_(self.linear.weight)
        nn.init.ones_(self.linear.bias)

    def forward(self, x_BFD: Tensor) -> Tensor:
        g_BFD = self.linear(x_BFD.transpose(1, 2)).transpose(1, 2)
        return torch.cat([x_BFD, g_BFD * x_BFD], 1)


class FinalNetNetwork(nn.Module):
    """`logit = (y1 + y2) / 2`, `y_k = head_k(block_k(x))`; with one block `logit = y1`.

    `x` is all fields' vectors, flattened; with a field gate the first block reads the gated ones
    too.

    Training adds `distillation_weight * (L(y1, p) + L(y2, p))` to the loss of the logit: L is
    cross-entropy, and p the logit's probability, through which no gradient passes.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: FinalNet, layout: Layout) -> None:
        super().__init__()
        hidden1 = settings.block1_hidden
        hidden2 = settings.block2_hidden
        second = settings.blocks == "2B"
        inputs = layout.num_fields * settings.embedding_dim
        self.embedding = settings.make_embedding(layout)
        self.field_gate = FieldGate(layout.num_fields) if settings.field_gate else None
        self.block1 = _block(
            settings,
            2 * inputs if settings.field_gate else inputs,
            hidden1,
            settings.block1_dropout,
        )
        self.head1 = linear(hidden1[-1], 1)
        self.block2 = _block(settings, inputs, hidden2, settings.block2_dropout) if second else None
        self.head2 = linear(hidden2[-1], 1) if second else None
        self.distillation_weight = settings.distillation_weight
        # Read by the training loop: settings that must be 0 if the label is not binary.
        self.binary_settings = (
            ("distillation_weight",) if second and settings.distillation_weight else ()
        )

    def forward(self, batch: Batch) -> Tensor:
        return torch.stack(self.block_logits(batch)).mean(0)

    def forward_with_auxiliary(self, batch: Batch, _label_B: Tensor) -> tuple[Tensor, Tensor]:
        """The logit [B], and the weighted self-distillation loss (a scalar), 0 with one block."""
        logits = self.block_logits(batch)
        logit_B = torch.stack(logits).mean(0)
        if len(logits) == 1 or self.distillation_weight == 0:
            return logit_B, logit_B.new_zeros(())
        p_B = torch.sigmoid(logit_B).detach()
        losses = [functional.binary_cross_entropy_with_logits(y_B, p_B) for y_B in logits]
        return logit_B, self.distillation_weight * torch.stack(losses).sum()

    def block_logits(self, batch: Batch) -> list[Tensor]:
        """Each block's own logit [B]."""
        x_BFD = self.embedding(batch)
        first = x_BFD if self.field_gate is None else self.field_gate(x_BFD)
        logits = [self.head1(self.block1(first.flatten(1))).squeeze(1)]
        if self.block2 is not None and self.head2 is not None:
            logits.append(self.head2(self.block2(x_BFD.flatten(1))).squeeze(1))
        return logits
