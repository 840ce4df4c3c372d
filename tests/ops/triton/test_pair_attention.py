"""AFM's pooling by Triton against the plain backend in float64."""

import importlib

import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.ops import pair_attention_pool, pair_attention_pool_plain, pair_indices, use_ops

# Both words of both seeds have their highest bit set somewhere: the kernels take them as signed numbers.
SEEDS = torch.tensor([0x7123456789ABCDEF, 0x0FEDCBA9F6543210])
NONE, BOTH = (0.0, 0.0), (0.3, 0.4)


@pytest.fixture(scope="module")
def pool(device):
    return importlib.import_module("fieldwise.ops.triton.pair_attention")


def _inputs(device, batch, fields, size, attention):
    torch.manual_seed(batch + fields + size + attention)
    x, W = torch.randn(batch, fields, size), torch.randn(attention, size) / size**0.5
    b, h, grad = torch.randn(attention), torch.randn(attention), torch.randn(batch, size)
    return [t.to(device) for t in (x, W, b, h, grad)]


def _plain(x, left, right, W, b, h, grad, drops):
    leaves = [t.double().requires_grad_() for t in (x, W, b, h)]
    pooled = pair_attention_pool_plain(leaves[0], left, right, *leaves[1:], SEEDS, *drops)[0]
    return [pooled.detach(), *torch.autograd.grad(pooled, leaves, grad.double())]


def _triton(pool, x, left, right, W, b, h, grad, drops):
    pooled, stats = pool.forward(x, left, right, W, b, h, SEEDS, *drops)
    return [pooled, *pool.backward(x, left, right, W, b, h, SEEDS, *drops, pooled, stats, grad)]


def _agree(found, reference):
    for f, t in zip(found, reference, strict=True):
        # The greatest element decides the scale: sums of many terms may cancel.
        scale = max(1.0, t.nan_to_num().abs().max().item()) if t.numel() else 1.0
        assert (f.dtype, f.shape) == (torch.float32, t.shape)
        torch.testing.assert_close(f.double(), t, atol=1e-5 * scale, rtol=1e-5, equal_nan=True)


def _same_as_plain(pool, device, shape, drops=NONE, pairs=None):
    x, W, b, h, grad = _inputs(device, *shape)
    left, right = (t.to(device) for t in (pairs or pair_indices(shape[1])))
    _agree(_triton(pool, x, left, right, W, b, h, grad, drops), _plain(x, left, right, W, b, h, grad, drops))


@pytest.mark.parametrize("drops", [NONE, BOTH, (0.5, 0.0), (0.0, 0.5)])
@pytest.mark.parametrize("shape", [(3, 5, 3, 4), (2, 11, 17, 20)])
def test_forward_and_gradients_are_those_of_plain(pool, device, shape, drops):
    _same_as_plain(pool, device, shape, drops)


@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (2, 8, 16, 33), (1, 9, 16, 16), (1, 5, 130, 3)])
def test_sizes_at_and_beyond_the_edges_of_tiles(pool, device, shape):
    _same_as_plain(pool, device, shape, BOTH)


@pytest.mark.parametrize("shape", [(0, 3, 2, 4), (2, 1, 3, 4), (0, 0, 2, 1)])
def test_no_row_or_no_pair_gives_zeros(pool, device, shape):
    _same_as_plain(pool, device, shape)


def test_pairs_may_come_in_any_order_and_number(pool, device):
    left, right = torch.tensor([9, 0, 3, 3, 2]), torch.tensor([1, 4, 0, 3, 9])
    _same_as_plain(pool, device, (2, 10, 3, 4), BOTH, (left, right))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy speaks of every NaN
