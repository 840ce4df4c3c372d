"""AFM's pooling: the plain backend against NumPy, the native one against the plain one."""

import numpy as np
import pytest
import torch
from torch.library import opcheck

from fieldwise.layers import PairAttention
from fieldwise.ops import pair_attention_pool, pair_attention_pool_plain, pair_indices, use_ops
from fieldwise.ops.keep import keep_factors
from fieldwise.ops.native import NATIVE

needs_native = pytest.mark.skipif(not NATIVE.ready, reason=NATIVE.why)
SHAPES = [(1, 2, 1, 1), (7, 3, 5, 3), (33, 10, 10, 17), (16, 39, 16, 16), (9, 5, 3, 128), (3, 7, 65, 2)]


def _arguments(batch, fields, dim, attention, dtype=torch.float64):
    torch.manual_seed(0)
    shapes = [(batch, fields, dim), (attention, dim), (attention,), (attention,)]
    x, W, b, h = (torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes)
    left, right = pair_indices(fields)
    return x, left, right, W, b, h


def _numpy(x, W, b, h, seeds=(0, 0), drops=(0.0, 0.0)):
    """Pooled vectors and weights, pair by pair."""
    rows, fields, dim = x.shape
    pairs = [(i, j) for i in range(fields) for j in range(i + 1, fields)]
    keep_q = keep_factors(torch.tensor(seeds[0]), rows, len(pairs) * dim, drops[0], dtype=torch.float64).numpy()
    keep_a = keep_factors(torch.tensor(seeds[1]), rows, len(pairs), drops[1], dtype=torch.float64).numpy()
    pooled, weights = np.zeros((rows, dim)), np.zeros((rows, len(pairs)))
    for r in range(rows):
        q = np.array([x[r, i] * x[r, j] for i, j in pairs]) * keep_q[r].reshape(len(pairs), dim)
        e = np.array([sum(h[a] * max(W[a] @ v + b[a], 0.0) for a in range(len(h))) for v in q])
        weights[r] = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
        pooled[r] = (weights[r] * keep_a[r]) @ q
    return pooled, weights


def _detached(*tensors):
    return [t.detach().numpy() for t in tensors]


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_pooling_is_the_equations(subtests, mode):
    for drops in [(0.0, 0.0), (0.3, 0.0), (0.0, 0.4), (0.2, 0.1)]:
        with subtests.test(drops=drops):
            x, left, right, W, b, h = _arguments(3, 4, 2, 5)
            torch.manual_seed(5)
            seeds = torch.randint(0, 2**63 - 1, (2,)).tolist()
            torch.manual_seed(5)
            with use_ops(mode):
                pooled = pair_attention_pool(
                    x, left, right, W, b, h, pair_dropout=drops[0], attention_dropout=drops[1], training=True
                )
            reference, _ = _numpy(*_detached(x, W, b, h), seeds, drops)
            np.testing.assert_allclose(pooled.detach(), reference, atol=1e-12)


def test_weights_are_the_softmax():
    x, left, right, W, b, h = _arguments(3, 4, 2, 5)
    np.testing.assert_allclose(
        pair_attention_pool_plain(x, left, right, W, b, h)[1].detach(), _numpy(*_detached(x, W, b, h))[1], atol=1e-12
    )


@pytest.mark.parametrize("mode", ["plain", "auto"])
@pytest.mark.parametrize("drops", [(0.0, 0.0), (0.3, 0.2)])
def test_gradients_are_those_of_finite_differences(mode, drops):
    x, left, right, W, b, h = _arguments(3, 4, 2, 3)

    def pooled(x, W, b, h):
        torch.manual_seed(1)  # the same mask at every call
        return pair_attention_pool(
            x, left, right, W, b, h, pair_dropout=drops[0], attention_dropout=drops[1], training=True
        )

    with use_ops(mode):
        assert torch.autograd.gradcheck(pooled, (x, W, b, h))


@needs_native
def test_native_and_plain_give_the_same_numbers(subtests):
    for shape in SHAPES:
        for drops in [(0.0, 0.0), (0.25, 0.5)]:
            for dtype, tolerance in [(torch.float64, 1e-11), (torch.float32, 2e-5)]:
                with subtests.test(shape=shape, drops=drops, dtype=dtype, tolerance=tolerance):
                    results = []
                    for mode in ("plain", "native"):
                        x, left, right, W, b, h = _arguments(*shape, dtype=dtype)
                        grad = torch.randn(shape[0], shape[2], dtype=dtype)
                        with use_ops(mode):
                            pooled = pair_attention_pool(
                                x,
                                left,
                                right,
                                W,
                                b,
                                h,
                                pair_dropout=drops[0],
                                attention_dropout=drops[1],
                                training=True,
                            )
                        pooled.backward(grad)
                        results.append([pooled.detach(), x.grad, W.grad, b.grad, h.grad])
                    for plain, native in zip(*results, strict=True):
                        scale = float(plain.abs().max()) + 1.0
                        torch.testing.assert_close(native, plain, atol=tolerance * scale, rtol=0)


