"""AFM's attention-based pooling of products of two fields: plain and native backends.

With one context and many candidates, pairs inside the context are computed only once. They are
summarised as one entry of the softmax: the log-sum-exp of their scores, `m + log s`, and their
weighted mean `u / s`, with m the maximum score, s the sum of `exp(score - m)` and u the weighted
sum. A softmax over that entry and the other pairs' scores equals the softmax over all of them, and
is as safe from overflow.

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size, A attention size, N candidates, C
context fields, I candidates' fields, of which P = I(I-1)/2 pairs.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fieldwise.errors import ConfigError
from fieldwise.ops.dropout import draw_seeds, keep_factors, keep_threshold
from fieldwise.ops.fm import pair_indices, pair_products
from fieldwise.ops.native import (
    NATIVE,
    backend_of,
    empty_like,
    float32_under_autocast,
    implement_with_gradient,
    type_name,
)


def pair_attention_pool(
    x_BFD: Tensor,
    left_P: Tensor,
    right_P: Tensor,
    W_AD: Tensor,
    b_A: Tensor,
    h_A: Tensor,
    *,
    pair_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    training: bool = False,
) -> Tensor:
    """AFM's attention-based pooling of pairs (Xiao et al., IJCAI 2017, Equations 3 to 5).

    `q_ij = x_i * x_j`, `e_ij = h . relu(W q_ij + b)`, `a = softmax of e over the pairs`, pooled
    `sum_ij a_ij q_ij`. The native backend computes the softmax with a running maximum and sum and
    stores neither all pairs' products nor hidden vectors; its backward pass recomputes them. It has
    no second derivative.

    For infinite numbers and overflows one backend may return NaN where the other returns another
    number: a bias of -inf (the gradient of h), scores beyond 1e154 in float64, scores beyond 1e19
    in float32.

    Args:
        x_BFD: the fields' vectors.
        left_P: the first field of every pair.
        right_P: the second field of every pair.
        W_AD: weight of the attention's hidden layer.
        b_A: its bias.
        h_A: weight of its output.
        pair_dropout: dropout rate of the products' entries.
        attention_dropout: dropout rate of the weights.
        training: whether dropout is on. Its seeds come from PyTorch's global generator; the masks
            are the same in every backend.

    Shape:
        x_BFD: [B, F, D]; left_P, right_P: [P], int64; W_AD: [A, D]; b_A, h_A: [A]; returns [B, D],
            zeros where P is 0.

    Errors:
        IndexError: a pair with an invalid field number.

    >>> from fieldwise.ops import pair_indices
    >>> x = torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> float(pair_attention_pool(x, *pair_indices(3), torch.zeros(4, 1), torch.zeros(4), torch.ones(4)))
    3.6666667461395264
    """
    drops = (pair_dropout, attention_dropout) if training else (0.0, 0.0)
    seeds = draw_seeds(2) if any(drops) else torch.zeros(2, dtype=torch.int64)
    if backend_of(x_BFD, W_AD, b_A, h_A) == "native" and left_P.shape[0]:
        return torch.ops.fieldwise.pair_attention_pool(
            x_BFD, left_P, right_P, W_AD, b_A, h_A, seeds, *drops
        )[0]
    x_BFD, W_AD, b_A, h_A = float32_under_autocast(x_BFD, W_AD, b_A, h_A)
    with torch.autocast(x_BFD.device.type, enabled=False):
        return pair_attention_pool_plain(x_BFD, left_P, right_P, W_AD, b_A, h_A, seeds, *drops)[0]


def pair_attention_pool_plain(
    x_BFD: Tensor,
    left_P: Tensor,
    right_P: Tensor,
    W_AD: Tensor,
    b_A: Tensor,
    h_A: Tensor,
    seeds: Tensor | None = None,
    pair_dropout: float = 0.0,
    attention_dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The reference implementation of `pair_attention_pool` in plain PyTorch; it also returns the weights.

    Arguments are those of `pair_attention_pool`, with the seeds of the dropouts of products and
    weights, int64 [2]; no dropout if they are omitted.

    Shape:
        returns the pooled vector [B, D] and the weights [B, P] before dropout, which sum to 1 over
            the pairs.

    >>> from fieldwise.ops import pair_indices
    >>> x = torch.ones(1, 3, 2)
    >>> pair_attention_pool_plain(x, *pair_indices(3), torch.zeros(4, 2), torch.zeros(4), torch.ones(4))[1]
    tensor([[0.3333, 0.3333, 0.3333]])
    """
    batch = x_BFD.shape[0]
    size = x_BFD.shape[2]
    pairs = left_P.shape[0]
    q_BPD = pair_products(x_BFD, left_P, right_P)
    if seeds is not None and pair_dropout > 0:
        keep = keep_factors(
            seeds[0].to(x_BFD.device), batch, pairs * size, pair_dropout, dtype=x_BFD.dtype
        )
        q_BPD = q_BPD * keep.view(batch, pairs, size)
    hidden_NA = torch.addmm(b_A, q_BPD.reshape(batch * pairs, size), W_AD.t()).relu()
    a_BP = torch.mv(hidden_NA, h_A).view(batch, pairs).softmax(1)
    kept_BP = a_BP
    if seeds is not None and attention_dropout > 0:
        keep = keep_factors(
            seeds[1].to(x_BFD.device), batch, pairs, attention_dropout, dtype=x_BFD.dtype
        )
        kept_BP = a_BP * keep
    return torch.bmm(kept_BP.unsqueeze(1), q_BPD).squeeze(1), a_BP


