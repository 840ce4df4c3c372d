import numpy as np
import pytest
import torch

from fieldwise.ops import max_sim, use_ops
from fieldwise.ops.maxsim import max_sim_plain
from fieldwise.ops.native import NATIVE

BACKENDS = ("plain", "native") if NATIVE.ready else ("plain",)
needs_native = pytest.mark.skipif(not NATIVE.ready, reason="no native library")
# B, H, K, P: single numbers, tails of lanes, of tiles and of words of item heads, IntTower's sizes
SIZES = [(1, 1, 1, 1), (3, 12, 4, 64), (2, 7, 5, 3), (3, 96, 32, 64), (2, 33, 70, 9), (2, 50, 129, 8), (2, 17, 33, 33)]


def pair(b, h, k, p, *, dtype=torch.float64, seed=0, whole=False):
    """Users and items that want gradients; whole numbers of -1 to 1 give many equal maxima."""
    rng = np.random.default_rng(seed)
    shapes = (b, h, p), (b, k, p)
    drawn = [rng.integers(-1, 2, size=s) if whole else rng.normal(size=s) for s in shapes]
    return [torch.tensor(x, dtype=dtype).requires_grad_() for x in drawn]


def both(user, item, upstream):
    """Score and gradients by the native backend, then by the plain one."""
    found = []
    for backend in ("native", "plain"):
        with use_ops(backend):
            score = max_sim(user, item)
            found.append((score, *torch.autograd.grad(score, (user, item), upstream)))
    return zip(*found, strict=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_is_the_sum_over_user_heads_of_the_best_item_head(subtests, backend):
    for user, item in [(1, 1), (3, 2), (2, 5)]:
        with subtests.test(user=user, item=item):
            rng = np.random.default_rng(0)
            u, v = rng.normal(size=(4, user, 3)), rng.normal(size=(4, item, 3))
            reference = [sum(max(u[b, i] @ v[b, j] for j in range(item)) for i in range(user)) for b in range(4)]
            with use_ops(backend):
                np.testing.assert_allclose(max_sim(torch.tensor(u), torch.tensor(v)), reference, atol=1e-12)


def test_it_is_not_symmetric():
    u, v = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[1.0], [3.0]]])
    assert max_sim(u, v).item() == 9
    assert max_sim(v, u).item() == 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_and_empty_batches(backend):
    u, v = pair(2, 3, 2, 4)
    with use_ops(backend):
        assert torch.autograd.gradcheck(max_sim, (u, v))
        assert max_sim(u[:0], v[:0]).shape == (0,)
        empty = u[:0].detach().requires_grad_()
        assert torch.autograd.grad(max_sim(empty, v[:0]).sum(), empty)[0].shape == (0, 3, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_maxima_share_the_gradient(backend):
    u = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    v = torch.tensor([[[2.0, 0.0], [1.0, 1.0], [2.0, 6.0]]], requires_grad=True)
    with use_ops(backend):
        gu, gv = torch.autograd.grad(3 * max_sim(u, v).sum(), (u, v))
    assert gu.tolist() == [[[6.0, 9.0]]]
    assert gv.tolist() == [[[1.5, 0.0], [0.0, 0.0], [1.5, 0.0]]]


@needs_native
def test_native_equals_plain(subtests):
    for sizes in SIZES:
        for dtype in [torch.float32, torch.float64]:
            for whole in [False, True]:
                with subtests.test(sizes=sizes, dtype=dtype, whole=whole):
                    user, item = pair(*sizes, dtype=dtype, whole=whole)
                    atol = 2e-5 if dtype == torch.float32 else 1e-12
                    for native, plain in both(user, item, torch.linspace(-1, 2, sizes[0], dtype=dtype)):
                        np.testing.assert_allclose(native.detach(), plain.detach(), rtol=1e-5, atol=atol)


@needs_native
def test_nan_goes_where_pytorch_sends_it():
    user, item = pair(4, 9, 37, 5)
    with torch.no_grad():
        user[0, 3, 1], item[1, 36, 4], user[2, 0, 0], item[2] = torch.nan, torch.nan, torch.inf, item[2].abs()
        item[3] = -torch.inf
        user[3] = user[3].abs()
    for (native, plain), name in zip(both(user, item, torch.ones(4, dtype=torch.float64)), "sui", strict=True):
        rows = slice(0, 4 if name == "s" else 2)  # plain gradients at infinity hold 0 * infinity
        np.testing.assert_allclose(native[rows].detach(), plain[rows].detach(), atol=1e-12)
    assert native[:2].isnan().all()


@needs_native
def test_input_that_is_not_contiguous_and_a_gradient_that_is_expanded():
    user, item = pair(3, 8, 6, 5)
    strided = user.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    with use_ops("native"):
        found = torch.autograd.grad(max_sim(strided, item).sum(), (strided, item))
    reference = torch.autograd.grad(max_sim_plain(user, item).sum(), (user, item))
    for native, plain in zip(found, reference, strict=True):
        np.testing.assert_allclose(native, plain, atol=1e-12)


@needs_native
def test_rows_that_do_not_pair_are_refused():
    user, item = pair(3, 2, 2, 5)
    with use_ops("native"):
        with pytest.raises(ValueError, match="B and P must agree"):
            max_sim(user, item[:2])
        with pytest.raises(ValueError, match="B and P must agree"):
            max_sim(user, item[..., :4])


@needs_native
def test_threads_change_no_bit(same_on_all_threads):
    user, item = pair(301, 9, 5, 7, dtype=torch.float32)

    def work():
        score = max_sim(user, item)
        return score, *torch.autograd.grad(score.sum(), (user, item))

    same_on_all_threads(work)


@needs_native
def test_the_operator_is_registered_as_pytorch_wants():
    user, item = pair(2, 3, 33, 4)
    torch.library.opcheck(torch.ops.fieldwise.max_sim, (user, item))


@needs_native
def test_it_compiles_and_exports():
    user, item = pair(3, 4, 5, 6, dtype=torch.float32)
    with use_ops("native"):
        compiled = torch.compile(max_sim, fullgraph=True, backend="aot_eager")(user, item)
        found = torch.autograd.grad(compiled.sum(), (user, item))

        class Model(torch.nn.Module):
            def forward(self, u, v):
                return max_sim(u, v)

        rows = torch.export.Dim("rows")
        exported = torch.export.export(Model(), (user.detach(), item.detach()), dynamic_shapes=({0: rows}, {0: rows}))
        assert "fieldwise.max_sim" in str(exported.graph)
        assert torch.equal(exported.module()(user[:2].detach(), item[:2].detach()), compiled[:2].detach())
    for native, plain in zip(found, torch.autograd.grad(max_sim_plain(user, item).sum(), (user, item)), strict=True):
        np.testing.assert_allclose(native, plain, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_computes_in_float32(backend):
    user, item = pair(2, 8, 4, 16, dtype=torch.float32)
    narrow = [t.detach().bfloat16() for t in (user, item)]
    with use_ops(backend), torch.autocast("cpu", torch.bfloat16):
        score = max_sim(*narrow)
    assert score.dtype == torch.float32
    np.testing.assert_allclose(score, max_sim_plain(*(t.float() for t in narrow)), rtol=1e-5)
