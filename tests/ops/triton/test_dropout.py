"""Dropout by Triton drops what plain PyTorch drops."""

import importlib

import pytest
import torch

from fieldwise.ops.dropout import dropout_plain


@pytest.fixture(scope="module")
def kernels(device):
    return importlib.import_module("fieldwise.ops.triton.dropout")


@pytest.mark.parametrize("seed", [1, 2**62 + 12345, 0x0FEDCBA9F6543210])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 7), (5, 3, 11), (2, 1500)])
def test_forward_is_that_of_plain(kernels, device, shape, seed):
    x = torch.randn(shape).to(device)
    found = kernels.forward(x, torch.tensor([seed]), 0.3)
    torch.testing.assert_close(found, dropout_plain(x, torch.tensor([seed]), 0.3), rtol=1e-6, atol=0)


def test_types_of_16_bits_keep_theirs(kernels, device):
    x = torch.randn(4, 9).to(device, torch.bfloat16)
    found, expected = kernels.forward(x, torch.tensor([7]), 0.5), dropout_plain(x, torch.tensor([7]), 0.5)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)


def test_on_a_gpu_the_layer_runs_the_kernel_and_its_gradient(gpu):
    from fieldwise.ops.dropout import dropout

    x = torch.randn(6, 40, device=gpu, requires_grad=True)
    torch.manual_seed(2)
    found = dropout(x, 0.4, True)
    torch.manual_seed(2)
    expected = dropout(x.detach().cpu(), 0.4, True)
    torch.testing.assert_close(found.detach().cpu(), expected)
    found.sum().backward()
    assert torch.equal(x.grad == 0, found == 0)