def _forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    x, left, _, W, b, h = operands = _operands(*inputs[:6])
    outputs = _fake(x)
    sizes, *dropped = _described(x, left, W, *inputs[6:9])
    NATIVE.call(
        f"fw_pair_attention_forward_{type_name(x, W, b, h)}", sizes, *operands, *dropped, *outputs
    )
    return outputs


def _backward(*inputs: Any) -> tuple[Tensor, ...]:
    x, left, _, W, b, h = operands = _operands(*inputs[:6])
    rest = [t.contiguous() for t in inputs[9:12]]
    grads = empty_like((x, W, b, h))
    sizes, *dropped = _described(x, left, W, *inputs[6:9])
    name = f"fw_pair_attention_backward_{type_name(x, W, b, h, *rest)}"
    NATIVE.call(name, sizes, *operands, *dropped, *rest, *grads)
    return grads


def _operands(
    x: Tensor, left: Tensor, right: Tensor, W: Tensor, b: Tensor, h: Tensor
) -> list[Tensor]:
    """The inputs after the checks that the kernels rely on: contiguous, matching sizes, valid pairs."""
    shapes = [list(t.shape) for t in (x, W, b, h, left, right)]
    size, hidden = (x.shape[-1], W.shape[0]) if x.dim() == 3 and W.dim() == 2 else (-1, -1)
    if (
        shapes[1:4] != [[hidden, size], [hidden], [hidden]]
        or left.dim() != 1
        or shapes[4] != shapes[5]
    ):
        raise ConfigError(
            f"pair attention takes x [B, F, D], W [A, D], b [A], h [A] and pairs [P] and [P], found {shapes}: correct "
            "the shapes"
        )
    for side in (left, right) if left.numel() else ():
        lowest, highest = (int(end) for end in side.aminmax())
        if lowest < 0 or highest >= x.shape[1]:
            raise IndexError(
                f"pairs must be of fields 0 to {x.shape[1] - 1}, found {lowest} to {highest}"
            )
    return [t.contiguous() for t in (x, left.long(), right.long(), W, b, h)]


def _described(
    x: Tensor, left: Tensor, W: Tensor, seeds: Tensor, *drops: float
) -> tuple[Any, Any, Any, Any]:
    """Sizes, seeds, thresholds and factors as C arrays."""
    thresholds = (ctypes.c_uint32 * 2)(*(keep_threshold(p) for p in drops))
    factors = (ctypes.c_double * 2)(*(1 / (1 - p) for p in drops))
    return (
        (*x.shape, W.shape[0], left.shape[0]),
        (ctypes.c_uint64 * 2)(*seeds.tolist()),
        thresholds,
        factors,
    )


def _fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], x.shape[2]), x.new_empty(x.shape[0], 2)


implement_with_gradient(
    "pair_attention_pool(Tensor x, Tensor left, Tensor right, Tensor W, Tensor b, Tensor h, Tensor seeds, "
    "float pair_dropout, float attention_dropout) -> (Tensor, Tensor)",
    _forward,
    _fake,
    _backward,
    into=(0, 3, 4, 5),
    keeps=(0, 1),
)


# numbers per block of candidates: 2 MB, so that a product's output stays in cache for the next
HIDDEN_NUMBERS = 2**19


def pool_context_pairs(
    x_CD: Tensor, W_AD: Tensor, b_A: Tensor, h_A: Tensor
) -> tuple[Tensor, Tensor]:
    """AFM's pairs inside a context as one entry of the softmax: log-sum-exp of their scores, and their weighted mean.

    Shape:
        x_CD: [C, D]; W_AD: [A, D]; b_A, h_A: [A]; returns a scalar and [D]: minus infinity and
            zeros without any pair.

    >>> pool_context_pairs(torch.tensor([[2.0], [3.0]]), torch.ones(1, 1), torch.zeros(1), torch.ones(1))
    (tensor(6.), tensor([6.]))
    """
    pairs = (side.to(x_CD.device) for side in pair_indices(x_CD.shape[0]))
    q_PD = pair_products(x_CD.unsqueeze(0), *pairs).squeeze(0)
    e_P = torch.mv(torch.addmm(b_A, q_PD, W_AD.t()).relu(), h_A)
    return torch.logsumexp(e_P, 0), torch.mv(q_PD.t(), e_P.softmax(0))


