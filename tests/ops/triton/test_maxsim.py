"""MaxSim by Triton against plain PyTorch in float64."""

import importlib

import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.ops import max_sim, use_ops


@pytest.fixture(scope="module")
def maxsim(device):
    return importlib.import_module("fieldwise.ops.triton.maxsim")


def _inputs(device, batch, heads, items, size):
    torch.manual_seed(batch + heads + items + size)
    shapes = [(batch, heads, size), (batch, items, size), (batch,)]
    return [torch.randn(s).to(device) for s in shapes]


def _plain(user, item, grad):
    leaves = [t.double().requires_grad_() for t in (user, item)]
    scores = torch.bmm(leaves[0], leaves[1].transpose(1, 2)).amax(2).sum(1)
    return [scores.detach(), *torch.autograd.grad(scores, leaves, grad.double())]


def _triton(maxsim, user, item, grad):
    scores, wins = maxsim.forward(user, item)
    return [scores, *maxsim.backward(user, item, wins, grad)]


def _agree(found, reference):
    for f, t in zip(found, reference, strict=True):
        assert (f.dtype, f.shape) == (torch.float32, t.shape)
        torch.testing.assert_close(f.double(), t, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("shape", [(3, 3, 5, 7), (1, 1, 1, 1), (2, 3, 32, 32), (0, 2, 3, 4), (2, 35, 70, 66)])
def test_scores_and_gradients_are_those_of_plain(maxsim, device, shape):
    user, item, grad = _inputs(device, *shape)
    _agree(_triton(maxsim, user, item, grad), _plain(user, item, grad))


def test_equal_maxima_share_the_gradient(maxsim, device):
    user, item, grad = _inputs(device, 2, 3, 40, 4)
    item[0, 39] = item[0, 1] = item[0, 1] * 10
    user[0, 0] = item[0, 1]  # its winners are items 1 and 39, a word apart
    user[1, 2] = 0  # all 40 products are equal
    found = _triton(maxsim, user, item, grad)
    _agree(found, _plain(user, item, grad))
    torch.testing.assert_close(found[1][0, 0], grad[0] * item[0, 1])
    torch.testing.assert_close(found[1][1, 2], grad[1] * item[1].mean(0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy speaks of every NaN
@pytest.mark.parametrize("items", [5, 70])
def test_nan_stays_in_its_row(maxsim, device, items):
    user, item, grad = _inputs(device, 3, 2, items, 3)
    user[1, 0, 2] = torch.nan
    item[2, 1, 0] = torch.nan
    found = _triton(maxsim, user, item, grad)
    _agree(found, _plain(user, item, grad))
    assert found[0].isnan().tolist() == [False, True, True]
    assert found[1].isnan().all(2).tolist() == [[False, False], [True, False], [True, True]]


def test_what_is_not_contiguous_is_read_as_it_is(maxsim, device):
    user, item, grad = _inputs(device, 2, 3, 4, 5)
    reference = _triton(maxsim, user, item, grad)
    found = _triton(maxsim, *(t.mT.contiguous().mT for t in (user, item)), grad.expand(2, 2).diagonal())
    assert all(torch.equal(f, t) for f, t in zip(found, reference, strict=True))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 9, 3, 5, 7), (2, 4, 18, 70, 66), (1, 0, 2, 3, 4)])
def test_stored_items_meet_users_as_float32(maxsim, device, kind, shape):
    users, count, heads, items, size = shape
    torch.manual_seed(0)
    user, item = torch.randn(users, heads, size, device=device), torch.randn(count, items, size).to(device, kind)
    reference = torch.einsum("uhp,nkp->unhk", user.double(), item.double()).amax(3).sum(2).float()
    torch.testing.assert_close(maxsim.stored(user, item), reference, rtol=1e-5, atol=1e-4)
    if count > 3:
        rows = torch.tensor([3, 0, 3], device=device)
        for r in (rows, rows.int()):
            torch.testing.assert_close(maxsim.stored(user, item, rows_C=r), reference[:, rows], rtol=1e-5, atol=1e-4)


def test_stored_bytes_are_multiplied_as_integers(maxsim, device):
    generator = torch.Generator().manual_seed(0)
    user, item = (torch.randint(-127, 128, s, generator=generator).to(device) for s in [(2, 3, 40), (7, 5, 40)])
    scales = [torch.rand(s, generator=generator).to(device) for s in [(2, 3), (7,)]]
    best = torch.einsum("uhp,nkp->unhk", user.double(), item.double()).amax(3)
    reference = ((best * scales[0][:, None]).sum(2) * scales[1]).float()
    arguments = {"user_scale_UH": scales[0], "item_scale_N": scales[1]}
    torch.testing.assert_close(maxsim.stored(user.char(), item.char(), **arguments), reference)
    rows = torch.tensor([6, 0], device=device)
    torch.testing.assert_close(maxsim.stored(user.char(), item.char(), rows_C=rows, **arguments), reference[:, rows])


def test_a_nan_in_a_stored_item_is_its_own(maxsim, device):
    user, item = torch.ones(1, 2, 3, device=device), torch.ones(4, 2, 3, device=device)
    item[2, 1, 1] = torch.nan
    assert maxsim.stored(user, item).isnan().tolist() == [[False, False, True, False]]


def test_what_does_not_fit_is_refused(maxsim, device):
    user, item, _ = _inputs(device, 2, 3, 4, 5)
    with pytest.raises(ConfigError, match=r"float32 tensors, found torch\.float64"):
        maxsim.forward(user.double(), item)
    with pytest.raises(ConfigError, match="as many users as items, found 2 and 1"):
        maxsim.forward(user, item[:1])
    with pytest.raises(ConfigError, match=r"of one size, at least one each, found \[3, 5\] and \[4, 4\]"):
        maxsim.forward(user, item[:, :, :4])
    with pytest.raises(ConfigError, match=r"at least one each, found \[3, 5\] and \[0, 5\]"):
        maxsim.forward(user, item[:, :0])
    with pytest.raises(ConfigError, match="int8 items need"):
        maxsim.stored(user.char(), item.char())
    with pytest.raises(ConfigError, match=r"found torch\.int8 items with torch\.float32 users"):
        maxsim.stored(user, item.char())


def test_on_a_gpu_the_op_takes_triton(gpu):
    user, item, grad = _inputs(gpu, 64, 3, 32, 32)
    results = []
    for mode in ("auto", "plain"):
        leaves = [t.clone().requires_grad_() for t in (user, item)]
        with use_ops(mode):
            scores = max_sim(*leaves)
        results.append([scores.detach(), *torch.autograd.grad(scores, leaves, grad)])
    for f, t in zip(*results, strict=True):
        torch.testing.assert_close(f, t, rtol=1e-4, atol=1e-4)
