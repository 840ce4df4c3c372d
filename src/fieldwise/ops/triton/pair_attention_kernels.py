"""AFM's pair attention kernels: a program processes rows one by one, and a row's pairs in square tiles.

A tile is T by T fields: its products are an outer product of two small blocks of x, and its part of x's gradient two
sums, so no pair is gathered or scattered and nothing is added atomically. `slots` [F, F] holds the number of pair
(i, j), or -1; tiles without a pair are skipped. Sums are in float32, products are IEEE.

Letters: F fields, D embedding size, A attention size, P pairs, T fields of a tile, TT = T * T, N tiles along F.
"""

import triton
import triton.language as tl

from fieldwise.ops.triton.keep_kernels import keep_factors, row_key

__all__ = ["forward_kernel", "row_kernel", "weight_kernel"]

LOWEST = tl.constexpr(-3.0e38)  # finite, so that a first maximum of -inf does not cause NaN
# Suffix 0: dropout of products, 1: of weights. Values that differ between calls are not compiled into a kernel.
OF_PRODUCTS = ["low_0", "high_0", "threshold_0", "factor_0"]
OF_BOTH = [*OF_PRODUCTS, "low_1", "high_1", "threshold_1", "factor_1"]


@triton.jit(do_not_specialize=OF_BOTH)
def forward_kernel(
    x_BFD, slots_FF, W_AD, b_A, h_A, pooled_BD, stats_B2, F, D, A, low_0, high_0, low_1, high_1, threshold_0,
    threshold_1, factor_0, factor_1, DROP_0: tl.constexpr, DROP_1: tl.constexpr, T: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_A: tl.constexpr,
):  # fmt: skip
    """One row per program: a running maximum m, sum s and weighted sum u of the products."""
    row = tl.program_id(0).to(tl.int64)
    x_FD = x_BFD + row * F * D
    key_0, key_1 = row_key(row, low_0, high_0), row_key(row, low_1, high_1)
    d = tl.arange(0, BLOCK_D)
    m = tl.full((), LOWEST, tl.float32)
    s = tl.full((), 0.0, tl.float32)
    u_D = tl.zeros([BLOCK_D], tl.float32)
    for i in range(0, F, T):
        left_TD = _fields(x_FD, i, F, D, T, BLOCK_D)
        for j in range(0, F, T):
            p_TT = _slots(slots_FF, i, j, F, T)
            if tl.max(p_TT, 0) >= 0:
                right_TD = _fields(x_FD, j, F, D, T, BLOCK_D)
                q_TTD, _ = _products(left_TD, right_TD, p_TT, key_0, threshold_0, factor_0, D, DROP_0, T, BLOCK_D)
                e_TT = _scores(q_TTD, p_TT, W_AD, b_A, h_A, D, A, T, BLOCK_D, BLOCK_A)
                top = tl.maximum(m, tl.max(e_TT, 0))
                shrink = tl.exp(m - top)
                w_TT = tl.where(p_TT >= 0, tl.exp(e_TT - top), 0.0)
                m = top
                s = s * shrink + tl.sum(w_TT, 0)
                if DROP_1:
                    w_TT *= keep_factors(key_1, p_TT, threshold_1, factor_1)
                u_D = u_D * shrink + tl.sum(w_TT[:, None] * q_TTD, 0)
    tl.store(pooled_BD + row * D + d, u_D / s, mask=d < D)
    tl.store(stats_B2 + row * 2, m)
    tl.store(stats_B2 + row * 2 + 1, 1.0 / s)


