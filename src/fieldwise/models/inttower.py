"""IntTower (Li et al., CIKM 2022, arXiv 2210.09890): two interacting towers for pre-ranking.

Letters: B batch, F fields of a tower with vectors, N its raw numbers, D embedding size, L levels, H
user heads, K item heads, P size of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import MLP, FEBlock, LightSE, index_buffer
from fieldwise.layers.activations import Activation
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
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
DenseInputs = Literal["embedded", "raw"]


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """The differences between the sources; the defaults are the paper's.

    Args:
        levels: the input of a user level's projection: each layer's `outputs`, or its `inputs`, of
            which the first is the tower's input. Both are read after BatchNorm, ReLU and dropout.
        light_se_bias: whether Light-SE's linear map has a bias.
        cir_reads: the vectors that the contrastive loss compares: both towers' last `levels`, or
            the last level's `heads` with the item's, which must be equally many.
    """

    levels: Levels = "outputs"
    light_se_bias: bool = True
    output_bias: bool = False
    cir_weight: float = 0.1
    cir_reads: CIRReads = "levels"


AUTHORS = _Choices(
    levels="inputs", light_se_bias=False, output_bias=True, cir_weight=0.0, cir_reads="heads"
)
VARIANTS = {"paper": _Choices(), "authors": AUTHORS}
NO_ROW = -1


@register_model("inttower")
@dataclass(frozen=True, kw_only=True)
class IntTower(EmbeddingSettings):
    """Settings of IntTower: one tower for the user and context fields, one for the item fields.

    A setting that is None takes the variant's value.

    Args:
        variant: `paper`, or `authors` for their published code with its bugs: the user tower's last
            layer is not used in the score or the loss.
        hidden: sizes of both towers' layers; any number of them.
        activation: activation of the towers' hidden units (`fieldwise.layers.activations`).
        dropout: dropout rate of the towers' hidden units.
        batch_norm: BatchNorm after each of the towers' linear layers.
        user_heads: H of each user level.
        item_heads: K, which may differ from H.
        head_dim: P.
        output_bias: whether the logit has a bias (authors).
        cir_weight: alpha, the weight of the contrastive loss; authors: 0; the paper gives no value:
            tune it.
        temperature: tau of the contrastive loss; 0.07 in the authors' code; the paper gives no
            value.
        dense_inputs: how a tower reads numbers: `embedded`, a number times its field's vector,
            among the vectors that Light-SE weights, or `raw` (paper, authors): the encoded numbers
            follow the flattened vectors, and a missing number is 0, whatever the schema's `missing`
            says. Bins (`encoding`) are categories, and have vectors.
        init_std: standard deviation of the initial weights of the towers' hidden layers (authors:
            1e-4); Xavier's normal distribution if omitted.

    Errors:
        ConfigError: a setting out of range, or heads that cannot be compared; `build`: no field for
            the user tower, or none for the item tower; a tower of nothing but raw numbers.

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
    activation: Activation = "relu"
    dropout: Rate = 0.3
    batch_norm: bool = True
    user_heads: Size = 32
    item_heads: Size = 32
    head_dim: Size = 64
    output_bias: bool | None = None
    cir_weight: NonNegative | None = None
    temperature: Positive = 0.07
    dense_inputs: DenseInputs = "embedded"
    init_std: Positive | None = None

    def check(self) -> None:
        super().check()
        chosen = self.chosen
        if (
            chosen.cir_reads == "heads"
            and chosen.cir_weight > 0
            and self.user_heads != self.item_heads
        ):
            found = f"user_heads {self.user_heads} and item_heads {self.item_heads}"
            raise ConfigError(
                f"the variant {self.variant} with a cir_weight needs as many user heads as item heads, found {found}"
            )

    @property
    def chosen(self) -> _Choices:
        """The variant's choices, overridden by the settings given."""
        return choices(self, VARIANTS[self.variant])

    def build(self, layout: Layout) -> "IntTowerNetwork":
        """A network with fresh weights."""
        return IntTowerNetwork(self, layout)


