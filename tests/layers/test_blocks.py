"""Layers: sizes, starting values, and the special cases that are other layers; parity has their equations."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwise.layers import (
    CIN,
    BilinearFusion,
    BilinearInteraction,
    CrossMixture,
    CrossVector,
    InteractingLayer,
    InteractingOptions,
    PairAttention,
    SENet,
    linear,
)
from fieldwise.layers.crosses import CINLayer


def test_interaction_starts_from_xaviers_normal_of_each_matrix(subtests):
    for kind in ("all", "each", "interaction"):
        with subtests.test(kind=kind):
            torch.manual_seed(0)
            W = BilinearInteraction(4, 200, kind).W.detach()
            assert float(W.std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)


def test_no_head_leaves_the_linear_terms():
    fusion = BilinearFusion((3, 2), heads=0)
    assert set(dict(fusion.named_parameters())) == {"w1.weight", "w1.bias", "w2.weight"}
    one, two = torch.randn(5, 3), torch.randn(5, 2)
    torch.testing.assert_close(fusion(one, two), (fusion.w1(one) + fusion.w2(two))[:, 0])


def test_the_squeezed_size_is_rounded_down_but_never_zero(subtests):
    for fields, ratio, size in [
        (39, 12, 3),
        (10, 2, 5),
        (10, 3, 3),
        (3, 0.3, 10),
        (2, 3, 1),
        (2, 100, 1),
    ]:
        with subtests.test(fields=fields, ratio=ratio, size=size):
            layer = SENet(fields, reduction_ratio=ratio)
            assert layer.reduce.weight.shape == (size, fields)
            assert layer.expand.weight.shape == (fields, size)
            assert layer.reduce.bias is None
            assert layer.expand.bias is None


def test_linear_starts_from_xavier():
    torch.manual_seed(0)
    layer = linear(300, 500)
    assert float(layer.weight.detach().std()) == pytest.approx((2 / 800) ** 0.5, rel=0.02)
    assert (layer.bias == 0).all()
    interacting = InteractingLayer(300, 500, 2, InteractingOptions(bias=True))
    for part in interacting.projection.weight.chunk(4):
        assert float(part.detach().std()) == pytest.approx((2 / 800) ** 0.5, rel=0.02)
    assert (interacting.projection.bias == 0).all()


def test_pair_indices_are_buffers_that_move_but_are_not_saved():
    attention = PairAttention(4, 2, 3)
    assert set(dict(attention.named_buffers())) == {"left", "right"}
    assert set(attention.state_dict()) == {"W", "b", "h"}


def test_each_experts_matrices_start_from_xavier():
    torch.manual_seed(0)
    layer = CrossMixture(200, rank=50, experts=3)
    for matrices, deviation in (
        (layer.U, (2 / 250) ** 0.5),
        (layer.V, (2 / 250) ** 0.5),
        (layer.C, (2 / 100) ** 0.5),
    ):
        for matrix in matrices.detach():
            assert float(matrix.std()) == pytest.approx(deviation, rel=0.05)
    assert float(CrossVector(4000).weight.detach().std()) == pytest.approx(
        (2 / 4001) ** 0.5, rel=0.05
    )


# CIN


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
        assert float(layer.weight.detach().std()) == pytest.approx(
            (2 / (20 * inputs + outputs)) ** 0.5, rel=0.05
        )
