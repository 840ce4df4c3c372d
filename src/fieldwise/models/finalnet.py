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
from fieldwise.layers import FactorizedInteraction, FieldEmbedding, linear
from fieldwise.layers.factorized_interaction import FactorActivation, FactorResidual
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

__all__ = ["FinalNet", "FinalNetNetwork"]

Blocks = Literal["1B", "2B"]
Activation = Literal["none", "relu"]


@dataclass(frozen=True, kw_only=True)
class FinalNet(EmbeddingSettings):
    """Settings of FinalNet; the defaults are those of the authors' code, by its documentation.

    NOTE[DIFF]: the paper's layer sums its products and applies an activation to each factor but the first. The authors'
    code, and so every published run, concatenates them without one; see `residual` and `factor_activation`.

    Args:
        embedding_dim: D.
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
        residual: how a layer's products are combined: `concat` (the authors' code and the published runs) or `sum`.
        factor_activation: activation of a layer's factors but the first: `none` (the authors' code), `relu` or
            `sigmoid`.
        distillation_weight: weight of the loss that pulls each block towards the mean's probability (only `2B`). It is
            a cross-entropy for binary labels; set 0 for a regression.
        embedding_std: standard deviation of the embeddings' initial values.

    Errors:
        ConfigError: a setting out of range, or sizes that `factors` does not divide with `concat`; `build`: no field.

    >>> network = FinalNet(block1_hidden=(8,), block2_hidden=(6,)).build(Layout.of_sizes([3, 4]))
    >>> network.block1[0][0].linear, network.block2[0][0].linear
    (Linear(in_features=40, out_features=8, bias=True), Linear(in_features=20, out_features=6, bias=True))
    """

    embedding_dim: int = 10
    blocks: Blocks = "2B"
    block1_hidden: tuple[int, ...] = (64, 64, 64)
    block2_hidden: tuple[int, ...] = (64, 64, 64)
    block1_dropout: float = 0.0
    block2_dropout: float = 0.0
    batch_norm: bool = True
    activation: Activation = "relu"
    field_gate: bool = True
    factors: int = 2
    residual: FactorResidual = "concat"
    factor_activation: FactorActivation = "none"
    distillation_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, factors=self.factors)
        check_choice("blocks", self.blocks, Blocks)
        check_choice("activation", self.activation, Activation)
        check_choice("residual", self.residual, FactorResidual)
        check_choice("factor_activation", self.factor_activation, FactorActivation)
        check_shares(block1_dropout=self.block1_dropout, block2_dropout=self.block2_dropout)
        check_positive(zero=True, distillation_weight=self.distillation_weight)
        self._check_sizes("block1_hidden", divided=True)
        self._check_sizes("block2_hidden", divided=self.blocks == "2B")

    def _check_sizes(self, name: str, *, divided: bool) -> None:
        sizes: tuple[int, ...] = getattr(self, name)
        check_sizes(name, sizes)
        for i, size in enumerate(sizes):
            if divided and self.residual == "concat" and size % self.factors:
                found = f"{size} and factors {self.factors}"
                raise ConfigError(
                    f"{name}[{i}] must be divisible by factors, found {found}: take a multiple, or residual = 'sum'"
                )

    def build(self, layout: Layout) -> "FinalNetNetwork":
        """A network with fresh weights."""
        check_fields(layout, 1, "FinalNet", "reads fields")
        inputs = layout.num_fields * self.embedding_dim
        two = self.blocks == "2B"
        return FinalNetNetwork(
            embedding=self.make_embedding(layout),
            field_gate=FieldGate(layout.num_fields) if self.field_gate else None,
            block1=self._block(2 * inputs if self.field_gate else inputs, self.block1_hidden, self.block1_dropout),
            head1=linear(self.block1_hidden[-1], 1),
            block2=self._block(inputs, self.block2_hidden, self.block2_dropout) if two else None,
            head2=linear(self.block2_hidden[-1], 1) if two else None,
            distillation_weight=self.distillation_weight,
        )

    def _block(self, inputs: int, hidden: tuple[int, ...], dropout: float) -> nn.Sequential:
        """Factorized layer, BatchNorm, activation and dropout, for every size."""
        parts: list[nn.Module] = []
        for before, after in itertools.pairwise((inputs, *hidden)):
            layer = FactorizedInteraction(
                before, after, factors=self.factors, residual=self.residual, activation=self.factor_activation
            )
            norm = [nn.BatchNorm1d(after)] if self.batch_norm else []
            act = [nn.ReLU()] if self.activation == "relu" else []
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
        """The fields' vectors, then the gated ones."""
        g_BFD = self.linear(x_BFD.transpose(1, 2)).transpose(1, 2)
        return torch.cat([x_BFD, g_BFD * x_BFD], 1)


class FinalNetNetwork(nn.Module):
    """`logit = (y1 + y2) / 2`, `y_k = head_k(block_k(x))`; with one block `logit = y1`.

    `x` is all fields' vectors, flattened; with a field gate the first block reads the gated ones too.

    Training adds `distillation_weight * (L(y1, p) + L(y2, p))` to the loss of the logit: L is cross-entropy, and p the
    logit's probability, through which no gradient passes.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(
        self,
        *,
        embedding: FieldEmbedding,
        field_gate: FieldGate | None,
        block1: nn.Sequential,
        head1: nn.Linear,
        block2: nn.Sequential | None,
        head2: nn.Linear | None,
        distillation_weight: float,
    ) -> None:
        super().__init__()
        self.embedding, self.field_gate = embedding, field_gate
        self.block1, self.head1, self.block2, self.head2 = block1, head1, block2, head2
        self.distillation_weight = distillation_weight
        # Read by the training loop: settings that must be 0 if the label is not binary.
        self.binary_settings = ("distillation_weight",) if block2 is not None and distillation_weight else ()

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
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
