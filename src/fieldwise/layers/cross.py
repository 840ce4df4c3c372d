"""Cross layers: the explicit, bounded-degree crosses of DCN and DCN V2.

Letters: B batch, N size of the crossed vector (all fields' vectors concatenated), K experts, R rank of an expert.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.layers.mlp import linear

__all__ = ["CrossMatrix", "CrossMixture", "CrossVector", "ExpertActivation", "Gate"]

Gate = Literal["softmax", "sigmoid", "constant"]
ExpertActivation = Literal["identity", "tanh", "hard_tanh", "relu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "hard_tanh": F.hardtanh, "relu": torch.relu}


class CrossVector(nn.Module):
    """DCN's cross layer, `x_{l+1} = x_0 (x_l . w) + b + x_l` (Wang et al., ADKDD 2017, Equation 3).

    Args:
        inputs: N.

    Shape:
        forward: x_0 and x_l, both [B, N] -> x_{l+1} [B, N]. `weight`, `bias`: [N].

    >>> layer = CrossVector(2)
    >>> _ = nn.init.ones_(layer.weight)
    >>> layer(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).tolist()
    [[10.0, 18.0]]
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs))
        self.bias = nn.Parameter(torch.zeros(inputs))
        nn.init.xavier_normal_(self.weight.detach().unsqueeze(0))

    def forward(self, x0_BN: Tensor, x_BN: Tensor) -> Tensor:
        """The next x [B, N]."""
        return torch.addcmul(x_BN + self.bias, x0_BN, torch.mv(x_BN, self.weight).unsqueeze(1))


class CrossMatrix(nn.Module):
    """DCN V2's cross layer, `x_{l+1} = x_0 * (W x_l + b) + x_l` (Wang et al., WWW 2021, Equation 1).

    With all rows of W equal to one w it is DCN's layer with the bias `x_0 * b`: "W = 1 w^T falls back to DCN" holds
    only if b is 0. Otherwise the two layers differ by `(x_0 - 1) * b`.

    Args:
        inputs: N.

    Shape:
        forward: x_0 and x_l, both [B, N] -> x_{l+1} [B, N]. `weight`: [N, N]; `bias`: [N].

    >>> layer = CrossMatrix(2)
    >>> _ = nn.init.ones_(layer.weight)
    >>> layer(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).tolist()
    [[10.0, 18.0]]
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, inputs))
        self.bias = nn.Parameter(torch.zeros(inputs))
        nn.init.xavier_normal_(self.weight)

    def forward(self, x0_BN: Tensor, x_BN: Tensor) -> Tensor:
        """The next x [B, N]."""
        return torch.addcmul(x_BN, x0_BN, F.linear(x_BN, self.weight, self.bias))


class CrossMixture(nn.Module):
    """DCN V2's mixture of low-rank cross layers (Wang et al., WWW 2021, Equations 2 to 4).

    `x_{l+1} = sum_k G_k(x_l) E_k(x_l) + x_l`, `E_k(x_l) = x_0 * (U_k g(C_k g(V_k^T x_l)) + b)`; b belongs to the layer,
    not to an expert. With `identity` for g there is no C, which U would absorb: Equation 3, and 2 with one expert.

    The experts are summed before the product with x_0, so that no [B, N] tensor per expert is stored.

    Args:
        inputs: N.
        rank: R of each expert; the experts together replace W by a matrix of rank R * K.
        experts: K.
        gate: G, of a linear map of x_l without bias: its `softmax` over the experts, its `sigmoid`, or
            `constant` 1. One expert has no gate: its softmax would always be 1.
        activation: g.

    Shape:
        forward: x_0 and x_l, both [B, N] -> x_{l+1} [B, N]. `gates`: x_l [B, N] -> [B, K].
        `U`, `V`: [K, N, R]; `C`: [K, R, R]; `gate.weight`: [K, N]; `bias`: [N].

    >>> layer = CrossMixture(6, rank=2, experts=3)
    >>> layer(torch.ones(5, 6), torch.ones(5, 6)).shape, layer.gates(torch.ones(5, 6)).shape
    (torch.Size([5, 6]), torch.Size([5, 3]))
    """

    def __init__(
        self, inputs: int, *, rank: int, experts: int = 1, gate: Gate = "softmax", activation: ExpertActivation = "tanh"
    ) -> None:
        super().__init__()
        self.gate_kind, self.activation = gate, activation
        self.U = nn.Parameter(torch.empty(experts, inputs, rank))
        self.V = nn.Parameter(torch.empty(experts, inputs, rank))
        self.C = None if activation == "identity" else nn.Parameter(torch.empty(experts, rank, rank))
        for matrices in (self.U, self.V, self.C):
            # Expert by expert: on the whole tensor, Xavier would take the first two axes for inputs and outputs.
            for matrix in () if matrices is None else matrices.detach():
                nn.init.xavier_normal_(matrix)
        self.gate = None if gate == "constant" or experts == 1 else linear(inputs, experts, bias=False)
        self.bias = nn.Parameter(torch.zeros(inputs))

    def forward(self, x0_BN: Tensor, x_BN: Tensor) -> Tensor:
        """The next x [B, N]."""
        z_BKR = torch.einsum("bn,knr->bkr", x_BN, self.V)
        if self.C is not None:
            act = ACTIVATIONS[self.activation]
            z_BKR = act(torch.einsum("bkr,ksr->bks", act(z_BKR), self.C))
        gates_BK = self.gates(x_BN)
        crossed_BN = torch.einsum("bkr,knr->bn", z_BKR * gates_BK.unsqueeze(2), self.U)
        return torch.addcmul(x_BN, x0_BN, crossed_BN + gates_BK.sum(1, keepdim=True) * self.bias)

    def gates(self, x_BN: Tensor) -> Tensor:
        """The weight of each expert [B, K]."""
        if self.gate is None:
            return x_BN.new_ones(x_BN.shape[0], self.U.shape[0])
        scores_BK: Tensor = self.gate(x_BN)
        return scores_BK.softmax(1) if self.gate_kind == "softmax" else scores_BK.sigmoid()
