"""IntTower (Li et al., CIKM 2022, arXiv 2210.09890): two interacting towers for pre-ranking.

Letters: B batch, F fields of a tower, D embedding size, L levels, H user heads, K item heads, P size of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import MLP, FEBlock, LightSE
from fieldwise.layout import Batch, Layout
from fieldwise.models.own import register_model
from fieldwise.models.settings import (
    DataDefaults,
    EmbeddingSettings,
    NonNegative,
    Positive,
    Rate,
    Size,
    Sizes,
    choices,
    sides,
)
from fieldwise.models.twotower import HeadsNetwork, contrastive_loss
from fieldwise.ops.stored_items import StoredItems

Variant = Literal["paper", "authors"]
Levels = Literal["outputs", "inputs"]
CIRReads = Literal["levels", "heads"]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The differences between the sources; the defaults are the paper's.

    Args:
        levels: the input of a user level's projection: each layer's `outputs`, or its `inputs`, of which the first is
            the tower's input. Both are read after BatchNorm, ReLU and dropout.
        light_se_bias: whether Light-SE's linear map has a bias.
        cir_reads: the vectors that the contrastive loss compares: both towers' last `levels`, or the last level's
            `heads` with the item's, which must be equally many.
    """

    levels: Levels = "outputs"
    light_se_bias: bool = True
    output_bias: bool = False
    cir_weight: float = 0.1
    cir_reads: CIRReads = "levels"


AUTHORS = Choices(levels="inputs", light_se_bias=False, output_bias=True, cir_weight=0.0, cir_reads="heads")
VARIANTS = {"paper": Choices(), "authors": AUTHORS}


@register_model("inttower")
@dataclass(frozen=True, kw_only=True)
class IntTower(EmbeddingSettings):
    """Settings of IntTower: one tower for the user and context fields, one for the item fields.

    A setting that is None takes the variant's value.

    Args:
        variant: `paper`, or `authors` for their published code with its bugs: the user tower's last layer is not used
            in the score or the loss.
        hidden: sizes of both towers' layers; any number of them.
        dropout: dropout rate of the towers' hidden units.
        batch_norm: BatchNorm after each of the towers' linear layers.
        user_heads: H of each user level.
        item_heads: K, which may differ from H.
        head_dim: P.
        output_bias: whether the logit has a bias (authors).
        cir_weight: alpha, the weight of the contrastive loss; authors: 0; the paper gives no value: tune it.
        temperature: tau of the contrastive loss; 0.07 in the authors' code; the paper gives no value.

    Errors:
        ConfigError: a setting out of range, or heads that cannot be compared; `build`: no field for the user tower, or
            none for the item tower.

    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> IntTower(embedding_dim=4, hidden=(8,), user_heads=2, item_heads=1, head_dim=3).build(layout).block
    FEBlock(
      (user_projections): ModuleList(
        (0): Linear(in_features=8, out_features=6, bias=True)
      )
      (item_projection): Linear(in_features=8, out_features=3, bias=True)
    )
    """

    data_defaults = DataDefaults(
        std=0.3,
        settings={
            "embedding_dim": 16,
            "hidden": (128,),
            "dropout": 0.3,
            "batch_norm": False,
            "user_heads": 2,
            "item_heads": 2,
            "head_dim": 16,
            "output_bias": True,
            "cir_weight": 0.0,
        },
    )

    variant: Variant = "paper"
    embedding_dim: Size = 32
    hidden: Sizes = (300, 300, 128)
    dropout: Rate = 0.3
    batch_norm: bool = True
    user_heads: Size = 32
    item_heads: Size = 32
    head_dim: Size = 64
    output_bias: bool | None = None
    cir_weight: NonNegative | None = None
    temperature: Positive = 0.07

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen = self.chosen
        if chosen.cir_reads == "heads" and chosen.cir_weight > 0 and self.user_heads != self.item_heads:
            result = f"user_heads {self.user_heads} and item_heads {self.item_heads}"
            raise ConfigError(
                f"the variant {self.variant} with a cir_weight needs as many user heads as item heads, found {result}"
            )

    @property
    def chosen(self) -> Choices:
        """The variant's choices, overridden by the settings given."""
        return choices(self, VARIANTS[self.variant])

    def build(self, layout: Layout) -> "IntTowerNetwork":
        """A network with fresh weights."""
        return IntTowerNetwork(self, layout)


class LevelTower(nn.Module):
    """One tower: its fields' vectors, weighted by Light-SE and flattened, pass an MLP; every layer's output is a level.

    NOTE[DIFF]: the paper appends a tower's dense values to the flattened vectors; here a numeric field is a field like
    any other, its value times a learned vector, so that Light-SE weights it and missing values have a vector.

    Shape:
        forward: all fields' vectors [B, all fields, D] -> the tower's input [B, F * D] and L levels [B, hidden[i]].
    """

    def __init__(self, positions: list[int], settings: IntTower) -> None:
        super().__init__()
        inputs, dropout, batch_norm = len(positions) * settings.embedding_dim, settings.dropout, settings.batch_norm
        self.light_se = LightSE(len(positions), bias=settings.chosen.light_se_bias)
        self.mlp = MLP(inputs, settings.hidden, dropout=dropout, batch_norm=batch_norm)
        self.positions = nn.Buffer(torch.tensor(positions, dtype=torch.int64), persistent=False)

    def forward(self, x_BAD: Tensor) -> list[Tensor]:
        return self.levels(self.light_se(x_BAD.index_select(1, self.positions)))

    def levels(self, x_BFD: Tensor) -> list[Tensor]:
        """The first layer's input and every layer's output, from vectors that Light-SE has weighted."""
        levels = [x_BFD.flatten(1)]
        for layer in self.mlp.layers:
            levels.append(layer(levels[-1]))
        return levels

    def gated(self, x_BAD: Tensor, heads_of: Callable[[list[Tensor]], Tensor]) -> tuple[list[Tensor], Tensor]:
        """The side's heads, unchanged and then with each field's gate set to zero in turn, and the gates [B, F]."""
        x_BFD = x_BAD.index_select(1, self.positions)
        gates_BF = self.light_se.weights(x_BFD)
        place_F = torch.arange(gates_BF.shape[1], device=gates_BF.device)
        closed = [gates_BF * (place_F != field) for field in range(gates_BF.shape[1])]
        all_gates = gates_BF, *closed
        return [heads_of(self.levels(x_BFD + gates.unsqueeze(2) * x_BFD)) for gates in all_gates], gates_BF


