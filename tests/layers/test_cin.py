import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwise.layers import CIN
from fieldwise.layers.crosses import CINLayer
from fieldwise.ops import fm_second_order


def fill(cin, *weights, biases=()):
    """Every layer's weight [F, I, H], and bias."""
    cin.double()
    with torch.no_grad():
        for layer, weight in zip(cin.layers, weights, strict=True):
            layer.weight.copy_(torch.tensor(weight, dtype=torch.float64))
        for layer, bias in zip(cin.layers, biases, strict=False):
            layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return cin


def test_the_last_layer_is_never_halved():
    halved, whole = CIN(3, (5,), split_half=True), CIN(3, (5,))
    halved.load_state_dict(whole.state_dict())
    x = torch.randn(2, 3, 4)
    assert torch.equal(halved(x), whole(x))
    assert CIN(3, (8, 6, 5), split_half=True).outputs == 4 + 3 + 5
    assert CIN(3, (8, 6, 5)).outputs == 8 + 6 + 5


def test_a_map_of_all_pairs_is_fm():
    """Equation 6 with W = 1 for i < j; the map's sum is FM's. All-one weights also hold each field with itself."""
    x = torch.randn(6, 5, 4, dtype=torch.float64)
    upper = torch.ones(5, 5).triu(1).unsqueeze(2).tolist()
    torch.testing.assert_close(fill(CIN(5, (1,)), upper)(x)[:, 0], fm_second_order(x))
    ones = fill(CIN(5, (1,)), torch.ones(5, 5, 1).tolist())
    torch.testing.assert_close(ones(x)[:, 0], x.sum(1).square().sum(1))


def test_layer_k_is_of_degree_k_plus_one():
    cin, x = CIN(3, (4, 4, 2)).double(), torch.randn(5, 3, 4, dtype=torch.float64)
    scale = torch.tensor([2.0**2] * 4 + [2.0**3] * 4 + [2.0**4] * 2, dtype=torch.float64)
    torch.testing.assert_close(cin(2 * x), cin(x) * scale)


def test_no_tensor_of_all_products_is_held():
    """A layer holds the products of a few fields at a time, whatever F is: here 4 of 30."""
    widest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal widest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (list, tuple)) else [out]:
                if tensor.ndim and tensor.shape[0] == 2 * 7:
                    widest = max(widest, tensor.numel() // (2 * 7))
            return out

    cin, x = CIN(30, (64, 64)), torch.randn(2, 30, 7)
    with torch.no_grad(), Watch():
        cin(x)
    assert widest == 4 * 64


def test_fields_at_once_change_nothing(subtests):
    """Blocks of one field, of some with a smaller last one, and of all, against one sum over all pairs."""
    for inputs in [1, 3, 300]:
        with subtests.test(inputs=inputs):
            layer = CINLayer(130, inputs, 5, bias=True).double()
            torch.nn.init.normal_(layer.bias)
            x, x0 = torch.randn(4, inputs).double(), torch.randn(4, 130).double()
            expected = torch.einsum("mi,mj,jih->mh", x, x0, layer.weight) + layer.bias
            torch.testing.assert_close(layer(x, x0), expected)


def test_layers_start_as_xavier_has_a_map_of_all_products():
    torch.manual_seed(0)
    cin = CIN(20, (50, 40))
    for layer, (inputs, outputs) in zip(cin.layers, ((20, 50), (50, 40)), strict=True):
        assert float(layer.weight.detach().std()) == pytest.approx((2 / (20 * inputs + outputs)) ** 0.5, rel=0.05)
