import pytest
import torch

from fieldwise.layers import BilinearFusion, BilinearInteraction

X = torch.tensor([[[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]]])
ONE, TWO, THREE = torch.tensor([[[1.0, 0.0], [2.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, -1.0]]])
# Rows times matrices: x1 ONE = (5, 2), x1 TWO = (2, 1), x2 ONE = (1, -1), x2 TWO = (-1, 3), x2 THREE = (6, 1)
EXPECTED = {
    "all": (ONE, [[15.0, -2.0], [2.5, 8.0], [0.5, -4.0]]),
    "each": (torch.stack([ONE, TWO]), [[15.0, -2.0], [2.5, 8.0], [-0.5, 12.0]]),
    "interaction": (torch.stack([ONE, TWO, THREE]), [[15.0, -2.0], [1.0, 4.0], [3.0, 4.0]]),
}


def test_interaction_worked_by_hand(subtests):
    for kind in list(EXPECTED):
        with subtests.test(kind=kind):
            layer = BilinearInteraction(3, 2, kind)
            W, expected = EXPECTED[kind]
            assert layer.W.shape == W.shape  # of `each` no matrix of the last field, which is never a pair's first
            with torch.no_grad():
                layer.W.copy_(W)
            assert layer(X)[0].tolist() == expected


def test_interaction_starts_from_xaviers_normal_of_each_matrix(subtests):
    for kind in list(EXPECTED):
        with subtests.test(kind=kind):
            torch.manual_seed(0)
            W = BilinearInteraction(4, 200, kind).W.detach()
            assert float(W.std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)


def test_fusion_worked_by_hand():
    fusion = BilinearFusion((4, 2), heads=2)
    with torch.no_grad():
        fusion.w1.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
        fusion.w1.bias.fill_(0.5)
        fusion.w2.weight.copy_(torch.tensor([[2.0, 3.0]]))
        fusion.W.copy_(torch.tensor([[[1.0], [0.5]], [[1.0], [-1.0]]]))
    logit = fusion(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[1.0, -1.0]]))
    # b .5, w1 . o1 = 5, w2 . o2 = -1, heads (1 + 1) * 1 and (3 - 4) * -1
    assert logit.tolist() == [0.5 + 5 - 1 + 2 + 1]


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
