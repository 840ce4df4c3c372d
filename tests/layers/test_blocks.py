import numpy as np
import pytest
import torch

from fieldwise.layers import MLP, FEBlock, InteractingLayer, LightSE, PairAttention, linear


def test_light_se_adds_a_share_of_each_field():
    layer, x = LightSE(3).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    w, b = layer.excite.weight.detach().numpy(), layer.excite.bias.detach().numpy()
    for r in range(2):
        k = np.exp(w @ x[r].numpy().mean(1) + b)
        k = k / k.sum()
        np.testing.assert_allclose(layer(x)[r].detach(), x[r].numpy() * (1 + k[:, None]), atol=1e-12)
    assert LightSE(3, bias=False).excite.bias is None


def test_mlp_levels_are_outputs():
    mlp = MLP(3, (5, 4), outputs=2, batch_norm=True, dropout=0.5).eval()
    x = torch.randn(6, 3)
    levels = mlp.levels(x)
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
    interacting = InteractingLayer(300, 500, 2, bias=True)
    for part in interacting.projection.weight.chunk(4):
        assert float(part.detach().std()) == pytest.approx((2 / 800) ** 0.5, rel=0.02)
    assert (interacting.projection.bias == 0).all()


def test_pair_indices_are_buffers_that_move_but_are_not_saved():
    attention = PairAttention(4, 2, 3)
    assert set(dict(attention.named_buffers())) == {"left", "right"}
    assert set(attention.state_dict()) == {"W", "b", "h"}


def test_the_interacting_layer_projects_once(subtests):
    for heads, residual, parts in [(2, "projected", 4), (3, "where_sizes_differ", 3), (1, "none", 3)]:
        with subtests.test(heads=heads, residual=residual, parts=parts):
            layer = InteractingLayer(6, 6, heads, residual=residual)
            assert layer.projection.weight.shape == (parts * 6, 6)
            assert InteractingLayer(4, 6, heads, residual="where_sizes_differ").projection.weight.shape == (24, 4)


def test_an_identity_residual_is_the_input():
    layer = InteractingLayer(6, 6, 2, residual="where_sizes_differ", output_relu=False)
    bare = InteractingLayer(6, 6, 2, residual="none", output_relu=False)
    bare.load_state_dict(layer.state_dict())
    x = torch.randn(3, 4, 6)
    torch.testing.assert_close(layer(x) - bare(x), x)


def test_fe_block_scores_all_levels_as_their_sum():
    block = FEBlock((4, 3), 5, user_heads=2, item_heads=3, head_dim=6, bias=False)
    user, item = block.user([torch.randn(7, 4), torch.randn(7, 3)]), block.item(torch.randn(7, 5))
    per_level = [torch.einsum("bhp,bkp->bhk", user[:, i], item).amax(2).sum(1) for i in range(2)]
    torch.testing.assert_close(block.score(user, item), per_level[0] + per_level[1])
    assert not [n for n, _ in block.named_parameters() if n.endswith("bias")]
