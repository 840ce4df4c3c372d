"""Layers: sizes, starting values, and the special cases that are other layers; parity has their equations."""

import pytest
import torch

from fieldwise.layers import (
    MLP,
    BilinearFusion,
    BilinearInteraction,
    FactorizedInteraction,
    FEBlock,
    InteractingLayer,
    InteractingOptions,
    PairAttention,
    SENet,
    linear,
)


def test_interaction_starts_from_xaviers_normal_of_each_matrix(subtests):
    for kind in ("all", "each", "interaction"):
        with subtests.test(kind=kind):
            torch.manual_seed(0)
            W = BilinearInteraction(4, 200, kind).W.detach()
            assert float(W.std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)


def test_one_head_reads_every_product_and_several_read_their_own():
    """A fusion of one head whose W holds the heads' matrices as blocks is the fusion of these heads."""
    torch.manual_seed(0)
    heads, whole = BilinearFusion((6, 4), heads=2), BilinearFusion((6, 4))
    whole.load_state_dict(heads.state_dict() | {"W": torch.block_diag(*heads.W.detach()).unsqueeze(0)})
    one, two = torch.randn(5, 6), torch.randn(5, 4)
    torch.testing.assert_close(heads(one, two), whole(one, two))


def test_no_head_leaves_the_linear_terms():
    fusion = BilinearFusion((3, 2), heads=0)
    assert set(dict(fusion.named_parameters())) == {"w1.weight", "w1.bias", "w2.weight"}
    one, two = torch.randn(5, 3), torch.randn(5, 2)
    torch.testing.assert_close(fusion(one, two), (fusion.w1(one) + fusion.w2(two))[:, 0])


def test_the_squeezed_size_is_rounded_down_but_never_zero(subtests):
    for fields, ratio, size in [(39, 12, 3), (10, 2, 5), (10, 3, 3), (3, 0.3, 10), (2, 3, 1), (2, 100, 1)]:
        with subtests.test(fields=fields, ratio=ratio, size=size):
            layer = SENet(fields, reduction_ratio=ratio)
            assert layer.reduce.weight.shape == (size, fields)
            assert layer.expand.weight.shape == (fields, size)
            assert layer.reduce.bias is None
            assert layer.expand.bias is None


ROW = torch.tensor([[1.0, -2.0]])


def test_concat_is_as_large_as_a_linear_layer(subtests):
    for factors, residual, rows in [(2, "concat", 6), (3, "concat", 6), (2, "sum", 12)]:
        with subtests.test(factors=factors, residual=residual, rows=rows):
            layer = FactorizedInteraction(5, 6, factors=factors, residual=residual)
            assert layer.linear.weight.shape == (rows, 5)
            assert layer(torch.zeros(2, 5)).shape == (2, 6)


def test_one_factor_is_a_linear_layer():
    layer = FactorizedInteraction(2, 3, factors=1, activation="sigmoid")
    torch.testing.assert_close(layer(ROW), layer.linear(ROW))


def test_an_mlp_is_its_layers_and_an_output():
    mlp = MLP(3, (5, 4), outputs=2, batch_norm=True, dropout=0.5).eval()
    x = torch.randn(6, 3)
    levels = [mlp.layers[0](x), mlp.layers[1](mlp.layers[0](x))]
    assert [level.shape for level in levels] == [(6, 5), (6, 4)]
    assert all((level >= 0).all() for level in levels)
    torch.testing.assert_close(mlp.output(levels[-1]), mlp(x))
    kinds = [type(m).__name__ for m in mlp.layers[0]]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Dropout"]
    assert [type(m).__name__ for m in MLP(3, (5,)).layers[0]] == ["Linear", "ReLU"]


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


def test_the_interacting_layer_projects_once(subtests):
    for heads, projects, parts in [(2, True, 4), (3, False, 3)]:
        with subtests.test(heads=heads, projects=projects, parts=parts):
            layer = InteractingLayer(6, 6, heads, InteractingOptions(projects_residual=projects))
            assert layer.projection.weight.shape == (parts * 6, 6)
            layer = InteractingLayer(4, 6, heads, InteractingOptions(projects_residual=False))
            assert layer.projection.weight.shape == (24, 4)


def test_an_identity_residual_is_the_input():
    options, x = InteractingOptions(projects_residual=False, output_relu=False), torch.randn(3, 4, 6)
    layer = InteractingLayer(6, 6, 2, options)
    torch.nn.init.zeros_(layer.projection.weight)
    torch.testing.assert_close(layer(x), x)


def test_fe_block_scores_all_levels_as_their_sum():
    block = FEBlock((4, 3), 5, user_heads=2, item_heads=3, head_dim=6)
    user, item = block.user([torch.randn(7, 4), torch.randn(7, 3)]), block.item(torch.randn(7, 5))
    per_level = [torch.einsum("bhp,bkp->bhk", user[:, i], item).amax(2).sum(1) for i in range(2)]
    torch.testing.assert_close(block.score(user, item), per_level[0] + per_level[1])
