"""IntTower's FE-Block: every level of the user tower is scored against the item tower's last level.

Letters: B batch, L levels, H user heads, K item heads, P size of a head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.layers.mlp import linear
from fieldwise.ops import max_sim
from fieldwise.ops.stored_items import StoredItems

__all__ = ["FEBlock"]


class FEBlock(nn.Module):
    """Projects levels to heads and scores them by MaxSim: `logit = sum over levels of S_i` (Li et al., CIKM 2022).

    Args:
        user_sizes: sizes of the user tower's levels.
        item_size: size of the item tower's last level.
        user_heads: H.
        item_heads: K, which may differ from H.
        head_dim: P.

    Shape:
        user: L tensors [B, user_sizes[i]] -> [B, L, H, P]; item: [B, item_size] -> [B, K, P];
        score: both of these -> [B].

    >>> block = FEBlock((4, 3), 5, user_heads=2, item_heads=3, head_dim=6)
    >>> user, item = block.user([torch.ones(7, 4), torch.ones(7, 3)]), block.item(torch.ones(7, 5))
    >>> user.shape, item.shape, block.score(user, item).shape
    (torch.Size([7, 2, 2, 6]), torch.Size([7, 3, 6]), torch.Size([7]))
    """

    def __init__(
        self, user_sizes: Sequence[int], item_size: int, *, user_heads: int, item_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.user_heads, self.item_heads, self.head_dim = user_heads, item_heads, head_dim
        # A logit is a sum of L * H maxima: the root of that scales both sides' initial weights, so that it is near 0 at
        # first.
        gain = (len(user_sizes) * user_heads) ** -0.5
        self.user_projections = nn.ModuleList(linear(size, user_heads * head_dim, gain=gain) for size in user_sizes)
        self.item_projection = linear(item_size, item_heads * head_dim, gain=gain)

    def user(self, levels: Sequence[Tensor]) -> Tensor:
        """Head vectors of all user levels [B, L, H, P]."""
        heads = [project(level) for project, level in zip(self.user_projections, levels, strict=True)]
        return torch.stack(heads, 1).view(-1, len(heads), self.user_heads, self.head_dim)

    def item(self, last: Tensor) -> Tensor:
        """Head vectors of the item's last level [B, K, P]."""
        heads: Tensor = self.item_projection(last)
        return heads.view(-1, self.item_heads, self.head_dim)

    def score(self, user_BLHP: Tensor, item_BKP: Tensor) -> Tensor:
        """The logit [B]: the sum of the levels' MaxSim scores."""
        # MaxSim sums over user heads, so the heads of all levels are concatenated and scored at once.
        return max_sim(user_BLHP.flatten(1, 2), item_BKP)

    @staticmethod
    def score_stored(user_BLHP: Tensor, items: StoredItems, rows: Tensor | None = None) -> Tensor:
        """The logits [B, N] of every user with every stored item, or with those of `rows` [R] -> [B, R]."""
        return items.scores(user_BLHP.flatten(1, 2), rows)