def test_nan_stays_in_its_row_and_reaches_the_weights(pool, device):
    x, W, b, h, grad = _inputs(device, 3, 9, 3, 4)
    x[1, 8, 2] = torch.nan
    left, right = (t.to(device) for t in pair_indices(9))
    found = _triton(pool, x, left, right, W, b, h, grad, NONE)
    _agree(found, _plain(x, left, right, W, b, h, grad, NONE))
    assert found[0].isnan().any(1).tolist() == [False, True, False]
    assert found[1].isnan().any(2).any(1).tolist() == [False, True, False]
    assert found[2].isnan().all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_scores_do_not_overflow(pool, device, sign):
    x, W, b, h, _ = _inputs(device, 2, 5, 3, 4)
    left, right = (t.to(device) for t in pair_indices(5))
    arguments = (x, left, right, W, b, sign * 1e4 * h.abs())
    pooled = pool.forward(*arguments, SEEDS, *NONE)[0]
    torch.testing.assert_close(pooled, pair_attention_pool_plain(*arguments)[0])
    assert pooled.isfinite().all()


def test_what_is_not_contiguous_is_read_as_it_is(pool, device):
    x, W, b, h, grad = _inputs(device, 2, 3, 4, 5)
    left, right = (t.to(device) for t in pair_indices(3))
    reference = _triton(pool, x, left, right, W, b, h, grad, NONE)
    turned = [t.mT.contiguous().mT for t in (x, W)]
    found = _triton(pool, turned[0], left, right, turned[1], b, h, grad.mT.contiguous().mT, NONE)
    assert all(torch.equal(f, t) for f, t in zip(found, reference, strict=True))


def test_gradients_are_the_same_at_every_run_and_close_for_any_number_of_slices(pool, device, monkeypatch):
    x, W, b, h, grad = _inputs(device, 5, 4, 3, 4)
    left, right = (t.to(device) for t in pair_indices(4))
    first, second = (_triton(pool, x, left, right, W, b, h, grad, BOTH) for _ in range(2))
    assert all(torch.equal(f, s) for f, s in zip(first, second, strict=True))
    monkeypatch.setattr(pool, "SLICES", 2)
    _agree(_triton(pool, x, left, right, W, b, h, grad, BOTH), [t.double() for t in first])


def test_a_pair_named_twice_is_refused(pool, device):
    if device.type == "cuda":
        pytest.skip("on a GPU the refusal ends the process's use of it")
    x, W, b, h, _ = _inputs(device, 1, 3, 2, 2)
    with pytest.raises(RuntimeError, match="no pair of fields may be given twice"):
        pool.forward(x, torch.tensor([0, 0]), torch.tensor([1, 1]), W, b, h, SEEDS, *NONE)


def test_only_float32_is_taken(pool, device):
    x, W, b, h, _ = _inputs(device, 1, 3, 2, 2)
    with pytest.raises(ConfigError, match=r"float32 tensors, found torch\.float64"):
        pool.forward(x.double(), *(t.to(device) for t in pair_indices(3)), W, b, h, SEEDS, *NONE)


def test_on_a_gpu_the_op_takes_triton_and_stores_nothing_of_all_pairs(gpu):
    x, W, b, h, grad = _inputs(gpu, 512, 39, 16, 16)
    left, right = (t.to(gpu) for t in pair_indices(39))
    results, peaks = [], []
    for mode in ("auto", "plain"):
        leaves = [t.clone().requires_grad_() for t in (x, W, b, h)]
        torch.manual_seed(3)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with use_ops(mode):
            drops = {"pair_dropout": 0.3, "attention_dropout": 0.4}
            pooled = pair_attention_pool(leaves[0], left, right, *leaves[1:], **drops, training=True)
        results.append([pooled.detach(), *torch.autograd.grad(pooled, leaves, grad)])
        peaks.append(torch.cuda.max_memory_allocated() - before)
    for f, t in zip(*results, strict=True):
        torch.testing.assert_close(f, t, rtol=1e-4, atol=1e-5 * t.abs().max().item())
    assert peaks[0] < 512 * 741 * 16 * 4
    assert peaks[0] < peaks[1] / 4
