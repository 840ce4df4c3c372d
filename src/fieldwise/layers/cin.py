"""xDeepFM's compressed interaction network.

Letters: B batch, F fields, D embedding size, M = B * D, I input maps of a layer, H output maps, J fields per chunk,
N = J * I.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = ["CIN", "CINActivation", "CINLayer"]

CINActivation = Literal["identity", "relu"]

PRODUCTS = 256  # columns of products per chunk: enough for a fast matrix product, few enough for the CPU caches


class CINLayer(nn.Module):
    """`y_h = sum_i sum_j W_jih x_i * x0_j (+ b_h)`, for every entry of D (Lian et al., KDD 2018, Equation 6).

    All products at once would need a tensor [M, F * I]. They are computed for a few fields j at a time, at most
    `PRODUCTS` columns (or I), and summed by the matrix product with those fields' weights. Training keeps them for the
    backward pass, but never the gradients of all of them at once.

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
        """The layer's maps [M, H]."""
        y_MH = x_MI.new_zeros(1) if self.bias is None else self.bias
        fields = torch.split(x0_MF, self.fields_at_once, 1)
        for x0_MJ, weight_JIH in zip(fields, torch.split(self.weight, self.fields_at_once), strict=True):
            products_MN = (x0_MJ.unsqueeze(2) * x_MI.unsqueeze(1)).flatten(1)
            y_MH = torch.addmm(y_MH, products_MN, weight_JIH.flatten(0, 1))
        return y_MH


class CIN(nn.Module):
    """Layers of maps, each crossed with the fields once more; the maps' sums over D, of all layers, are the output.

    Equations 6 and 7 of Lian et al., KDD 2018: `X^k = layer_k(X^{k-1}, X^0)`, `p^k_h = sum_d X^k_hd`, all p^k
    concatenated.

    Args:
        num_fields: F.
        sizes: number of maps of each layer.
        split_half: in every layer but the last, the first half of the maps are passed on and the second half are
            output; else all maps are both. All sizes but the last must then be even.
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
        self.split_half, self.activation = split_half, activation
        self.layers = nn.ModuleList()
        inputs, self.outputs = num_fields, sizes[-1]
        for size in sizes[:-1]:
            self.layers.append(CINLayer(num_fields, inputs, size, bias=bias))
            inputs = size // 2 if split_half else size
            self.outputs += inputs
        self.layers.append(CINLayer(num_fields, inputs, sizes[-1], bias=bias))

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The sums of all layers' maps [B, outputs]."""
        dim, last = x_BFD.shape[2], len(self.layers) - 1
        x0_MF = x_BFD.transpose(1, 2).flatten(0, 1)
        x_MI, pooled = x0_MF, []
        for k, layer in enumerate(self.layers):
            y_MH = layer(x_MI, x0_MF)
            if self.activation == "relu":
                y_MH = torch.relu(y_MH)
            x_MI, out_MH = y_MH.chunk(2, 1) if self.split_half and k < last else (y_MH, y_MH)
            pooled.append(out_MH.unflatten(0, (-1, dim)).sum(1))
        return torch.cat(pooled, 1)
