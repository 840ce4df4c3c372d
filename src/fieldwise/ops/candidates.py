"""Scoring one context with many candidates: pairs inside the context are computed only once.

AFM's attention is a softmax over pairs, some inside the context, the others with a candidate. The pairs inside are
summarised as one entry: the log-sum-exp of their scores, `m + log s`, and their weighted mean `u / s`, with m the
maximum score, s the sum of `exp(score - m)` and u the weighted sum. A softmax over that entry and the other pairs'
scores equals the softmax over all of them, and is as safe from overflow.

Letters: N candidates, C context fields, I candidates' fields, D embedding size, A attention size, P = I(I-1)/2 pairs.
"""

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from fieldwise.errors import ConfigError
from fieldwise.ops.backends import backend_of
from fieldwise.ops.fm import fm_second_order, pair_indices, pair_products
from fieldwise.ops.native import NATIVE, pointer, type_name

__all__ = ["fm_second_order_candidates", "pair_attention_candidates", "pair_attention_summary"]

HIDDEN_NUMBERS = 2**19  # numbers per block of candidates: 2 MB, so that a product's output stays in cache for the next


def fm_second_order_candidates(x_context_CD: Tensor, x_candidates_NID: Tensor) -> Tensor:
    """`fm_second_order` of the context's vectors with each candidate's; the context's sums are computed once.

    Shape:
        x_context_CD: [C, D]; x_candidates_NID: [N, I, D]; returns [N].

    >>> fm_second_order_candidates(torch.tensor([[1.0], [2.0]]), torch.tensor([[[3.0]], [[5.0]]]))
    tensor([11., 17.])
    """
    inside = fm_second_order(x_context_CD.unsqueeze(0))
    crossed_N = torch.mv(x_candidates_NID.sum(1), x_context_CD.sum(0))
    return fm_second_order(x_candidates_NID) + crossed_N + inside


def pair_attention_summary(x_CD: Tensor, W_AD: Tensor, b_A: Tensor, h_A: Tensor) -> tuple[Tensor, Tensor]:
    """AFM's pairs inside a context as one entry of the softmax: log-sum-exp of their scores, and their weighted mean.

    Shape:
        x_CD: [C, D]; W_AD: [A, D]; b_A, h_A: [A]; returns a scalar and [D], minus infinity and zeros without any
        pair.

    >>> pair_attention_summary(torch.tensor([[2.0], [3.0]]), torch.ones(1, 1), torch.zeros(1), torch.ones(1))
    (tensor(6.), tensor([6.]))
    """
    q_PD = pair_products(x_CD.unsqueeze(0), *_pairs(x_CD.shape[0], x_CD.device)).squeeze(0)
    e_P = torch.mv(torch.addmm(b_A, q_PD, W_AD.t()).relu(), h_A)
    return torch.logsumexp(e_P, 0), torch.mv(q_PD.t(), e_P.softmax(0))


