"""MaxSim kernels: tiles of products whose maxima are kept; products are not stored. Float32 sums, IEEE products.

Letters: B batch, H user heads, K item heads, P size of a head, W words of 32 item heads; U users and N stored items.
"""

import triton
import triton.language as tl

__all__ = ["backward_kernel", "forward_kernel", "stored_kernel"]

WORD = tl.constexpr(32)  # item heads per word of bits


@triton.jit
def forward_kernel(
    user_BHP, item_BKP, scores_B, wins_BHW, H, K, P, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """One row per program: its score, and as bits the item heads that reach each user head's maximum."""
    row = tl.program_id(0).to(tl.int64)
    user_HP, item_KP = user_BHP + row * H * P, item_BKP + row * K * P
    words = tl.cdiv(K, WORD)
    wins_HW = wins_BHW + row * H * words
    bit = tl.arange(0, WORD)
    total = tl.full((), 0.0, tl.float32)
    for h in range(0, H, BLOCK_H):
        head = h + tl.arange(0, BLOCK_H)
        best = tl.full([BLOCK_H], float("-inf"), tl.float32)
        since = tl.zeros([BLOCK_H], tl.int32)  # the block in which the maximum was found: earlier bits are invalid
        broken = tl.zeros([BLOCK_H], tl.int32)
        for k in range(0, K, BLOCK_K):
            s = _products(user_HP, item_KP, h, k, H, K, P, BLOCK_H, BLOCK_K, BLOCK_P)
            top = tl.max(s, 1)
            since = tl.where(top > best, k, since)
            best = tl.maximum(best, top)
            broken = tl.maximum(broken, tl.max((s != s).to(tl.int32), 1))
            won = ((s == best[:, None]) & ((k + tl.arange(0, BLOCK_K))[None, :] < K)).to(tl.int32)
            bits = tl.sum(tl.reshape(won, [BLOCK_H, BLOCK_K // WORD, WORD]) << bit[None, None, :], 2)
            at, inside = _words(head, k, H, words, BLOCK_K)
            tl.store(wins_HW + at, bits, mask=inside)
        tl.debug_barrier()  # invalid bits may be written by another thread than the one that overwrites them
        for k in range(0, K, BLOCK_K):
            at, inside = _words(head, k, H, words, BLOCK_K)
            void = (broken > 0) | (k < since)
            tl.store(wins_HW + at, tl.zeros([BLOCK_H, BLOCK_K // WORD], tl.int32), mask=inside & void[:, None])
        # Unlike PyTorch's, the maximum here ignores NaN.
        total += tl.sum(tl.where(head < H, tl.where(broken > 0, float("nan"), best), 0.0), 0)
    tl.store(scores_B + row, total)


@triton.jit
def backward_kernel(
    user_BHP, item_BKP, wins_BHW, grad_B, gu_BHP, gi_BKP, H, K, P, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """One row and one block of P per program. Equal maxima share a head's gradient; a head without a maximum (NaN)
    gives NaN to all, as in PyTorch.
    """  # noqa: D205
    row = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * BLOCK_P
    user_HP, item_KP = user_BHP + row * H * P, item_BKP + row * K * P
    gu_HP, gi_KP = gu_BHP + row * H * P, gi_BKP + row * K * P
    wins_HW = wins_BHW + row * H * tl.cdiv(K, WORD)
    grad = tl.load(grad_B + row)
    for h in range(0, H, BLOCK_H):
        g_HP = tl.zeros([BLOCK_H, BLOCK_P], tl.float32)
        for k in range(0, K, BLOCK_K):
            share_HK = _shares(wins_HW, grad, h, k, H, K, BLOCK_H, BLOCK_K, BLOCK_W)
            g_HP += tl.dot(share_HK, _heads(item_KP, k, p, K, P, BLOCK_K, BLOCK_P), input_precision="ieee")
        _store(gu_HP, g_HP, h, p, H, P, BLOCK_H, BLOCK_P)
    for k in range(0, K, BLOCK_K):
        g_KP = tl.zeros([BLOCK_K, BLOCK_P], tl.float32)
        for h in range(0, H, BLOCK_H):
            share_KH = tl.trans(_shares(wins_HW, grad, h, k, H, K, BLOCK_H, BLOCK_K, BLOCK_W))
            g_KP += tl.dot(share_KH, _heads(user_HP, h, p, H, P, BLOCK_H, BLOCK_P), input_precision="ieee")
        _store(gi_KP, g_KP, k, p, K, P, BLOCK_K, BLOCK_P)


@triton.jit
def stored_kernel(
    user_UHP, item_NKP, rows_C, user_scale_UH, item_scale_N, scores_UC, H, K, P, C, ROWS: tl.constexpr,
    BYTES: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """A block of candidates and one user per program. Bytes are multiplied as integers and scaled after the maximum;
    other items are read as stored and multiplied as float32.
    """  # noqa: D205
    user = tl.program_id(1).to(tl.int64)
    user_HP = user_UHP + user * H * P
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    n = c.to(tl.int64)
    if ROWS:
        n = tl.load(rows_C + c, mask=c < C, other=0).to(tl.int64)
    total_C = tl.zeros([BLOCK_C], tl.float32)
    for h in range(0, H, BLOCK_H):
        head = h + tl.arange(0, BLOCK_H)
        best = tl.full([BLOCK_C, BLOCK_H], float("-inf"), tl.float32)
        broken = tl.zeros([BLOCK_C, BLOCK_H], tl.int32)
        for k in range(0, K, BLOCK_K):
            at = k + tl.arange(0, BLOCK_K)
            item = tl.reshape(n[:, None] * K * P + at[None, :] * P, [BLOCK_C * BLOCK_K])
            inside = tl.reshape((c[:, None] < C) & (at[None, :] < K), [BLOCK_C * BLOCK_K])
            sums = tl.zeros([BLOCK_C * BLOCK_K, BLOCK_H], tl.int32 if BYTES else tl.float32)
            for first in range(0, P, BLOCK_P):
                p = first + tl.arange(0, BLOCK_P)
                there = inside[:, None] & (p[None, :] < P)
                v = tl.load(item_NKP + item[:, None] + p[None, :], mask=there, other=0)
                u = _heads(user_HP, h, first, H, P, BLOCK_H, BLOCK_P)
                if BYTES:
                    sums = tl.dot(v, tl.trans(u), sums, out_dtype=tl.int32)
                else:
                    sums += tl.dot(v.to(tl.float32), tl.trans(u), input_precision="ieee")
            s = tl.reshape(sums.to(tl.float32), [BLOCK_C, BLOCK_K, BLOCK_H])
            s = tl.where(at[None, :, None] < K, s, float("-inf"))
            best = tl.maximum(best, tl.max(s, 1))
            broken = tl.maximum(broken, tl.max((s != s).to(tl.int32), 1))
        best = tl.where(broken > 0, float("nan"), best)
        if BYTES:
            best *= tl.load(user_scale_UH + user * H + head, mask=head < H, other=0.0)[None, :]
        total_C += tl.sum(tl.where(head[None, :] < H, best, 0.0), 1)
    if BYTES:
        total_C *= tl.load(item_scale_N + n, mask=c < C, other=0.0)
    tl.store(scores_UC + user * C + c, total_C, mask=c < C)


@triton.jit
def _heads(x_HP, first, p, H, P, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr):
    """A block of heads, zeros beyond their end."""
    head, at = first + tl.arange(0, BLOCK_H), p + tl.arange(0, BLOCK_P)
    return tl.load(x_HP + head[:, None] * P + at[None, :], mask=(head[:, None] < H) & (at[None, :] < P), other=0)


@triton.jit
def _store(x_HP, value, first, p, H, P, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr):
    head, at = first + tl.arange(0, BLOCK_H), p + tl.arange(0, BLOCK_P)
    tl.store(x_HP + head[:, None] * P + at[None, :], value, mask=(head[:, None] < H) & (at[None, :] < P))


@triton.jit
def _products(
    user_HP, item_KP, h, k, H, K, P, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr
):  # fmt: skip
    """Products of user heads and item heads [H, K], -inf beyond the last item head."""
    s = tl.zeros([BLOCK_H, BLOCK_K], tl.float32)
    for p in range(0, P, BLOCK_P):
        u, v = _heads(user_HP, h, p, H, P, BLOCK_H, BLOCK_P), _heads(item_KP, k, p, K, P, BLOCK_K, BLOCK_P)
        s += tl.dot(u, tl.trans(v), input_precision="ieee")
    return tl.where((k + tl.arange(0, BLOCK_K))[None, :] < K, s, float("-inf"))


@triton.jit
def _words(head, k, H, words, BLOCK_K: tl.constexpr):
    """Addresses of the words of a block's bits, and a mask of the valid ones."""
    word = k // WORD + tl.arange(0, BLOCK_K // WORD)
    return head[:, None] * words + word[None, :], (head[:, None] < H) & (word[None, :] < words)


@triton.jit
def _shares(
    wins_HW, grad, h, k, H, K, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr
):  # fmt: skip
    """The gradient of every product [H, K]: a head's gradient, divided among its maxima."""
    words = tl.cdiv(K, WORD)
    head, word, at = h + tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_W), k + tl.arange(0, BLOCK_K)
    inside = (head[:, None] < H) & (word[None, :] < words)
    won = tl.load(wins_HW + head[:, None] * words + word[None, :], mask=inside, other=0)
    bits = (won[:, :, None] >> tl.arange(0, WORD)[None, None, :]) & 1
    count = tl.sum(tl.sum(bits, 2), 1)
    inside = (head[:, None] < H) & (at[None, :] < K)
    mine = tl.load(wins_HW + head[:, None] * words + (at // WORD)[None, :], mask=inside, other=0)
    bit = ((mine >> (at % WORD)[None, :]) & 1).to(tl.float32)
    share = tl.where(count > 0, grad / tl.maximum(count, 1).to(tl.float32), float("nan"))
    return tl.where(inside, bit * share[:, None], 0.0)