class RawNumbers(nn.Module):
    """A tower's numbers as they are encoded, 0 for a missing one.

    Args:
        positions: positions of these fields of kind `value` in the layout.
        layout: the encoded fields.

    Shape:
        forward: Batch of B rows -> [B, N].
    """

    def __init__(self, positions: list[int], layout: Layout) -> None:
        super().__init__()
        singles = layout.single_positions
        fields = [layout.fields[i] for i in positions]
        # A field of one row has none for missing numbers.
        missing_rows = [f.row(0) if f.rows > 1 else NO_ROW for f in fields]
        self.id_columns = index_buffer([singles.index(i) for i in positions])
        self.value_columns = index_buffer([layout.number_columns[i].start for i in positions])
        self.missing_rows = index_buffer(missing_rows)

    def forward(self, batch: Batch) -> Tensor:
        is_missing_BN = batch.ids.index_select(1, self.id_columns) == self.missing_rows
        return batch.values.index_select(1, self.value_columns).masked_fill(is_missing_BN, 0.0)


class LevelTower(nn.Module):
    """One tower: its fields' vectors, weighted by Light-SE and flattened, pass an MLP; every layer's output is a level.

    NOTE[DIFF]: the paper appends a tower's dense values to the flattened vectors
    (`dense_inputs = "raw"`); here a numeric field is by default a field like any other, its value
    times a learned vector, so that Light-SE weights it and missing values have a vector.

    `inputs` is the size of the first layer's input.

    Shape:
        forward: all fields' vectors [B, all fields, D] and their batch -> the tower's input [B, F *
            D + N] and L levels [B, hidden[i]].
    """

    def __init__(self, side: str, positions: list[int], settings: IntTower, layout: Layout) -> None:
        super().__init__()
        is_raw = {
            i: settings.dense_inputs == "raw" and layout.fields[i].kind == "value"
            for i in positions
        }
        embedded = [i for i in positions if not is_raw[i]]
        raw = [i for i in positions if is_raw[i]]
        if not embedded:
            raise ConfigError(
                f"IntTower's {side} tower weights fields' vectors and needs a field that is no number where "
                'dense_inputs is "raw", found numbers alone: add a category, or set dense_inputs = "embedded"'
            )
        self.inputs = len(embedded) * settings.embedding_dim + len(raw)
        dropout = settings.dropout
        batch_norm = settings.batch_norm
        self.light_se = LightSE(len(embedded), bias=settings.chosen.light_se_bias)
        self.mlp = MLP(
            self.inputs,
            settings.hidden,
            dropout=dropout,
            batch_norm=batch_norm,
            activation=settings.activation,
        )
        if settings.init_std is not None:
            for layer in self.mlp.linear_layers():
                nn.init.normal_(layer.weight, std=settings.init_std)
        self.positions = index_buffer(embedded)
        self.raw_numbers = RawNumbers(raw, layout) if raw else None
        # numbers, without the fields' vectors: integrated gradients ask
        self.reads_rows = bool(raw)

    def forward(self, x_BAD: Tensor, batch: Batch) -> list[Tensor]:
        return self.levels(self.light_se(x_BAD.index_select(1, self.positions)), batch)

    def levels(self, x_BFD: Tensor, batch: Batch) -> list[Tensor]:
        """The first layer's input and every layer's output, from vectors that Light-SE has weighted."""
        first = x_BFD.flatten(1)
        if self.raw_numbers is not None:
            first = torch.cat([first, self.raw_numbers(batch).to(first.dtype)], 1)
        levels = [first]
        for layer in self.mlp.layers:
            levels.append(layer(levels[-1]))
        return levels

    def gated(
        self, x_BAD: Tensor, batch: Batch, heads_of: Callable[[list[Tensor]], Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """The side's heads, unchanged and then with each field's gate set to zero in turn, and the gates [B, F]."""
        x_BFD = x_BAD.index_select(1, self.positions)
        gates_BF = self.light_se.weights(x_BFD)
        place_F = torch.arange(gates_BF.shape[1], device=gates_BF.device)
        closed = [gates_BF * (place_F != field) for field in range(gates_BF.shape[1])]
        all_gates = gates_BF, *closed
        return [
            heads_of(self.levels(x_BFD + gates.unsqueeze(2) * x_BFD, batch)) for gates in all_gates
        ], gates_BF


class IntTowerNetwork(HeadsNetwork):
    """`logit = sum over user levels of sum over user heads of max over item heads of <m_u, m_v>`.

    Item heads do not depend on the user: `score(user(batch), item(batch))` equals `forward(batch)`,
    so that item heads can be computed once and stored.

    Shape:
        forward: Batch of B rows -> [B]. `user` -> [B, L, H, P]; `item` -> [B, K, P]; `score`: both
            of these -> [B].
    """

    def __init__(self, settings: IntTower, layout: Layout) -> None:
        super().__init__()
        user, item = sides(layout, "IntTower")
        chosen = settings.chosen
        hidden = settings.hidden
        self.embedding = settings.make_embedding(layout)
        self.user_tower = LevelTower("user", user, settings, layout)
        self.item_tower = LevelTower("item", item, settings, layout)
        first = [self.user_tower.inputs] if chosen.levels == "inputs" else []
        self.block = FEBlock(
            [*first, *hidden][: len(hidden)],
            hidden[-1],
            user_heads=settings.user_heads,
            item_heads=settings.item_heads,
            head_dim=settings.head_dim,
        )
        self.bias = nn.Parameter(torch.zeros(())) if chosen.output_bias else None
        self.levels = chosen.levels
        self.cir_weight = chosen.cir_weight
        self.cir_reads = chosen.cir_reads
        self.temperature = settings.temperature
        # Read by the training loop: CIR needs positives.
        self.binary_settings = ("cir_weight",) if chosen.cir_weight else ()

    def forward(self, batch: Batch) -> Tensor:
        x_BAD = self.embedding(batch)
        return self.score(
            self.user_heads_of(self.user_tower(x_BAD, batch)),
            self.block.item(self.item_tower(x_BAD, batch)[-1]),
        )

    def forward_with_auxiliary(self, batch: Batch, label_B: Tensor) -> tuple[Tensor, Tensor]:
        """The logit [B], and `cir_weight` times the contrastive loss (a scalar) to add to the mean training loss."""
        x_BAD = self.embedding(batch)
        user = self.user_tower(x_BAD, batch)
        item = self.item_tower(x_BAD, batch)
        user_BLHP = self.user_heads_of(user)
        item_BKP = self.block.item(item[-1])
        logit_B = self.score(user_BLHP, item_BKP)
        if self.cir_weight == 0:
            return logit_B, logit_B.new_zeros(())
        compared = user[-1], item[-1]
        if self.cir_reads == "heads":
            compared = user_BLHP[:, -1].flatten(1), item_BKP.flatten(1)
        return logit_B, self.cir_weight * contrastive_loss(
            *compared, label_B, temperature=self.temperature
        )

    def user(self, batch: Batch) -> Tensor:
        return self.user_heads_of(self.user_tower(self.embedding(batch), batch))

    def item(self, batch: Batch) -> Tensor:
        return self.block.item(self.item_tower(self.embedding(batch), batch)[-1])

    def score(self, user_BLHP: Tensor, item_BKP: Tensor) -> Tensor:
        logit_B = self.block.score(user_BLHP, item_BKP)
        return logit_B if self.bias is None else logit_B + self.bias

    def score_all(self, user_BLHP: Tensor, item_CKP: Tensor) -> Tensor:
        products = torch.einsum("blhp,ckp->bclhk", user_BLHP, item_CKP)
        logit_BC = products.amax(4).sum((2, 3))
        return logit_BC if self.bias is None else logit_BC + self.bias

    def score_stored(
        self, user_BLHP: Tensor, items: StoredItems, rows: Tensor | None = None
    ) -> Tensor:
        logit_BN = items.scores(user_BLHP.flatten(1, 2), rows)
        return logit_BN if self.bias is None else logit_BN + self.bias

    def user_heads_of(self, outputs: list[Tensor]) -> Tensor:
        """Head vectors [B, L, H, P] from the user tower's output."""
        return self.block.user(outputs[1:] if self.levels == "outputs" else outputs[:-1])

    def logit_terms(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        x_BAD = self.embedding(batch)
        (user_BLHP, *users_closed), user_gates = self.user_tower.gated(
            x_BAD, batch, self.user_heads_of
        )
        (item_BKP, *items_closed), item_gates = self.item_tower.gated(
            x_BAD, batch, lambda levels: self.block.item(levels[-1])
        )
        matches_BLH, matched_BLH = torch.einsum("blhp,bkp->blhk", user_BLHP, item_BKP).max(3)
        added = {"matches": matches_BLH}
        if self.bias is not None:
            added["bias"] = self.bias.expand(batch.size)
        logit_B = self.score(user_BLHP, item_BKP)
        return added, {
            "matched_head": matched_BLH,
            "user_gates": user_gates,
            "user_gate_effects": torch.stack(
                [logit_B - self.score(closed, item_BKP) for closed in users_closed], 1
            ),
            "item_gates": item_gates,
            "item_gate_effects": torch.stack(
                [logit_B - self.score(user_BLHP, closed) for closed in items_closed], 1
            ),
        }
