"""Attention and other weights from a row's own vectors: AutoInt's, AFM's, DIN's, squeeze and excitation, FE-Block.

Letters: B batch, F fields, D size of a field's vector, P = F(F-1)/2 pairs, H heads, A total
attention size, N values of all histories, M histories. Of the FE-Block: L levels, H user heads, K
item heads, P size of a head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.layers.activations import Activation, Dice, make_activation
from fieldwise.layers.mlp import hidden_layers, linear
from fieldwise.ops import (
    field_attention,
    max_sim,
    pair_attention_pool,
    pair_attention_pool_plain,
    pair_indices,
)
from fieldwise.ops.interacting import Choices, Norm, Residual, finish_interacting, interacting


@dataclass(frozen=True, kw_only=True)
class InteractingOptions:
    """The differences between AutoInt's implementations in a layer; the defaults are the paper's.

    Args:
        relu_on_projections: ReLU on Q, K, V and the projected residual.
        bias: a bias in these projections, and in the output projection.
        scale: scores are divided by sqrt(A/H).
        residual: what is added to the heads: the input, `projected` or as it is (`identity`;
            projected where sizes differ), or nothing (`none`).
        norm: LayerNorm of the sum, `after_relu` or `before_relu`, with `norm_epsilon`; or `none`.
        norm_epsilon: LayerNorm's epsilon.
        output_projection: a linear map of the concatenated heads.
        output_relu: ReLU on the sum.
    """

    relu_on_projections: bool = False
    bias: bool = False
    scale: bool = False
    residual: Residual = "projected"
    norm: Norm = "none"
    norm_epsilon: float = 1e-5
    output_projection: bool = False
    output_relu: bool = True


PAPER = InteractingOptions()


class InteractingLayer(nn.Module):
    """Multi-head self-attention over the fields plus a residual (Song et al., CIKM 2019, Equations 5 to 8).

    The paper's has no bias, no ReLU on projections, plain scores, a projected residual and ReLU at
    the end.

    Args:
        inputs: D.
        attention_dim: A, divisible by `heads`.
        heads: H.
        options: differences from the paper's layer.
        dropout: dropout rate of the attention weights.

    Shape:
        forward: [B, F, D] -> [B, F, A]. `attend` also returns the weights [B, H, F, F].

    >>> InteractingLayer(8, 6, 2)(torch.ones(5, 3, 8)).shape
    torch.Size([5, 3, 6])
    """

    def __init__(
        self,
        inputs: int,
        attention_dim: int,
        heads: int,
        options: InteractingOptions = PAPER,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.options = options
        self.dropout = dropout
        must_project = options.residual == "identity" and inputs != attention_dim
        self.residual: Residual = "projected" if must_project else options.residual
        self.choices = Choices(
            heads=heads,
            residual=self.residual,
            norm=options.norm,
            relu_on_projections=options.relu_on_projections,
            scale=options.scale,
            output_relu=options.output_relu,
            epsilon=options.norm_epsilon,
            dropout=dropout,
        )
        # One weight [3A or 4A, D] holds Wq, Wk, Wv and Wres in this order: one matrix product
        # instead of four.
        self.parts = self.choices.parts
        self.projection = nn.Linear(inputs, self.parts * attention_dim, bias=options.bias)
        for part in self.projection.weight.detach().chunk(self.parts):
            nn.init.xavier_normal_(part)
        if options.bias:
            nn.init.zeros_(self.projection.bias)
        self.output: nn.Linear | None = None
        if options.output_projection:
            self.output = linear(attention_dim, attention_dim, bias=options.bias)
        self.norm: nn.LayerNorm | None = None
        if options.norm != "none":
            self.norm = nn.LayerNorm(attention_dim, eps=options.norm_epsilon)

    def forward(self, x_BFD: Tensor) -> Tensor:
        weight_ND = self.projection.weight
        bias_N = self.projection.bias
        if self.output is None:
            return interacting(
                x_BFD,
                weight_ND,
                bias_N,
                *self._norm_parameters(),
                choices=self.choices,
                training=self.training,
            )

        # the output projection stands between the op's heads and what follows them
        rows = weight_ND.shape[0] // self.parts * 3
        y_BFA = interacting(
            x_BFD,
            weight_ND[:rows],
            None if bias_N is None else bias_N[:rows],
            choices=self.choices._replace(residual="none", norm="none", output_relu=False),
            training=self.training,
        )
        added_BFA = x_BFD if self.residual == "identity" else None
        if self.residual == "projected":
            bias_A = None if bias_N is None else bias_N[rows:]
            added_BFA = F.linear(x_BFD, weight_ND[rows:], bias_A)
            if self.options.relu_on_projections:
                added_BFA = torch.relu(added_BFA)
        return self._finish(y_BFA, added_BFA)

    def attend(self, x_BFD: Tensor) -> tuple[Tensor, Tensor]:
        """The fields' new vectors [B, F, A] and the attention weights [B, H, F, F]."""
        projected = self.projection(x_BFD)
        projected = torch.relu(projected) if self.options.relu_on_projections else projected
        q, k, v, *rest = projected.chunk(self.parts, -1)
        y_BFA, weights_BHFF = field_attention(
            q,
            k,
            v,
            heads=self.heads,
            scale=self.options.scale,
            dropout=self.dropout,
            training=self.training,
        )
        added_BFA = x_BFD if self.residual == "identity" else None
        if self.residual == "projected":
            added_BFA = rest[0]
        return self._finish(y_BFA, added_BFA), weights_BHFF

    def _finish(self, y: Tensor, added: Tensor | None) -> Tensor:
        """Apply to the concatenated heads y, as configured, output projection, residual, normalization and ReLU."""
        chosen = self.options
        return finish_interacting(
            y if self.output is None else self.output(y),
            added,
            self._norm_parameters(),
            norm=chosen.norm,
            output_relu=chosen.output_relu,
            epsilon=chosen.norm_epsilon,
        )

    def _norm_parameters(self) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if self.norm is None else (self.norm.weight, self.norm.bias)


