"""Explicit products of fields' vectors: bilinear ones, cross layers, xDeepFM's CIN, FinalNet's factorized layer.

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size. Of two streams: M and N their
sizes, H heads. Of cross layers: N size of the crossed vector (all fields' vectors concatenated), K
experts, R rank of an expert. Of the CIN: M = B * D, I input maps of a layer, H output maps, J
fields per chunk, N = J * I. Of the factorized layer: N factors.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.layers.mlp import linear
from fieldwise.ops import pair_indices

BilinearKind = Literal["all", "each", "interaction"]


class BilinearInteraction(nn.Module):
    """`p_ij = (x_i W) * x_j` for every pair i < j (Huang et al., RecSys 2019).

    Only the first field of a pair is mapped, so the result depends on the order of fields: no
    change of W compensates for another order, unless W is diagonal.

    Parameter `W`: [D, D] of `all`, [F - 1, D, D] of `each`, [P, D, D] of `interaction`.

    NOTE[DIFF]: the paper counts F matrices of `each`. The last field is never the first of a pair,
    so its matrix would never be used; it is omitted here.

    Args:
        num_fields: F, at least 2.
        dim: D.
        kind: `all` pairs share one W, pairs of `each` first field share one, or every `interaction`
            has its own.

    Shape:
        forward: [B, F, D] -> [B, P, D], pairs as `fieldwise.ops.pair_indices` orders them.

    >>> BilinearInteraction(3, 4, "each")(torch.ones(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, num_fields: int, dim: int, kind: BilinearKind = "interaction") -> None:
        super().__init__()
        self.kind = kind
        self.firsts = num_fields - 1
        left_P, right_P = pair_indices(num_fields)
        sizes = {"all": (), "each": (self.firsts,), "interaction": (len(left_P),)}
        self.W = nn.Parameter(torch.empty(*sizes[kind], dim, dim))
        nn.init.normal_(self.W, std=dim**-0.5)  # Xavier's normal of every D x D matrix
        self.left = nn.Buffer(left_P, persistent=False)
        self.right = nn.Buffer(right_P, persistent=False)

    def forward(self, x_BFD: Tensor) -> Tensor:
        if self.kind == "interaction":
            mapped_BPD = torch.einsum("bpd,pde->bpe", x_BFD.index_select(1, self.left), self.W)
        else:
            first_BGD = x_BFD[:, : self.firsts]
            mapped = (
                first_BGD @ self.W
                if self.kind == "all"
                else torch.einsum("bgd,gde->bge", first_BGD, self.W)
            )
            mapped_BPD = mapped.index_select(1, self.left)
        return mapped_BPD * x_BFD.index_select(1, self.right)


class BilinearFusion(nn.Module):
    """`b + w1 . o1 + w2 . o2 + sum over heads h of o1_h^T W_h o2_h` (Mao et al., AAAI 2023).

    Head h reads the h-th of H equal parts of either stream.

    NOTE[DIFF]: the authors' code has two biases, one with w1 and one with w2, of which only the sum
    matters; here there is one, of `w1`.

    Args:
        sizes: M and N.
        heads: H, a divisor of both; 0 omits the products.

    Shape:
        forward: [B, M] and [B, N] -> [B]. `W`: [H, M / H, N / H].

    >>> BilinearFusion((6, 4), heads=2)(torch.ones(3, 6), torch.ones(3, 4)).shape
    torch.Size([3])
    """

    def __init__(self, sizes: tuple[int, int], *, heads: int = 1) -> None:
        super().__init__()
        size1, size2 = sizes
        self.w1 = linear(size1, 1)
        self.w2 = linear(size2, 1, bias=False)
        self.W = nn.Parameter(torch.empty(heads, size1 // heads, size2 // heads)) if heads else None
        if self.W is not None:
            # Initialised like a linear unit on all products: Xavier's normal distribution.
            nn.init.normal_(self.W, std=math.sqrt(2.0 / (self.W.numel() + 1)))

    def forward(self, one_BM: Tensor, two_BN: Tensor) -> Tensor:
        logit_B: Tensor = (self.w1(one_BM) + self.w2(two_BN)).squeeze(1)
        if self.W is None:
            return logit_B
        one_BHM = one_BM.view(-1, *self.W.shape[:2])
        mapped = torch.einsum("bhm,hmn->bhn", one_BHM, self.W)
        return logit_B + (mapped.flatten(1) * two_BN).sum(1)


Gate = Literal["softmax", "sigmoid", "constant"]
ExpertActivation = Literal["identity", "tanh", "hard_tanh", "relu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "hard_tanh": F.hardtanh,
    "relu": torch.relu,
}


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
        return torch.addcmul(x_BN + self.bias, x0_BN, torch.mv(x_BN, self.weight).unsqueeze(1))


class CrossMatrix(nn.Module):
    """DCN V2's cross layer, `x_{l+1} = x_0 * (W x_l + b) + x_l` (Wang et al., WWW 2021, Equation 1).

    With all rows of W equal to one w it is DCN's layer with the bias `x_0 * b`: "W = 1 w^T falls
    back to DCN" holds only if b is 0. Otherwise the two layers differ by `(x_0 - 1) * b`.

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
        return torch.addcmul(x_BN, x0_BN, F.linear(x_BN, self.weight, self.bias))


class CrossMixture(nn.Module):
    """DCN V2's mixture of low-rank cross layers (Wang et al., WWW 2021, Equations 2 to 4).

    `x_{l+1} = sum_k G_k(x_l) E_k(x_l) + x_l`, `E_k(x_l) = x_0 * (U_k g(C_k g(V_k^T x_l)) + b)`; b
    belongs to the layer, not to an expert. With `identity` for g there is no C, which U would
    absorb: Equation 3, and 2 with one expert.

    The experts are summed before the product with x_0, so that no [B, N] tensor per expert is
    stored.

    Args:
        inputs: N.
        rank: R of each expert; the experts together replace W by a matrix of rank R * K.
        experts: K.
        gate: G, of a linear map of x_l without bias: its `softmax` over the experts, its `sigmoid`,
            or `constant` 1. One expert has no gate: its softmax would always be 1.
        activation: g.

    Shape:
        forward: x_0 and x_l, both [B, N] -> x_{l+1} [B, N]. `gates`: x_l [B, N] -> [B, K].
        `U`, `V`: [K, N, R]; `C`: [K, R, R]; `gate.weight`: [K, N]; `bias`: [N].

    >>> layer = CrossMixture(6, rank=2, experts=3)
    >>> layer(torch.ones(5, 6), torch.ones(5, 6)).shape, layer.gates(torch.ones(5, 6)).shape
    (torch.Size([5, 6]), torch.Size([5, 3]))
    """

    def __init__(
        self,
        inputs: int,
        *,
        rank: int,
        experts: int = 1,
        gate: Gate = "softmax",
        activation: ExpertActivation = "tanh",
    ) -> None:
        super().__init__()
        self.gate_kind = gate
        self.activation = activation
        self.U = nn.Parameter(torch.empty(experts, inputs, rank))
        self.V = nn.Parameter(torch.empty(experts, inputs, rank))
        self.C = (
            None if activation == "identity" else nn.Parameter(torch.empty(experts, rank, rank))
        )
        for matrices in (self.U, self.V, self.C):
            # Expert by expert: on the whole tensor, Xavier would take the first two axes for inputs
            # and outputs.
            for matrix in () if matrices is None else matrices.detach():
                nn.init.xavier_normal_(matrix)
        self.gate = (
            None if gate == "constant" or experts == 1 else linear(inputs, experts, bias=False)
        )
        self.bias = nn.Parameter(torch.zeros(inputs))

    def forward(self, x0_BN: Tensor, x_BN: Tensor) -> Tensor:
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


CINActivation = Literal["identity", "relu"]

# columns of products per chunk: enough for a fast matrix product, few enough for the CPU caches
PRODUCTS = 256


class CINLayer(nn.Module):
    """`y_h = sum_i sum_j W_jih x_i * x0_j (+ b_h)`, for every entry of D (Lian et al., KDD 2018, Equation 6).

    All products at once would need a tensor [M, F * I]. They are computed for a few fields j at a
    time, at most `PRODUCTS` columns (or I), and summed by the matrix product with those fields'
    weights. Training keeps them for the backward pass, but never the gradients of all of them at
    once.

    Args:
        num_fields: F.
        inputs: I.
        outputs: H.
        bias: whether there is a b.

    Shape:
        forward: x [M, I] and x0 [M, F] -> [M, H]. `weight`: [F, I, H]; `bias`: [H].
    """

    def __init__(self, num_fields: int, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_fields, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.fields_at_once = max(1, PRODUCTS // inputs)
        # Xavier's standard deviation, for a linear map of all F * I products.
        nn.init.normal_(self.weight, std=(2.0 / (num_fields * inputs + outputs)) ** 0.5)

    def forward(self, x_MI: Tensor, x0_MF: Tensor) -> Tensor:
        y_MH = x_MI.new_zeros(1) if self.bias is None else self.bias
        fields = torch.split(x0_MF, self.fields_at_once, 1)
        for x0_MJ, weight_JIH in zip(
            fields, torch.split(self.weight, self.fields_at_once), strict=True
        ):
            products_MN = (x0_MJ.unsqueeze(2) * x_MI.unsqueeze(1)).flatten(1)
            y_MH = torch.addmm(y_MH, products_MN, weight_JIH.flatten(0, 1))
        return y_MH


class CIN(nn.Module):
    """Layers of maps, each crossed with the fields once more; the maps' sums over D, of all layers, are the output.

    Equations 6 and 7 of Lian et al., KDD 2018: `X^k = layer_k(X^{k-1}, X^0)`,
    `p^k_h = sum_d X^k_hd`, all p^k concatenated.

    Args:
        num_fields: F.
        sizes: number of maps of each layer.
        split_half: in every layer but the last, the first half of the maps are passed on and the
            second half are output; else all maps are both. All sizes but the last must then be
            even.
        activation: of the maps: `identity` (the paper) or `relu`.
        bias: whether every map has a bias.

    Shape:
        forward: [B, F, D] -> [B, outputs].

    >>> CIN(3, (8, 6), split_half=True)(torch.ones(5, 3, 4)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        num_fields: int,
        sizes: Sequence[int],
        *,
        split_half: bool = False,
        activation: CINActivation = "identity",
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.split_half = split_half
        self.activation = activation
        self.layers = nn.ModuleList()
        inputs = num_fields
        self.outputs = sizes[-1]
        for size in sizes[:-1]:
            self.layers.append(CINLayer(num_fields, inputs, size, bias=bias))
            inputs = size // 2 if split_half else size
            self.outputs += inputs
        self.layers.append(CINLayer(num_fields, inputs, sizes[-1], bias=bias))

    def forward(self, x_BFD: Tensor) -> Tensor:
        dim = x_BFD.shape[2]
        last = len(self.layers) - 1
        x0_MF = x_BFD.transpose(1, 2).flatten(0, 1)
        x_MI = x0_MF
        pooled = []
        for k, layer in enumerate(self.layers):
            y_MH = layer(x_MI, x0_MF)
            if self.activation == "relu":
                y_MH = torch.relu(y_MH)
            x_MI, out_MH = y_MH.chunk(2, 1) if self.split_half and k < last else (y_MH, y_MH)
            pooled.append(out_MH.unflatten(0, (-1, dim)).sum(1))
        return torch.cat(pooled, 1)


FactorResidual = Literal["concat", "sum"]
FactorActivation = Literal["none", "relu", "sigmoid"]


class FactorizedInteraction(nn.Module):
    """`h_1 = z_1`, `h_n = h_{n-1} * act(z_n)`, `z_n = W_n x + b_n` for n = 1 to N (Zhu et al., SIGIR 2023).

    With one factor it is a linear layer. `concat` concatenates `h_1 ... h_N`, each of size outputs
    / N, and has as many weights as a linear layer; `sum` adds them, each of size outputs, and has N
    times as many.

    Args:
        inputs: size of the input.
        outputs: size of the output; divisible by `factors` for `concat`.
        factors: N.
        residual: `concat` or `sum`.
        activation: activation of the factors z_2 to z_N.

    Shape:
        forward: [B, inputs] -> [B, outputs].

    >>> FactorizedInteraction(3, 4)(torch.ones(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        factors: int = 2,
        residual: FactorResidual = "concat",
        activation: FactorActivation = "none",
    ) -> None:
        super().__init__()
        self.factors = factors
        self.residual = residual
        # One weight holds W_1 to W_N in this order: one matrix product instead of N.
        self.linear = linear(inputs, outputs if residual == "concat" else factors * outputs)
        known = {"none": nn.Identity, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}
        self.activation: nn.Module = known[activation]()

    def forward(self, x: Tensor) -> Tensor:
        h, *others = self.linear(x).chunk(self.factors, 1)
        results = [h]
        for z in others:
            h = h * self.activation(z)
            results.append(h)
        return torch.cat(results, 1) if self.residual == "concat" else torch.stack(results).sum(0)