@needs_native
def test_any_list_of_pairs_will_do():
    x, _, _, W, b, h = _arguments(5, 4, 3, 2)
    left, right = torch.tensor([2, 0, 3, 2]), torch.tensor([1, 0, 2, 1])
    with use_ops("native"):
        found = pair_attention_pool(x, left, right, W, b, h)
    torch.testing.assert_close(found, pair_attention_pool_plain(x, left, right, W, b, h)[0])


@needs_native
def test_strides_do_not_matter():
    x, left, right, W, b, h = (t.detach() for t in _arguments(6, 5, 4, 3))
    strided = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in (x, W)]
    every_other = torch.stack([b, b]).t().reshape(-1)[::2]
    with use_ops("native"):
        found = pair_attention_pool(strided[0], left, right, strided[1], every_other, h)
        assert torch.equal(found, pair_attention_pool(x, left, right, W, b, h))


def test_without_a_pair_there_is_nothing_to_pool(subtests):
    for fields in [0, 1]:
        for batch in [0, 3]:
            for mode in ["plain", "auto"]:
                with subtests.test(fields=fields, batch=batch, mode=mode), use_ops(mode):
                    pooled = pair_attention_pool(*_arguments(batch, fields, 2, 4))
                    assert pooled.tolist() == [[0.0, 0.0]] * batch


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_no_row_gives_no_row_and_zero_gradients(mode):
    x, left, right, W, b, h = _arguments(0, 3, 2, 4)
    with use_ops(mode):
        pooled = pair_attention_pool(x, left, right, W, b, h)
    assert pooled.shape == (0, 2)
    pooled.sum().backward()
    assert x.grad.shape == (0, 3, 2)
    assert [float(t.grad.abs().sum()) for t in (W, b, h)] == [0.0, 0.0, 0.0]


def test_a_row_that_is_no_number_spoils_itself_alone(subtests):
    for bad in [float("nan"), float("inf")]:
        for mode in ["plain", "auto"]:
            with subtests.test(bad=bad, mode=mode):
                x, left, right, W, b, h = (t.detach() for t in _arguments(20, 4, 3, 5, dtype=torch.float32))
                clean = pair_attention_pool(x, left, right, W, b, h)
                x[7, 2, 1] = bad
                with use_ops(mode):
                    spoilt = pair_attention_pool(x, left, right, W, b, h)
                assert spoilt[7].isnan().any()
                others = torch.arange(20) != 7
                torch.testing.assert_close(spoilt[others], clean[others])


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_a_weight_that_is_no_number_reaches_scores_and_gradients(mode):
    x, left, right, W, b, h = _arguments(3, 4, 3, 5, dtype=torch.float32)
    with torch.no_grad():
        W[2, 1] = float("nan")
    with use_ops(mode):
        pooled = pair_attention_pool(x, left, right, W, b, h)
    pooled.sum().backward()
    assert pooled.isnan().all()
    assert all(t.grad.isnan().any() for t in (x, W, b, h))