class IntTowerNetwork(HeadsNetwork):
    """`logit = sum over user levels of sum over user heads of max over item heads of <m_u, m_v>`.

    Item heads do not depend on the user: `score(user(batch), item(batch))` equals `forward(batch)`, so that item heads
    can be computed once and stored.

    Shape:
        forward: Batch of B rows -> [B]. `user` -> [B, L, H, P]; `item` -> [B, K, P]; `score`: both of these -> [B].
    """

    def __init__(self, settings: IntTower, layout: Layout) -> None:
        super().__init__()
        user, item = sides(layout, "IntTower")
        chosen, hidden = settings.chosen, settings.hidden
        first = [len(user) * settings.embedding_dim] if chosen.levels == "inputs" else []
        self.embedding = settings.make_embedding(layout)
        self.user_tower, self.item_tower = LevelTower(user, settings), LevelTower(item, settings)
        self.block = FEBlock(
            [*first, *hidden][: len(hidden)],
            hidden[-1],
            user_heads=settings.user_heads,
            item_heads=settings.item_heads,
            head_dim=settings.head_dim,
        )
        self.bias = nn.Parameter(torch.zeros(())) if chosen.output_bias else None
        self.levels, self.cir_weight, self.cir_reads = chosen.levels, chosen.cir_weight, chosen.cir_reads
        self.temperature = settings.temperature
        # Read by the training loop: CIR needs positives.
        self.binary_settings = ("cir_weight",) if chosen.cir_weight else ()

    def forward(self, batch: Batch) -> Tensor:
        x_BAD = self.embedding(batch)
        return self.score(self.user_heads_of(self.user_tower(x_BAD)), self.block.item(self.item_tower(x_BAD)[-1]))

    def forward_with_auxiliary(self, batch: Batch, label_B: Tensor) -> tuple[Tensor, Tensor]:
        """The logit [B], and `cir_weight` times the contrastive loss (a scalar) to add to the mean training loss."""
        x_BAD = self.embedding(batch)
        user, item = self.user_tower(x_BAD), self.item_tower(x_BAD)
        user_BLHP, item_BKP = self.user_heads_of(user), self.block.item(item[-1])
        logit_B = self.score(user_BLHP, item_BKP)
        if self.cir_weight == 0:
            return logit_B, logit_B.new_zeros(())
        compared = user[-1], item[-1]
        if self.cir_reads == "heads":
            compared = user_BLHP[:, -1].flatten(1), item_BKP.flatten(1)
        return logit_B, self.cir_weight * contrastive_loss(*compared, label_B, temperature=self.temperature)

    def user(self, batch: Batch) -> Tensor:
        return self.user_heads_of(self.user_tower(self.embedding(batch)))

    def item(self, batch: Batch) -> Tensor:
        return self.block.item(self.item_tower(self.embedding(batch))[-1])

    def score(self, user_BLHP: Tensor, item_BKP: Tensor) -> Tensor:
        logit_B = self.block.score(user_BLHP, item_BKP)
        return logit_B if self.bias is None else logit_B + self.bias

    def score_stored(self, user_BLHP: Tensor, items: StoredItems, rows: Tensor | None = None) -> Tensor:
        logit_BN = items.scores(user_BLHP.flatten(1, 2), rows)
        return logit_BN if self.bias is None else logit_BN + self.bias

    def user_heads_of(self, outputs: list[Tensor]) -> Tensor:
        """Head vectors [B, L, H, P] from the user tower's output."""
        return self.block.user(outputs[1:] if self.levels == "outputs" else outputs[:-1])

    def logit_terms(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        x_BAD = self.embedding(batch)
        (user_BLHP, *users_closed), user_gates = self.user_tower.gated(x_BAD, self.user_heads_of)
        (item_BKP, *items_closed), item_gates = self.item_tower.gated(x_BAD, lambda levels: self.block.item(levels[-1]))
        matches_BLH, matched_BLH = torch.einsum("blhp,bkp->blhk", user_BLHP, item_BKP).max(3)
        added = {"matches": matches_BLH}
        if self.bias is not None:
            added["bias"] = self.bias.expand(batch.size)
        logit_B = self.score(user_BLHP, item_BKP)
        return added, {
            "matched_head": matched_BLH,
            "user_gates": user_gates,
            "user_gate_effects": torch.stack([logit_B - self.score(closed, item_BKP) for closed in users_closed], 1),
            "item_gates": item_gates,
            "item_gate_effects": torch.stack([logit_B - self.score(user_BLHP, closed) for closed in items_closed], 1),
        }
