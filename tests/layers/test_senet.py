import torch

from fieldwise.layers import SENet


def hand_made(activation):
    layer = SENet(2, reduction_ratio=2, activation=activation)
    with torch.no_grad():
        layer.reduce.weight.copy_(torch.tensor([[2.0, -1.0]]))
        layer.expand.weight.copy_(torch.tensor([[0.5], [-1.0]]))
    return layer


X = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]])  # means 1.5 and 1, squeezed 2 * 1.5 - 1 = 2, expanded 1 and -2


def test_worked_by_hand():
    assert hand_made("relu").field_weights(X).tolist() == [[1.0, 0.0]]
    assert hand_made("relu")(X).tolist() == [[[1.0, 2.0], [0.0, 0.0]]]
    expected = torch.tensor([[1 / (1 + torch.e**-1), 1 / (1 + torch.e**2)]])
    torch.testing.assert_close(hand_made("sigmoid").field_weights(X), expected)


def test_the_squeezed_vector_is_cut_at_zero():
    """With the signs of the fields turned the squeezed number is -2, and nothing is left of either field."""
    assert hand_made("relu")(-X).abs().sum() == 0
    assert hand_made("sigmoid").field_weights(-X).tolist() == [[0.5, 0.5]]


def test_the_squeezed_size_is_rounded_down_but_never_zero(subtests):
    for fields, ratio, size in [(39, 12, 3), (10, 2, 5), (10, 3, 3), (3, 0.3, 10), (2, 3, 1), (2, 100, 1)]:
        with subtests.test(fields=fields, ratio=ratio, size=size):
            layer = SENet(fields, reduction_ratio=ratio)
            assert layer.reduce.weight.shape == (size, fields)
            assert layer.expand.weight.shape == (fields, size)
            assert layer.reduce.bias is None
            assert layer.expand.bias is None