@triton.jit(do_not_specialize=OF_BOTH)
def row_kernel(
    x_BFD, slots_FF, W_AD, b_A, h_A, pooled_BD, stats_B2, grad_BD, gx_BFD, ge_BP, F, D, A, P, low_0, high_0, low_1,
    high_1, threshold_0, threshold_1, factor_0, factor_1, DROP_0: tl.constexpr, DROP_1: tl.constexpr, T: tl.constexpr,
    N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    """One row per program: the gradient of x, and those of the scores for `weight_kernel`."""
    row = tl.program_id(0).to(tl.int64)
    x_FD = x_BFD + row * F * D
    key_0, key_1 = row_key(row, low_0, high_0), row_key(row, low_1, high_1)
    d = tl.arange(0, BLOCK_D)
    n_N = tl.arange(0, N)
    g_D = tl.load(grad_BD + row * D + d, mask=d < D, other=0.0)
    # Sum over pairs of a weight times its gradient, which the softmax subtracts from every score's gradient.
    mean = tl.sum(g_D * tl.load(pooled_BD + row * D + d, mask=d < D, other=0.0), 0)
    m, share = tl.load(stats_B2 + row * 2), tl.load(stats_B2 + row * 2 + 1)
    gx_NTD = tl.zeros([N, T, BLOCK_D], tl.float32)
    for i in range(0, F, T):
        left_TD = _fields(x_FD, i, F, D, T, BLOCK_D)
        g_left_TD = tl.zeros([T, BLOCK_D], tl.float32)
        for j in range(0, F, T):
            p_TT = _slots(slots_FF, i, j, F, T)
            if tl.max(p_TT, 0) >= 0:
                right_TD = _fields(x_FD, j, F, D, T, BLOCK_D)
                q_TTD, keep = _products(left_TD, right_TD, p_TT, key_0, threshold_0, factor_0, D, DROP_0, T, BLOCK_D)
                e_TT = _scores(q_TTD, p_TT, W_AD, b_A, h_A, D, A, T, BLOCK_D, BLOCK_A)
                a_TT = tl.where(p_TT >= 0, tl.exp(e_TT - m) * share, 0.0)
                along_TT = tl.sum(q_TTD * g_D[None, :], 1)
                w_TT = a_TT
                if DROP_1:
                    keep_TT = keep_factors(key_1, p_TT, threshold_1, factor_1)
                    w_TT *= keep_TT
                    along_TT *= keep_TT
                ge_TT = tl.where(p_TT >= 0, a_TT * (along_TT - mean), 0.0)
                tl.store(ge_BP + row * P + p_TT, ge_TT, mask=p_TT >= 0)
                gq_TTD = w_TT[:, None] * g_D[None, :]
                for first in range(0, A, BLOCK_A):
                    hidden, h, W = _hidden(q_TTD, W_AD, b_A, h_A, first, D, A, BLOCK_D, BLOCK_A)
                    back = tl.where(hidden <= 0, 0.0, h[None, :] * ge_TT[:, None])
                    gq_TTD += tl.dot(back, W, input_precision="ieee")
                if DROP_0:
                    gq_TTD *= keep
                gq_TTD = tl.where(p_TT[:, None] >= 0, gq_TTD, 0.0)
                gq = tl.reshape(gq_TTD, [T, T, BLOCK_D])
                g_left_TD += tl.sum(gq * right_TD[None, :, :], 1)
                g_right_TD = tl.sum(gq * left_TD[:, None, :], 0)
                gx_NTD += tl.where((n_N == j // T)[:, None, None], g_right_TD[None, :, :], 0.0)
        gx_NTD += tl.where((n_N == i // T)[:, None, None], g_left_TD[None, :, :], 0.0)
    f_NT = (n_N * T)[:, None] + tl.arange(0, T)[None, :]
    at = f_NT[:, :, None] * D + d[None, None, :]
    tl.store(gx_BFD + row * F * D + at, gx_NTD, mask=(f_NT[:, :, None] < F) & (d[None, None, :] < D))


@triton.jit(do_not_specialize=OF_PRODUCTS)
def weight_kernel(
    x_BFD, slots_FF, W_AD, b_A, h_A, ge_BP, gW_SAD, gb_SA, gh_SA, B, F, D, A, P, low_0, high_0, threshold_0, factor_0,
    DROP_0: tl.constexpr, T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    """One slice of the rows and one block of A per program: the slice's part of the gradients of W, b and h."""
    part, first = tl.program_id(0), tl.program_id(1) * BLOCK_A
    d, a = tl.arange(0, BLOCK_D), first + tl.arange(0, BLOCK_A)
    gW_AD = tl.zeros([BLOCK_A, BLOCK_D], tl.float32)
    gb_A = tl.zeros([BLOCK_A], tl.float32)
    gh_A = tl.zeros([BLOCK_A], tl.float32)
    for number in range(part, B, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + number
        x_FD = x_BFD + row * F * D
        key_0 = row_key(row, low_0, high_0)
        for i in range(0, F, T):
            left_TD = _fields(x_FD, i, F, D, T, BLOCK_D)
            for j in range(0, F, T):
                p_TT = _slots(slots_FF, i, j, F, T)
                if tl.max(p_TT, 0) >= 0:
                    right_TD = _fields(x_FD, j, F, D, T, BLOCK_D)
                    q_TTD, _ = _products(left_TD, right_TD, p_TT, key_0, threshold_0, factor_0, D, DROP_0, T, BLOCK_D)
                    ge_TT = tl.load(ge_BP + row * P + p_TT, mask=p_TT >= 0, other=0.0)
                    hidden, h, _ = _hidden(q_TTD, W_AD, b_A, h_A, first, D, A, BLOCK_D, BLOCK_A)
                    back = tl.where(hidden <= 0, 0.0, h[None, :] * ge_TT[:, None])
                    gW_AD += tl.dot(tl.trans(back), q_TTD, input_precision="ieee")
                    gb_A += tl.sum(back, 0)
                    gh_A += tl.sum(hidden * ge_TT[:, None], 0)
    at = part.to(tl.int64) * A + a
    tl.store(gW_SAD + at[:, None] * D + d[None, :], gW_AD, mask=(a[:, None] < A) & (d[None, :] < D))
    tl.store(gb_SA + at, gb_A, mask=a < A)
    tl.store(gh_SA + at, gh_A, mask=a < A)


@triton.jit
def _fields(x_FD, first, F, D, T: tl.constexpr, BLOCK_D: tl.constexpr):
    """T fields of a row, zeros beyond the last."""
    f, d = first + tl.arange(0, T), tl.arange(0, BLOCK_D)
    return tl.load(x_FD + f[:, None] * D + d[None, :], mask=(f[:, None] < F) & (d[None, :] < D), other=0.0)


@triton.jit
def _slots(slots_FF, i, j, F, T: tl.constexpr):
    """The pairs of a tile [TT], -1 if there is none."""
    left, right = i + tl.arange(0, T), j + tl.arange(0, T)
    inside = (left[:, None] < F) & (right[None, :] < F)
    return tl.reshape(tl.load(slots_FF + left[:, None] * F + right[None, :], mask=inside, other=-1), [T * T])


@triton.jit
def _products(
    left_TD, right_TD, p_TT, key, threshold, factor, D, DROP: tl.constexpr, T: tl.constexpr, BLOCK_D: tl.constexpr
):
    """The products of a tile [TT, D] after dropout, zeros without a pair, and dropout's factors."""
    q_TTD = tl.reshape(left_TD[:, None, :] * right_TD[None, :, :], [T * T, BLOCK_D])
    keep = 1.0
    if DROP:
        keep = keep_factors(key, p_TT[:, None] * D + tl.arange(0, BLOCK_D)[None, :], threshold, factor)
        q_TTD *= keep
    return tl.where(p_TT[:, None] >= 0, q_TTD, 0.0), keep


@triton.jit
def _hidden(q_TTD, W_AD, b_A, h_A, first, D, A, BLOCK_D: tl.constexpr, BLOCK_A: tl.constexpr):
    """A block of the hidden vectors [TT, A] after the ReLU, which preserves NaN, with its h [A] and W [A, D]."""
    a, d = first + tl.arange(0, BLOCK_A), tl.arange(0, BLOCK_D)
    W = tl.load(W_AD + a[:, None] * D + d[None, :], mask=(a[:, None] < A) & (d[None, :] < D), other=0.0)
    b, h = tl.load(b_A + a, mask=a < A, other=0.0), tl.load(h_A + a, mask=a < A, other=0.0)
    pre = tl.dot(q_TTD, tl.trans(W), input_precision="ieee") + b[None, :]
    return tl.where((pre <= 0) | (a[None, :] >= A), 0.0, pre), h, W


@triton.jit
def _scores(
    q_TTD, p_TT, W_AD, b_A, h_A, D, A, T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_A: tl.constexpr
):  # fmt: skip
    """The scores of a tile's pairs [TT], the lowest number without a pair."""
    e_TT = tl.zeros([T * T], tl.float32)
    for first in range(0, A, BLOCK_A):
        hidden, h, _ = _hidden(q_TTD, W_AD, b_A, h_A, first, D, A, BLOCK_D, BLOCK_A)
        e_TT += tl.sum(hidden * h[None, :], 1)
    return tl.where(p_TT >= 0, e_TT, LOWEST)
