"""IntTower (Li et al., CIKM 2022, arXiv 2210.09890): two towers that still interact, for pre-ranking.

Letters: B batch, F fields of a tower, D embedding size, L levels, H user heads, K item heads, P size of a head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.layers import MLP, FEBlock, FieldEmbedding, LightSE
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import check_at_least, check_positive, check_shares, check_sizes

__all__ = ["IntTower", "IntTowerNetwork", "contrastive_loss"]


@dataclass(frozen=True, kw_only=True)
class IntTower:
    """Settings of IntTower: a tower of the user and context fields, and one of the item fields.

    Args:
        embedding_dim: D.
        hidden: sizes of both towers' layers; any number of them.
        dropout: share of the towers' hidden units dropped.
        batch_norm: BatchNorm after each of the towers' linear layers.
        user_heads: H of each user level.
        item_heads: K, which may differ from H.
        head_dim: P.
        head_bias: whether the projections to heads have a bias.
        light_se_bias: whether Light-SE's linear map has a bias.
        cir_weight: alpha, the weight of the contrastive loss; the paper's could not be found: tune it.
        temperature: tau of the contrastive loss; likewise.
        embedding_std: deviation of the embeddings' starting values.

    Errors:
        ConfigError: a setting out of range; `build`: no field for the user tower, or none for the item tower.

    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> IntTower(embedding_dim=4, hidden=(8,), user_heads=2, item_heads=1, head_dim=3).build(layout).block
    FEBlock(
      (user_projections): ModuleList(
        (0): Linear(in_features=8, out_features=6, bias=True)
      )
      (item_projection): Linear(in_features=8, out_features=3, bias=True)
    )
    """

    embedding_dim: int = 32
    hidden: tuple[int, ...] = (300, 300, 128)
    dropout: float = 0.3
    batch_norm: bool = True
    user_heads: int = 32
    item_heads: int = 32
    head_dim: int = 64
    head_bias: bool = True
    light_se_bias: bool = True
    cir_weight: float = 0.1
    temperature: float = 0.07
    embedding_std: float = 0.01

    def __post_init__(self) -> None:
        sizes = {"embedding_dim": self.embedding_dim, "head_dim": self.head_dim}
        check_at_least(1, **sizes, user_heads=self.user_heads, item_heads=self.item_heads)
        check_sizes("hidden", self.hidden)
        check_shares(dropout=self.dropout)
        check_positive(temperature=self.temperature, embedding_std=self.embedding_std)
        check_positive(zero=True, cir_weight=self.cir_weight)

    def build(self, layout: Layout) -> "IntTowerNetwork":
        """A network with fresh weights."""
        user = sorted(layout.positions(role="user") + layout.positions(role="context"))
        item = layout.positions(role="item")
        if not user or not item:
            side, needed = ("user", "user or context") if not user else ("item", "item")
            raise ConfigError(f"IntTower's {side} tower needs a field of role {needed}, found none: set fields' roles")
        return IntTowerNetwork(
            embedding=FieldEmbedding(layout, self.embedding_dim, std=self.embedding_std),
            user_tower=self._tower(user),
            item_tower=self._tower(item),
            block=FEBlock(
                self.hidden,
                self.hidden[-1],
                user_heads=self.user_heads,
                item_heads=self.item_heads,
                head_dim=self.head_dim,
                bias=self.head_bias,
            ),
            cir_weight=self.cir_weight,
            temperature=self.temperature,
        )

    def _tower(self, positions: list[int]) -> "Tower":
        return Tower(
            positions,
            LightSE(len(positions), bias=self.light_se_bias),
            MLP(len(positions) * self.embedding_dim, self.hidden, dropout=self.dropout, batch_norm=self.batch_norm),
        )


class Tower(nn.Module):
    """One side: its fields' vectors, weighted by Light-SE, flattened, through an MLP whose every output is a level.

    NOTE[DIFF]: the paper joins a tower's dense values to the flattened vectors as they are; here a numeric field
    is a field like any other, its value times a learned vector, so that Light-SE sees it and missing ones are held.

    Shape:
        forward: all fields' vectors [B, all fields, D] -> L levels [B, hidden[i]].
    """

    positions: Tensor

    def __init__(self, positions: list[int], light_se: LightSE, mlp: MLP) -> None:
        super().__init__()
        self.light_se, self.mlp = light_se, mlp
        self.register_buffer("positions", torch.tensor(positions, dtype=torch.int64), persistent=False)

    def forward(self, x_BAD: Tensor) -> list[Tensor]:
        """The levels, first to last: outputs of the layers, never their inputs."""
        x_BFD = self.light_se(x_BAD.index_select(1, self.positions))
        return self.mlp.levels(x_BFD.flatten(1))


class IntTowerNetwork(nn.Module):
    """`logit = sum over user levels of sum over user heads of max over item heads of <m_u, m_v>`.

    Item heads do not depend on the user: `score(user_heads(batch), item_heads(batch))` equals `forward(batch)`, so
    that item heads can be computed once and stored.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(
        self,
        *,
        embedding: FieldEmbedding,
        user_tower: Tower,
        item_tower: Tower,
        block: FEBlock,
        cir_weight: float,
        temperature: float,
    ) -> None:
        super().__init__()
        self.embedding, self.user_tower, self.item_tower, self.block = embedding, user_tower, item_tower, block
        self.cir_weight, self.temperature = cir_weight, temperature

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
        return self._levels_and_logit(batch)[2]

    def forward_with_auxiliary(self, batch: Batch, label_B: Tensor) -> tuple[Tensor, Tensor]:
        """The logit [B], and `cir_weight` times the contrastive loss (a scalar) to add to the mean training loss."""
        user_BE, item_BE, logit_B = self._levels_and_logit(batch)
        if self.cir_weight == 0:
            return logit_B, logit_B.new_zeros(())
        return logit_B, self.cir_weight * contrastive_loss(user_BE, item_BE, label_B, temperature=self.temperature)

    def user_heads(self, batch: Batch) -> Tensor:
        """Head vectors of the users [B, L, H, P]; item fields are not read beyond the gather."""
        return self.block.user(self.user_tower(self.embedding(batch)))

    def item_heads(self, batch: Batch) -> Tensor:
        """Head vectors of the items [B, K, P]; user and context fields are not read beyond the gather."""
        return self.block.item(self.item_tower(self.embedding(batch))[-1])

    def score(self, user_BLHP: Tensor, item_BKP: Tensor) -> Tensor:
        """The logit [B] of stored head vectors, row by row."""
        return self.block.score(user_BLHP, item_BKP)

    def _levels_and_logit(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        x_BAD = self.embedding(batch)
        user_levels, item_levels = self.user_tower(x_BAD), self.item_tower(x_BAD)
        logit_B = self.score(self.block.user(user_levels), self.block.item(item_levels[-1]))
        return user_levels[-1], item_levels[-1], logit_B


def contrastive_loss(user_BE: Tensor, item_BE: Tensor, label_B: Tensor, *, temperature: float) -> Tensor:
    """CIR: InfoNCE over a batch's positive rows, with cosine similarity (Li et al., CIKM 2022).

    For a positive row r: `-log(exp(c_rr) / sum over all rows s of the batch of exp(c_rs))`, c_rs = cos(u_r, v_s) / tau.
    The numerator is the row's own pair; the denominator pairs its user with the item of every row, positive or not,
    its own included. The mean over positive rows; 0 without one.

    Args:
        user_BE: the user tower's last level.
        item_BE: the item tower's last level.
        label_B: positive rows are those above 0.
        temperature: tau.

    Shape:
        user_BE, item_BE: [B, E]; label_B: [B]; returns a scalar.

    >>> same = torch.eye(2)
    >>> round(float(contrastive_loss(same, same, torch.tensor([1.0, 0.0]), temperature=1.0)), 4)
    0.3133
    """
    positive_B = (label_B > 0).to(user_BE.dtype)
    # The temperature divides the smaller operand: the product has B * B entries.
    scores_BB = (F.normalize(user_BE, dim=1) / temperature) @ F.normalize(item_BE, dim=1).t()
    loss_B = scores_BB.logsumexp(1) - scores_BB.diagonal()
    return (loss_B * positive_B).sum() / positive_B.sum().clamp(min=1)