def test_gradients_are_finite_where_the_bias_alone_makes_a_large_score(subtests):
    """Lanes beyond the batch see such scores, too, without a row's maximum."""
    for dtype in [torch.float32, torch.float64]:
        for mode in ["plain", "auto"]:
            with subtests.test(dtype=dtype, mode=mode):
                x, left, right, W, _, _ = _arguments(3, 4, 2, 5, dtype=dtype)
                b, h = (torch.full((5,), n, dtype=dtype, requires_grad=True) for n in (100.0, 2.0))
                with use_ops(mode):
                    found = torch.autograd.grad(pair_attention_pool(x, left, right, W, b, h).sum(), (x, W, b, h))
                doubles = [t.detach().double().requires_grad_() for t in (x, W, b, h)]
                pooled = pair_attention_pool_plain(doubles[0], left, right, *doubles[1:])[0]
                for ours, reference in zip(found, torch.autograd.grad(pooled.sum(), doubles), strict=True):
                    torch.testing.assert_close(ours.double(), reference, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_large_scores_neither_overflow_nor_vanish(mode):
    x, left, right, W, b, h = (t.detach() for t in _arguments(4, 3, 2, 3, dtype=torch.float32))
    with use_ops(mode):
        pooled = pair_attention_pool(x * 30, left, right, W * 30, b, h)
    reference = pair_attention_pool_plain((x * 30).double(), left, right, (W * 30).double(), b.double(), h.double())[0]
    torch.testing.assert_close(pooled.double(), reference, rtol=1e-4, atol=1e-4)


def test_dropout_needs_training_and_keeps_the_mean():
    x, left, right, W, b, h = _arguments(1, 3, 2, 3)
    calm = pair_attention_pool(x, left, right, W, b, h)
    off = pair_attention_pool(x, left, right, W, b, h, attention_dropout=0.5, pair_dropout=0.5)
    assert torch.equal(calm, off)
    many = x.expand(20_000, -1, -1)
    on = pair_attention_pool(many, left, right, W, b, h, attention_dropout=0.5, training=True)
    assert on.std(0).min() > 0.01
    torch.testing.assert_close(on.mean(0), calm[0], atol=0.05, rtol=0.05)


@needs_native
def test_threads_change_no_bit(same_on_all_threads):
    x, left, right, W, b, h = _arguments(2053, 10, 14, 15, dtype=torch.float32)

    def work():
        with use_ops("native"):
            pooled = pair_attention_pool(x, left, right, W, b, h)
        return pooled, *torch.autograd.grad(pooled.square().sum(), (x, W, b, h))

    same_on_all_threads(work)


@needs_native
def test_the_operator_keeps_the_rules_of_pytorch():
    x, left, right, W, b, h = _arguments(5, 4, 3, 2)
    seeds = torch.tensor([1, 2])
    for drops in ((0.0, 0.0), (0.2, 0.3)):
        opcheck(torch.ops.fieldwise.pair_attention_pool.default, (x, left, right, W, b, h, seeds, *drops))


@needs_native
def test_autocast_leaves_it_in_float32():
    x, left, right, W, b, h = _arguments(5, 4, 3, 2, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = pair_attention_pool(x.bfloat16(), left, right, W.bfloat16(), b.bfloat16(), h.bfloat16())
        mixed = pair_attention_pool(x.bfloat16(), left, right, W, b, h)
    assert mixed.dtype == torch.float32
    reference = pair_attention_pool(x, left, right, W, b, h)
    for found in (pooled, mixed):
        torch.testing.assert_close(found.float(), reference, atol=0.05, rtol=0.05)


@needs_native
def test_an_instruction_set_below_gives_the_same():
    """All builds of the kernels that this machine can run."""
    from fieldwise.ops.native import ISAS

    x, left, right, W, b, h = _arguments(37, 6, 5, 7, dtype=torch.float32)
    reference = pair_attention_pool_plain(x, left, right, W, b, h)[0]
    best = NATIVE.isa
    try:
        for isa in ISAS[: ISAS.index(best) + 1]:
            object.__setattr__(NATIVE, "isa", isa)
            with use_ops("native"):
                torch.testing.assert_close(
                    pair_attention_pool(x, left, right, W, b, h), reference, atol=1e-5, rtol=1e-5
                )
    finally:
        object.__setattr__(NATIVE, "isa", best)


@needs_native
def test_compile_and_export_go_through_the_operator():
    x, left, right, W, b, h = _arguments(6, 4, 3, 5, dtype=torch.float32)

    def pooled(x, W, b, h):
        return pair_attention_pool(x, left, right, W, b, h)

    with use_ops("native"):
        reference = pooled(x, W, b, h)
        gradient = torch.autograd.grad(reference.square().sum(), x)[0]
        compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")(x, W, b, h)
        torch.testing.assert_close(compiled, reference)
        torch.testing.assert_close(torch.autograd.grad(compiled.square().sum(), x)[0], gradient)

        attention = PairAttention(4, 3, 5)
        attention.load_state_dict({"W": W, "b": b, "h": h})
        rows = torch.export.Dim("rows", min=2)
        exported = torch.export.export(attention, (x.detach(),), dynamic_shapes=({0: rows},))
        assert "fieldwise.pair_attention_pool" in exported.graph_module.code
        torch.testing.assert_close(exported.module()(x[:3].detach()), reference[:3])
    portable = torch.export.export(attention, (x.detach(),))
    assert "fieldwise" not in portable.graph_module.code
    torch.testing.assert_close(portable.module()(x.detach()), reference)