def pair_attention_candidates(
    x_context_CD: Tensor, x_candidates_NID: Tensor, W_AD: Tensor, b_A: Tensor, h_A: Tensor
) -> Tensor:
    """AFM's pooled vectors: `pair_attention_pool` of the context's vectors with each candidate's, without dropout.

    A candidate costs C * I + I(I-1)/2 pairs; those inside the context are computed once for all
    candidates. The order of the fields does not matter. The native backend (`use_ops`) has no
    gradient: if one is needed, plain PyTorch runs.

    Args:
        x_context_CD: the context fields' vectors.
        x_candidates_NID: the candidates' fields' vectors; at least two fields together with the
            context's.
        W_AD: weight of the attention's hidden layer.
        b_A: its bias.
        h_A: weight of its output.

    Shape:
        x_context_CD: [C, D]; x_candidates_NID: [N, I, D]; W_AD: [A, D]; b_A, h_A: [A];
            returns [N, D].

    >>> context, candidates = torch.tensor([[1.0], [2.0]]), torch.tensor([[[3.0]], [[5.0]]])
    >>> pair_attention_candidates(context, candidates, torch.zeros(4, 1), torch.zeros(4), torch.ones(4)).flatten()
    tensor([3.6667, 5.6667])
    """
    inputs = (x_context_CD, x_candidates_NID, W_AD, b_A, h_A)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    if backend_of(*inputs) == "native" and not differentiable and x_candidates_NID.shape[1]:
        return _pair_attention_native(*inputs)
    fields = x_context_CD.shape[0]
    (attention, size) = W_AD.shape
    inside, mean_D = pool_context_pairs(x_context_CD, W_AD, b_A, h_A)
    # W (x_c * x_i) is (W diag(x_c)) x_i: one product serves all context fields, and no cross pair
    # is ever stored.
    crossing_DM = (x_context_CD.unsqueeze(1) * W_AD).view(fields * attention, size).t()
    crossing_M = b_A.repeat(fields)
    candidate_fields = x_candidates_NID.shape[1]
    pooled = []
    left_P, right_P = (side.to(x_candidates_NID.device) for side in pair_indices(candidate_fields))
    for x_BID in torch.split(
        x_candidates_NID, max(1, HIDDEN_NUMBERS // max(1, candidate_fields * fields * attention))
    ):
        rows = x_BID.shape[0]
        hidden_RM = torch.addmm(
            crossing_M, x_BID.reshape(rows * candidate_fields, size), crossing_DM
        ).relu_()
        cross = torch.mv(hidden_RM.view(rows * candidate_fields * fields, attention), h_A).view(
            rows, candidate_fields * fields
        )
        q_BPD = pair_products(x_BID, left_P, right_P)
        hidden_NA = torch.addmm(b_A, q_BPD.reshape(rows * left_P.shape[0], size), W_AD.t()).relu_()
        among_BP = torch.mv(hidden_NA, h_A).view(rows, left_P.shape[0])
        a = torch.cat([inside.expand(rows, 1), cross, among_BP], 1).softmax(1)
        a_inside_B1, a_cross, a_among_BP = torch.split(
            a, [1, candidate_fields * fields, left_P.shape[0]], 1
        )
        taken_BID = (
            torch.matmul(a_cross.reshape(rows, candidate_fields, fields), x_context_CD) * x_BID
        )
        among_BD = torch.bmm(a_among_BP.unsqueeze(1), q_BPD).squeeze(1)
        pooled.append(a_inside_B1 * mean_D + taken_BID.sum(1) + among_BD)
    return torch.cat(pooled)


def _pair_attention_native(context: Tensor, x: Tensor, W: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """The kernel of `pair_attention_pool` on the pairs with a candidate's field, starting from the context's entry."""
    shapes = [list(t.shape) for t in (context, x, W, b, h)]
    (fields, size) = context.shape
    (rows, candidate_fields, _) = x.shape
    hidden = W.shape[0]
    if (
        fields + candidate_fields < 2
        or x.shape[2] != size
        or shapes[2:] != [[hidden, size], [hidden], [hidden]]
    ):
        raise ConfigError(
            "pair attention takes a context [C, D], candidates [N, I, D], W [A, D], b [A], h [A] and at least two "
            f"fields, found {shapes}: correct the shapes"
        )
    inside, mean_D = pool_context_pairs(context, W, b, h)
    entry = torch.cat([inside.view(1), inside.new_ones(1), mean_D])
    operands = [
        t.contiguous() for t in (context, x, *_touching(fields, candidate_fields), W, b, h, entry)
    ]
    pooled_ND = x.new_empty(rows, size)
    sizes = rows, fields + candidate_fields, size, hidden, operands[2].shape[0], fields
    NATIVE.call(
        f"fw_pair_attention_candidates_{type_name(context, x, W, b, h)}",
        sizes,
        *operands,
        pooled_ND,
    )
    return pooled_ND


@lru_cache(maxsize=64)
def _touching(context: int, candidate_fields: int) -> tuple[Tensor, Tensor]:
    """The pairs with a candidate's field; these follow the context's, so a pair's second field is one of them."""
    left_P, right_P = pair_indices(context + candidate_fields)
    return left_P[right_P >= context], right_P[right_P >= context]