StartOfH = Literal["xavier", "standard_normal"]
StartOfB = Literal["zeros", "xavier"]


class PairAttention(nn.Module):
    """Attention-based pooling of the products of all pairs of fields (Xiao et al., IJCAI 2017, Equations 3 to 5).

    Parameters are named as in the paper: `W` [A, D], `b` [A], `h` [A].

    Args:
        num_fields: F, at least 2.
        dim: D.
        attention_dim: A.
        pair_dropout: dropout rate of the products' entries.
        attention_dropout: dropout rate of the weights.
        start_of_h: initial distribution of h: `xavier`, a normal of variance 2 / (A + 1), or
            `standard_normal`.
        start_of_b: initial value of b: `zeros`, or like W `xavier`, a normal of variance 2 / (D +
            A).

    Shape:
        forward: [B, F, D] -> [B, D]. `weights` -> [B, P], which sum to 1 over the P = F(F-1)/2
            pairs.

    >>> attention, x = PairAttention(3, 4, 8), torch.ones(2, 3, 4)
    >>> attention(x).shape, attention.weights(x).shape
    (torch.Size([2, 4]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        num_fields: int,
        dim: int,
        attention_dim: int,
        *,
        pair_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        start_of_h: StartOfH = "xavier",
        start_of_b: StartOfB = "zeros",
    ) -> None:
        super().__init__()
        self.pair_dropout = pair_dropout
        self.attention_dropout = attention_dropout
        self.W = nn.Parameter(torch.empty(attention_dim, dim))
        self.b = nn.Parameter(torch.zeros(attention_dim))
        self.h = nn.Parameter(torch.empty(attention_dim))
        nn.init.xavier_normal_(self.W)
        nn.init.normal_(
            self.h, std=math.sqrt(2.0 / (attention_dim + 1)) if start_of_h == "xavier" else 1.0
        )
        if start_of_b == "xavier":
            nn.init.normal_(self.b, std=math.sqrt(2.0 / (dim + attention_dim)))
        left_P, right_P = pair_indices(num_fields)
        self.left = nn.Buffer(left_P, persistent=False)
        self.right = nn.Buffer(right_P, persistent=False)

    def forward(self, x_BFD: Tensor) -> Tensor:
        return pair_attention_pool(
            x_BFD,
            self.left,
            self.right,
            self.W,
            self.b,
            self.h,
            pair_dropout=self.pair_dropout,
            attention_dropout=self.attention_dropout,
            training=self.training,
        )

    def weights(self, x_BFD: Tensor) -> Tensor:
        """The attention weights [B, P], pairs as `fieldwise.ops.pair_indices` orders them; never with dropout."""
        return pair_attention_pool_plain(x_BFD, self.left, self.right, self.W, self.b, self.h)[1]


Inputs = Literal["outer", "product", "difference", "difference_product"]


class ActivationUnit(nn.Module):
    """`a(h, c)`: an MLP over a history's value h, the candidate c and features of both (Section 4.3).

    Args:
        dim: D.
        hidden: sizes of the hidden layers; one linear unit without activation follows.
        inputs: as DIN's `attention_inputs`.
        activation: as DIN's `attention_activation`.
        softmax: as DIN's.
        scale: as DIN's.
        dropout: dropout rate of the hidden units.

    Shape:
        forward: h and c [N, D], own [N] (which values are this history's: Dice measures only
            these), segments [N] (which history of which row a value is of, in [0, count)) -> [N].
    """

    def __init__(
        self,
        dim: int,
        hidden: tuple[int, ...],
        *,
        inputs: Inputs = "outer",
        activation: Activation = "prelu",
        softmax: bool = False,
        scale: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.softmax = softmax
        self.factor = dim**-0.5 if scale else 1.0
        width = {"outer": 2 * dim + dim * dim, "product": 3 * dim, "difference": 3 * dim}.get(
            inputs, 4 * dim
        )
        layers = hidden_layers(width, hidden, partial(make_activation, activation), dropout=dropout)
        self.layers = nn.ModuleList(layers)
        # a constant has no effect on a softmax
        self.output = linear(hidden[-1], 1, bias=not softmax)

    def forward(
        self, h_ND: Tensor, c_ND: Tensor, own_N: Tensor, segments_N: Tensor, count: int
    ) -> Tensor:
        if self.inputs == "outer":
            # NOTE[DIFF]: the paper names "the out product" and gives no sizes; here all D * D
            # products.
            x = torch.cat([h_ND, (h_ND.unsqueeze(2) * c_ND.unsqueeze(1)).flatten(1), c_ND], 1)
        elif self.inputs == "difference_product":
            x = torch.cat([c_ND, h_ND, c_ND - h_ND, c_ND * h_ND], 1)
        else:
            x = torch.cat([h_ND, h_ND * c_ND if self.inputs == "product" else h_ND - c_ND, c_ND], 1)
        for layer in self.layers:
            assert isinstance(layer, nn.Sequential)
            for module in layer:
                x = module(x, own_N) if isinstance(module, Dice) else module(x)
        a_N: Tensor = self.output(x).squeeze(1) * self.factor
        if not self.softmax:
            return a_N
        with torch.no_grad():  # the softmax of a history does not depend on what is subtracted
            top_M = a_N.new_zeros(count).scatter_reduce(
                0, segments_N, a_N, "amax", include_self=False
            )
        e_N = torch.exp(a_N - top_M.index_select(0, segments_N))
        return e_N / a_N.new_zeros(count).index_add(0, segments_N, e_N).index_select(0, segments_N)


SENetActivation = Literal["relu", "sigmoid"]


class SENet(nn.Module):
    """`z_f = mean of x_f over D`, `a = act(W2 relu(W1 z))`, then `a_f x_f` (Huang et al., RecSys 2019).

    Neither map has a bias.

    Args:
        num_fields: F.
        reduction_ratio: r; the squeezed size H is F / r, rounded down, but at least 1.
        activation: of the weights: `relu`, or `sigmoid`, which keeps them between 0 and 1.

    Shape:
        forward: [B, F, D] -> [B, F, D]. `field_weights`: [B, F, D] -> [B, F].

    >>> SENet(7, reduction_ratio=3).reduce
    Linear(in_features=7, out_features=2, bias=False)
    """

    def __init__(
        self, num_fields: int, *, reduction_ratio: float = 3.0, activation: SENetActivation = "relu"
    ) -> None:
        super().__init__()
        size = max(1, int(num_fields / reduction_ratio))
        self.reduce = linear(num_fields, size, bias=False)
        self.expand = linear(size, num_fields, bias=False)
        self.activation = activation

    def field_weights(self, x_BFD: Tensor) -> Tensor:
        """How much of each field is kept [B, F]."""
        a_BF: Tensor = self.expand(torch.relu(self.reduce(x_BFD.mean(2))))
        return torch.relu(a_BF) if self.activation == "relu" else torch.sigmoid(a_BF)

    def forward(self, x_BFD: Tensor) -> Tensor:
        return self.field_weights(x_BFD).unsqueeze(2) * x_BFD


class LightSE(nn.Module):
    """`k = softmax(Linear(mean of x over D))` over the fields, then `x + k * x` (Li et al., CIKM 2022).

    Args:
        num_fields: F of the tower.
        bias: whether the linear map has a bias.

    Shape:
        forward: [B, F, D] -> [B, F, D].

    >>> LightSE(1)(torch.ones(2, 1, 4))[0]
    tensor([[2., 2., 2., 2.]], grad_fn=<SelectBackward0>)
    """

    def __init__(self, num_fields: int, *, bias: bool = True) -> None:
        super().__init__()
        self.excite = linear(num_fields, num_fields, bias=bias)

    def forward(self, x_BFD: Tensor) -> Tensor:
        return x_BFD + self.weights(x_BFD).unsqueeze(2) * x_BFD

    def weights(self, x_BFD: Tensor) -> Tensor:
        """The weights k [B, F], which sum to 1 over the fields."""
        return torch.softmax(self.excite(x_BFD.mean(2)), 1)


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
        self,
        user_sizes: Sequence[int],
        item_size: int,
        *,
        user_heads: int,
        item_heads: int,
        head_dim: int,
    ) -> None:
        super().__init__()
        self.user_heads = user_heads
        self.item_heads = item_heads
        self.head_dim = head_dim
        # A logit is a sum of L * H maxima: the root of that scales both sides' initial weights, so
        # that it is near 0 at first.
        gain = (len(user_sizes) * user_heads) ** -0.5
        self.user_projections = nn.ModuleList(
            linear(size, user_heads * head_dim, gain=gain) for size in user_sizes
        )
        self.item_projection = linear(item_size, item_heads * head_dim, gain=gain)

    def user(self, levels: Sequence[Tensor]) -> Tensor:
        """Head vectors of all user levels [B, L, H, P]."""
        heads = [
            project(level) for project, level in zip(self.user_projections, levels, strict=True)
        ]
        return torch.stack(heads, 1).view(-1, len(heads), self.user_heads, self.head_dim)

    def item(self, last: Tensor) -> Tensor:
        """Head vectors of the item's last level [B, K, P]."""
        heads: Tensor = self.item_projection(last)
        return heads.view(-1, self.item_heads, self.head_dim)

    def score(self, user_BLHP: Tensor, item_BKP: Tensor) -> Tensor:
        """The logit [B]: the sum of the levels' MaxSim scores."""
        # MaxSim sums over user heads, so the heads of all levels are concatenated and scored at
        # once.
        return max_sim(user_BLHP.flatten(1, 2), item_BKP)
