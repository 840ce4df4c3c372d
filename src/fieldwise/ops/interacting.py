"""Multi-head self-attention over the fields of a row, and AutoInt's attention layer as one op: plain and native.

Letters: B batch, F fields, D size of a field's vector, H heads, A total attention size of all
heads, N rows of the projections' weight: 4A with a projected residual, else 3A; K = A/H of one
head.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.ops.dropout import draw_seeds, keep_factors, keep_threshold
from fieldwise.ops.native import (
    NATIVE,
    backend_of,
    empty_like,
    float32_under_autocast,
    implement_with_gradient,
    plain_is_set,
    type_name,
)


def field_attention(
    q_BFA: Tensor,
    k_BFA: Tensor,
    v_BFA: Tensor,
    *,
    heads: int,
    scale: bool = False,
    dropout: float = 0.0,
    training: bool = False,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`softmax(Q K^T) V` of every head over the fields, heads concatenated (AutoInt, CIKM 2019, Equations 5 to 7).

    Args:
        q_BFA: projected queries.
        k_BFA: projected keys.
        v_BFA: projected values.
        heads: H, a divisor of A.
        scale: whether scores are divided by sqrt(A/H).
        dropout: dropout rate of the weights.
        training: whether dropout is on.
        seed: seed of the dropout, one int64; drawn if omitted. Element
            `(h * F + f) * F + g` of a row's mask applies to the weight of field g for f
            (`fieldwise.ops.dropout`).

    Shape:
        q_BFA, k_BFA, v_BFA: [B, F, A]; returns [B, F, A] and the weights [B, H, F, F] before
            dropout, whose last axis sums to 1.

    >>> x = torch.ones(1, 3, 4)
    >>> out, weights = field_attention(x, x, x, heads=2)
    >>> out.shape, weights[0, 0, 0]
    (torch.Size([1, 3, 4]), tensor([0.3333, 0.3333, 0.3333]))
    """
    batch, fields, size = q_BFA.shape
    q_BHFK = _split(q_BFA, heads)
    if scale:
        q_BHFK = q_BHFK * (1.0 / math.sqrt(size // heads))
    a_BHFF = torch.matmul(q_BHFK, _split(k_BFA, heads).transpose(2, 3)).softmax(3)
    kept_BHFF = a_BHFF
    if training and dropout > 0:
        seed = (draw_seeds(1)[0] if seed is None else seed).to(q_BFA.device)
        keep = keep_factors(seed, batch, heads * fields * fields, dropout, dtype=a_BHFF.dtype)
        kept_BHFF = a_BHFF * keep.view(a_BHFF.shape)
    out_BHFK = torch.matmul(kept_BHFF, _split(v_BFA, heads))
    return out_BHFK.transpose(1, 2).reshape(batch, fields, size), a_BHFF


def _split(x_BFA: Tensor, heads: int) -> Tensor:
    batch, fields, size = x_BFA.shape
    return x_BFA.view(batch, fields, heads, size // heads).transpose(1, 2)


Residual = Literal["none", "projected", "identity"]
Norm = Literal["none", "before_relu", "after_relu"]
# The native kernels use the numbers of both.
RESIDUALS: tuple[Residual, ...] = ("none", "projected", "identity")
NORMS: tuple[Norm, ...] = ("none", "before_relu", "after_relu")
# The fields' vectors, the projections' weight and bias, LayerNorm's weight and bias.
Operands = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


class Choices(NamedTuple):
    """What `interacting` computes, in the order of the native operator's arguments after the operands and the seed.

    Args:
        heads: H, a divisor of A.
        residual: `projected`, `identity` (x itself; D equals A) or `none`.
        norm: LayerNorm of the sum, `before_relu`, `after_relu` or `none`.
        relu_on_projections: ReLU on all projections.
        scale: whether scores are divided by sqrt(A/H).
        output_relu: ReLU on the sum.
        epsilon: LayerNorm's epsilon.
        dropout: dropout rate of the attention weights.
    """

    heads: int
    residual: Residual = "projected"
    norm: Norm = "none"
    relu_on_projections: bool = False
    scale: bool = False
    output_relu: bool = True
    epsilon: float = 1e-5
    dropout: float = 0.0

    @property
    def parts(self) -> int:
        """How many projections the weight has the rows of."""
        return 4 if self.residual == "projected" else 3

    def score_factor(self, size: int) -> float:
        """What the scores of keys of this size are multiplied by."""
        return 1.0 / math.sqrt(size) if self.scale else 1.0


def interacting(
    x_BFD: Tensor,
    weight_ND: Tensor,
    bias_N: Tensor | None = None,
    norm_weight_A: Tensor | None = None,
    norm_bias_A: Tensor | None = None,
    *,
    choices: Choices,
    training: bool = False,
) -> Tensor:
    """AutoInt's attention layer (Song et al., CIKM 2019, Equations 5 to 8), with its implementations' additions.

    Queries, keys, values and the residual are linear in x; the heads' `softmax(Q K^T) V` over the
    fields are concatenated, the residual is added, and LayerNorm and ReLU follow. The native
    backward pass recomputes projections and attention weights, and has no second derivative. Other
    devices use `scaled_dot_product_attention` without dropout. Under autocast the CPU computes in
    float32, but in bfloat16 products with the weight given AVX512-BF16.

    Args:
        x_BFD: the fields' vectors.
        weight_ND: the rows of W_query, W_key, W_value and, for a projected residual, W_res, in this
            order.
        bias_N: bias of the projections.
        norm_weight_A: LayerNorm's weight.
        norm_bias_A: LayerNorm's bias.
        choices: the differences between implementations.
        training: whether dropout is on. Its seed is from PyTorch's global generator; all backends
            have the same mask.

    Shape:
        x_BFD: [B, F, D]; weight_ND: [N, D]; bias_N: [N]; norm_weight_A, norm_bias_A: [A]; returns
            [B, F, A].

    Errors:
        ConfigError: sizes that do not fit together; an epsilon that is not above 0.

    >>> x = torch.tensor([[[1.0], [2.0]]])
    >>> interacting(x, torch.tensor([[0.0], [1.0], [1.0], [-1.0]]), choices=Choices(heads=1)).flatten()
    tensor([0.5000, 0.0000])
    """
    operands: Operands = x_BFD, weight_ND, bias_N, norm_weight_A, norm_bias_A
    if not training:
        choices = choices._replace(dropout=0.0)
    _check(operands, choices)
    if choices.norm == "none":
        operands = *operands[:3], None, None  # not used: neither has a gradient
    seed = draw_seeds(1) if choices.dropout else torch.zeros(1, dtype=torch.int64)
    if backend_of(*(t for t in operands if t is not None)) != "native" or x_BFD.shape[1] == 0:
        return _plain(operands, seed, choices)
    narrow = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    run: Callable[..., Tensor] = torch.ops.fieldwise.interacting
    return run(*operands, seed, *choices, NATIVE.bfloat16 and narrow)


def interacting_plain(
    operands: Operands, seed: Tensor, choices: Choices, *, fused: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The reference implementation of `interacting` in plain PyTorch; it also returns the weights.

    The dropout's seed is one int64 [1]. With `fused` it is PyTorch's own attention, without
    dropout, which keeps no weights.

    Shape:
        returns y [B, F, A] and the weights [B, H, F, F] before dropout, whose last axis sums to 1.

    >>> operands = torch.ones(1, 2, 3), torch.ones(6, 3), None, None, None
    >>> choices = Choices(heads=2, residual="none")
    >>> interacting_plain(operands, torch.zeros(1), choices)[1][0, 0]
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    x_BFD, weight_ND, bias_N, *normed = operands
    heads = choices.heads
    projected = F.linear(x_BFD, weight_ND, bias_N)
    if choices.relu_on_projections:
        projected = torch.relu(projected)
    q, k, v, *rest = projected.chunk(choices.parts, 2)
    weights_BHFF = None
    if fused:
        q, k, v = (x.view(*x.shape[:2], heads, -1).transpose(1, 2) for x in (q, k, v))
        factor = choices.score_factor(q.shape[3])
        y_BFA = F.scaled_dot_product_attention(q, k, v, scale=factor).transpose(1, 2).flatten(2)
    else:
        y_BFA, weights_BHFF = field_attention(
            q,
            k,
            v,
            heads=heads,
            scale=choices.scale,
            dropout=choices.dropout,
            training=choices.dropout > 0,
            seed=seed[0],
        )
    added = x_BFD if choices.residual == "identity" else None
    if rest:
        added = rest[0]
    y_BFA = finish_interacting(
        y_BFA,
        added,
        (normed[0], normed[1]),
        norm=choices.norm,
        output_relu=choices.output_relu,
        epsilon=choices.epsilon,
    )
    return y_BFA, weights_BHFF


def finish_interacting(
    y: Tensor,
    residual: Tensor | None,
    normed: tuple[Tensor | None, Tensor | None],
    *,
    norm: Norm,
    output_relu: bool,
    epsilon: float = 1e-5,
) -> Tensor:
    """The end of the layer, from the concatenated heads y [.., A]: add the residual, then optional LayerNorm and ReLU.

    `normed` is LayerNorm's weight and bias, [A] each.

    >>> finish_interacting(torch.ones(2), torch.tensor([1.0, -2.0]), (None, None), norm="none", output_relu=True)
    tensor([2., 0.])
    """
    if residual is not None:
        y = y + residual
    if norm == "before_relu":
        y = F.layer_norm(y, y.shape[-1:], *normed, epsilon)
    if output_relu:
        y = torch.relu(y)
    if norm == "after_relu":
        y = F.layer_norm(y, y.shape[-1:], *normed, epsilon)
    return y


def _plain(operands: Operands, seed: Tensor, choices: Choices) -> Tensor:
    on_cpu = operands[0].device.type == "cpu"
    if not on_cpu and not choices.dropout and not plain_is_set():
        return interacting_plain(operands, seed, choices, fused=True)[0]
    if not on_cpu or not torch.is_autocast_enabled("cpu"):
        return interacting_plain(operands, seed, choices)[0]
    single: Any = [None if t is None else float32_under_autocast(t)[0] for t in operands]
    with torch.autocast("cpu", enabled=False):
        return _plain(single, seed, choices)


def _check(operands: Operands, choices: Choices) -> None:
    """Check the sizes, which the native kernels rely on; the plain backend's errors would be less clear."""
    x, weight, bias, norm_weight, norm_bias = operands
    rows, dim = weight.shape
    heads = choices.heads
    norm = choices.norm
    size = rows // choices.parts
    if x.dim() != 3 or x.shape[2] != dim:
        raise ConfigError(
            f"the fields' vectors must be [B, F, {dim}], like the weight's columns, found {list(x.shape)}"
        )
    if heads < 1 or rows % (choices.parts * heads):
        found = f"{rows} rows and {heads} heads"
        raise ConfigError(
            f"the weight's rows must be {choices.parts} equal parts divisible by heads, found {found}"
        )
    if choices.residual == "identity" and size != dim:
        raise ConfigError(
            f"an identity residual needs as many outputs as inputs, found {size} and {dim}: project it"
        )
    if bias is not None and bias.shape != (rows,):
        raise ConfigError(
            f"the bias must have {rows} entries, one per row of the weight, found {list(bias.shape)}"
        )
    if norm != "none" and any(t is None or t.shape != (size,) for t in (norm_weight, norm_bias)):
        raise ConfigError(f"a norm needs a weight and a bias of {size} entries each")
    if norm != "none" and not choices.epsilon > 0:
        raise ConfigError(f"LayerNorm's epsilon must be above 0, found {choices.epsilon}")


def _forward(*inputs: Any) -> Tensor:
    operands, described, kind = _described(inputs)
    y = _fake(*inputs)
    NATIVE.call(f"fw_interacting_forward_{kind}", *described, *operands, y)
    return y


def _backward(*inputs: Any) -> tuple[Tensor, ...]:
    operands, described, kind = _described(inputs)
    rest = [t.contiguous() for t in inputs[15:]]
    grads = empty_like(inputs[:5])
    if Choices(*inputs[6:14]).norm == "none":  # without a norm the kernels write no gradient for it
        grads = *grads[:3], *(grad.zero_() for grad in grads[3:])
    filled = (grad if grad.numel() else None for grad in grads)
    NATIVE.call(f"fw_interacting_backward_{kind}", *described, *operands, *rest, *filled)
    return grads


def _described(inputs: Sequence[Any]) -> tuple[list[Tensor | None], tuple[Any, ...], str]:
    """The contiguous operands; sizes, numbers and the seed in C; the kernel's type."""
    operands = [None if t is None else t.contiguous() for t in inputs[:5]]
    x, weight = inputs[:2]
    seed = int(inputs[5])
    choices = Choices(*inputs[6:14])
    is_bfloat16 = inputs[14]
    _check(tuple(inputs[:5]), choices)
    size = weight.shape[0] // choices.parts
    sizes = (
        *x.shape,
        size,
        choices.heads,
        RESIDUALS.index(choices.residual),
        NORMS.index(choices.norm),
        int(choices.relu_on_projections),
        int(choices.output_relu),
        keep_threshold(choices.dropout) if choices.dropout else 0,
    )
    factor = choices.score_factor(size // choices.heads)
    numbers = (ctypes.c_double * 3)(factor, choices.epsilon, 1.0 / (1.0 - choices.dropout))
    kind = type_name(*(t for t in operands if t is not None))
    if is_bfloat16 and kind == "float":
        kind = "bfloat16"
    return operands, (sizes, numbers, ctypes.c_uint64(seed)), kind


def _fake(*inputs: Any) -> Tensor:
    x, weight = inputs[:2]
    return x.new_empty(*x.shape[:2], weight.shape[0] // Choices(*inputs[6:14]).parts)


implement_with_gradient(
    "interacting(Tensor x, Tensor weight, Tensor? bias, Tensor? norm_weight, Tensor? norm_bias, Tensor seed, "
    "int heads, str residual, str norm, bool relu_on_projections, bool scale, bool output_relu, float epsilon, "
    "float dropout, bool bfloat16) -> Tensor",
    _forward,
    _fake,
    _backward,
    into=range(5),
    keeps=(0,),
)
