import itertools

import pytest
import torch

from fieldwise.layers import CrossMatrix, CrossMixture, CrossVector


def fill(layer, **values):
    layer.double()
    with torch.no_grad():
        for name, value in values.items():
            dict(layer.named_parameters())[name].copy_(torch.tensor(value, dtype=torch.float64))
    return layer


def random(layer):
    layer.double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p))
    return layer


def test_equal_rows_of_w_are_dcns_layer_with_its_bias_inside():
    """W = 1 w^T: the layers differ by (x0 - 1) * b, and so are one without a bias."""
    vector = random(CrossVector(5))
    matrix = fill(CrossMatrix(5), weight=[vector.weight.tolist()] * 5, bias=vector.bias.tolist())
    x0, x = torch.randn(4, 5).double(), torch.randn(4, 5).double()
    torch.testing.assert_close(matrix(x0, x) - vector(x0, x), (x0 - 1) * vector.bias)
    ones = torch.ones_like(x0)
    torch.testing.assert_close(matrix(ones, x), vector(ones, x))
    for layer in (matrix, vector):
        torch.nn.init.zeros_(layer.bias)
    torch.testing.assert_close(matrix(x0, x), vector(x0, x))


def test_one_linear_expert_is_a_matrix_of_its_rank(subtests):
    """Equation 2: W = U V^T. One expert has no gate, whatever its kind."""
    for gate in ["softmax", "sigmoid", "constant"]:
        with subtests.test(gate=gate):
            low = random(CrossMixture(5, rank=2, experts=1, gate=gate, activation="identity"))
            full = fill(CrossMatrix(5), weight=(low.U[0] @ low.V[0].T).tolist(), bias=low.bias.tolist())
            x0, x = torch.randn(4, 5).double(), torch.randn(4, 5).double()
            torch.testing.assert_close(low(x0, x), full(x0, x))
            assert {name for name, _ in low.named_parameters()} == {"U", "V", "bias"}


def test_constant_gates_of_linear_experts_add_ranks():
    """Two experts of rank 2 are one of rank 4, their bias twice."""
    two = random(CrossMixture(5, rank=2, experts=2, gate="constant", activation="identity"))
    U, V = (torch.cat([m[0], m[1]], 1).unsqueeze(0).tolist() for m in (two.U, two.V))
    one = fill(CrossMixture(5, rank=4, experts=1, activation="identity"), U=U, V=V, bias=(2 * two.bias).tolist())
    x0, x = torch.randn(4, 5).double(), torch.randn(4, 5).double()
    torch.testing.assert_close(one(x0, x), two(x0, x))


def test_equal_experts_under_softmax_are_one_expert():
    one = random(CrossMixture(5, rank=2, experts=1))
    three = CrossMixture(5, rank=2, experts=3)
    same = {name: getattr(one, name).expand(3, -1, -1).tolist() for name in "UVC"}
    fill(three, **same, bias=one.bias.tolist())
    x0, x = torch.randn(4, 5).double(), torch.randn(4, 5).double()
    torch.testing.assert_close(three(x0, x), one(x0, x))
    assert three.gates(x).std() > 0, "the gates differ, and still sum to 1"


def test_every_choice_of_a_mixture_changes_it():
    x0, x = torch.randn(4, 5).double(), torch.randn(4, 5).double()
    outs = []
    for gate, activation in itertools.product(
        ["softmax", "sigmoid", "constant"], ["identity", "tanh", "hard_tanh", "relu"]
    ):
        torch.manual_seed(0)
        layer = CrossMixture(5, rank=2, experts=3, gate=gate, activation=activation).double()
        torch.manual_seed(1)
        for name in ("U", "V", "C", "bias"):
            parameter = getattr(layer, name)
            if parameter is not None:
                torch.nn.init.normal_(parameter)
        outs.append(layer(x0, x))
    for first, second in itertools.combinations(outs, 2):
        assert not torch.allclose(first, second)


def test_each_experts_matrices_start_from_xavier():
    torch.manual_seed(0)
    layer = CrossMixture(200, rank=50, experts=3)
    for matrices, deviation in ((layer.U, (2 / 250) ** 0.5), (layer.V, (2 / 250) ** 0.5), (layer.C, (2 / 100) ** 0.5)):
        for matrix in matrices.detach():
            assert float(matrix.std()) == pytest.approx(deviation, rel=0.05)
    assert float(CrossVector(4000).weight.detach().std()) == pytest.approx((2 / 4001) ** 0.5, rel=0.05)