def pair_attention_candidates(
    x_context_CD: Tensor, x_candidates_NID: Tensor, W_AD: Tensor, b_A: Tensor, h_A: Tensor
) -> Tensor:
    """AFM's pooled vectors: `pair_attention_pool` of the context's vectors with each candidate's, without dropout.

    A candidate costs C * I + I(I-1)/2 pairs; those inside the context are computed once for all candidates. The order
    of the fields does not matter. The native backend (`use_ops`) has no gradient: if one is needed, plain PyTorch
    runs.

    Args:
        x_context_CD: the context fields' vectors.
        x_candidates_NID: the candidates' fields' vectors; at least two fields together with the context's.
        W_AD: weight of the attention's hidden layer.
        b_A: its bias.
        h_A: weight of its output.

    Shape:
        x_context_CD: [C, D]; x_candidates_NID: [N, I, D]; W_AD: [A, D]; b_A, h_A: [A]; returns [N, D].

    >>> context, candidates = torch.tensor([[1.0], [2.0]]), torch.tensor([[[3.0]], [[5.0]]])
    >>> pair_attention_candidates(context, candidates, torch.zeros(4, 1), torch.zeros(4), torch.ones(4)).flatten()
    tensor([3.6667, 5.6667])
    """
    inputs = (x_context_CD, x_candidates_NID, W_AD, b_A, h_A)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    if backend_of(*inputs) == "native" and not differentiable and x_candidates_NID.shape[1]:
        return _pair_attention_native(*inputs)
    fields, (attention, size) = x_context_CD.shape[0], W_AD.shape
    inside, mean_D = pair_attention_summary(x_context_CD, W_AD, b_A, h_A)
    # W (x_c * x_i) is (W diag(x_c)) x_i: one product serves all context fields, and no cross pair is ever stored.
    crossing_DM = (x_context_CD.unsqueeze(1) * W_AD).view(fields * attention, size).t()
    crossing_M = b_A.repeat(fields)
    left_P, right_P = _pairs(x_candidates_NID.shape[1], x_candidates_NID.device)
    pooled = []
    for x_BID in torch.split(x_candidates_NID, _rows(x_candidates_NID.shape[1], fields * attention)):
        rows, own, _ = x_BID.shape
        hidden_RM = torch.addmm(crossing_M, x_BID.reshape(rows * own, size), crossing_DM).relu_()
        cross = torch.mv(hidden_RM.view(rows * own * fields, attention), h_A).view(rows, own * fields)
        q_BPD = pair_products(x_BID, left_P, right_P)
        hidden_NA = torch.addmm(b_A, q_BPD.reshape(rows * left_P.shape[0], size), W_AD.t()).relu_()
        among_BP = torch.mv(hidden_NA, h_A).view(rows, left_P.shape[0])
        a = torch.cat([inside.expand(rows, 1), cross, among_BP], 1).softmax(1)
        a_inside_B1, a_cross, a_among_BP = torch.split(a, [1, own * fields, left_P.shape[0]], 1)
        taken_BID = torch.matmul(a_cross.reshape(rows, own, fields), x_context_CD) * x_BID
        among_BD = torch.bmm(a_among_BP.unsqueeze(1), q_BPD).squeeze(1)
        pooled.append(a_inside_B1 * mean_D + taken_BID.sum(1) + among_BD)
    return torch.cat(pooled)


def _pair_attention_native(context: Tensor, x: Tensor, W: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """The kernel of `pair_attention_pool` on the pairs with a candidate's field, starting from the context's entry."""
    shapes = [list(t.shape) for t in (context, x, W, b, h)]
    (fields, size), (rows, own, _) = context.shape, x.shape
    hidden = W.shape[0]
    if fields + own < 2 or x.shape[2] != size or shapes[2:] != [[hidden, size], [hidden], [hidden]]:
        raise ConfigError(
            "pair attention takes a context [C, D], candidates [N, I, D], W [A, D], b [A], h [A] and at least two "
            f"fields, found {shapes}: correct the shapes"
        )
    inside, mean_D = pair_attention_summary(context, W, b, h)
    entry = torch.cat([inside.view(1), inside.new_ones(1), mean_D])
    operands = [t.contiguous() for t in (context, x, *_touching(fields, own), W, b, h, entry)]
    pooled_ND = x.new_empty(rows, size)
    sizes = (ctypes.c_int64 * 6)(rows, fields + own, size, W.shape[0], operands[2].shape[0], fields)
    name = f"fw_pair_attention_candidates_{type_name(context, x, W, b, h)}"
    NATIVE.call(name, sizes, *map(pointer, operands), pointer(pooled_ND))
    return pooled_ND


@lru_cache(maxsize=64)
def _touching(context: int, own: int) -> tuple[Tensor, Tensor]:
    """The pairs with a candidate's field; these follow the context's, so a pair's second field is one of them."""
    left_P, right_P = pair_indices(context + own)
    return left_P[right_P >= context], right_P[right_P >= context]


def _pairs(fields: int, device: torch.device) -> tuple[Tensor, Tensor]:
    left_P, right_P = pair_indices(fields)
    return left_P.to(device), right_P.to(device)


def _rows(fields: int, hidden: int) -> int:
    """The number of candidates per block."""
    return max(1, HIDDEN_NUMBERS // max(1, fields * hidden))
