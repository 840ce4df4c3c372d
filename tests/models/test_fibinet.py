import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FM, FiBiNET, parameter_count

TINY = Layout.of_sizes([1, 1])
KINDS = ["all", "each", "interaction"]


def test_the_shallow_form_worked_by_hand(lab):
    network = FiBiNET(embedding_dim=2, hidden=(), reduction_ratio=2).build(TINY).double()
    state = {
        "embedding.weight": [[1.0, 2.0], [3.0, -1.0]],  # means 1.5 and 1
        "first_order.embedding.weight": [[0.25], [-1.0]],
        "first_order.bias": 0.5,
        "senet.reduce.weight": [[2.0, -1.0]],  # 2
        "senet.expand.weight": [[0.5], [1.0]],  # weights 1 and 2: v = (1, 2), (6, -2)
        "bilinear.W": [[[1.0, 0.0], [2.0, 1.0]]],  # x1 W = (5, 2), p = (15, -2)
        "weighted_bilinear.W": [[[0.0, 1.0], [1.0, 0.0]]],  # v1 W' = (2, 1), q = (12, -2)
    }
    network.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    batch = lab.batch(TINY, 1)
    assert network(batch).tolist() == [0.5 + 0.25 - 1 + (15 - 2) + (12 - 2)]
    assert network.field_weights(batch).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_with_identity_matrices_and_senet_shut_it_is_fm(lab, layout, kind):
    network, batch = (
        lab.randomized(FiBiNET(embedding_dim=3, hidden=(), bilinear=kind).build(layout)),
        lab.batch(layout, 6),
    )
    fm = FM(embedding_dim=3).build(layout).double()
    with torch.no_grad():
        network.bilinear.W.copy_(torch.eye(3).expand_as(network.bilinear.W))
        network.senet.expand.weight.zero_()
    state = network.state_dict()
    fm.load_state_dict({name: state[name] for name in fm.state_dict()})
    torch.testing.assert_close(network(batch), fm(batch))


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_fields_is_part_of_the_function(lab, kind):
    """As in the equations: turned round, a pair's vector is another one, unless W is diagonal."""
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 5)
    moved_layout, moved_batch = lab.reorder(layout, batch, [3, 2, 1, 0])
    settings = FiBiNET(embedding_dim=3, hidden=(), bilinear=kind)

    def turned_round_is_equal(W):
        network, moved = lab.randomized(settings.build(layout)), settings.build(moved_layout).double()
        with torch.no_grad():
            network.senet.expand.weight.zero_()  # only the pairs' order is left
            network.bilinear.W.copy_(W.expand_as(network.bilinear.W))
        moved.load_state_dict(network.state_dict())
        return torch.allclose(network(batch), moved(moved_batch))

    diagonal = torch.diag(torch.tensor([1.0, -2.0, 0.5]))
    assert turned_round_is_equal(diagonal)
    assert not turned_round_is_equal(diagonal + torch.triu(torch.ones(3, 3), 1))


@pytest.mark.parametrize("kind", KINDS)
def test_shared_matrices_are_two_equal_ones(lab, kind):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 5)
    shared = lab.randomized(FiBiNET(embedding_dim=3, hidden=(5,), bilinear=kind, shared_bilinear=True).build(layout))
    apart = FiBiNET(embedding_dim=3, hidden=(5,), bilinear=kind).build(layout).double()
    state = shared.state_dict()
    apart.load_state_dict(state | {"weighted_bilinear.W": state["bilinear.W"]})
    torch.testing.assert_close(apart(batch), shared(batch))


def test_the_logit_has_one_bias():
    deep, shallow = (set(FiBiNET(hidden=h).build(TINY).state_dict()) for h in [(4,), ()])
    assert {"mlp.output.bias"} == {n for n in deep if n.endswith("bias")} - {"mlp.layers.0.0.bias"}
    assert {n for n in shallow if n.endswith("bias")} == {"first_order.bias"}


def test_parameter_count_is_the_formula(subtests):
    for shared in [True, False]:
        for kind, matrices in [("all", 1), ("each", 4), ("interaction", 10)]:
            with subtests.test(shared=shared, kind=kind, matrices=matrices):
                sizes, dim = [7, 3, 4, 5, 2], 6
                settings = FiBiNET(
                    embedding_dim=dim, bilinear=kind, shared_bilinear=shared, reduction_ratio=2, hidden=(8, 4)
                )
                senet, bilinear = 2 * 5 * 2, matrices * dim * dim * (1 if shared else 2)
                mlp = (5 * 4 * dim + 1) * 8 + (8 + 1) * 4 + (4 + 1)
                assert (
                    parameter_count(settings.build(Layout.of_sizes(sizes))) == 21 * (dim + 1) + senet + bilinear + mlp
                )


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"bilinear": "field_all"}, "bilinear must be one of 'all', 'each', 'interaction', found 'field_all'"),
        ({"senet_activation": "tanh"}, "senet_activation must be one of 'relu', 'sigmoid', found 'tanh'"),
        ({"reduction_ratio": 0.0}, "reduction_ratio must be above 0 and finite, found 0.0"),
        ({"reduction_ratio": float("nan")}, "reduction_ratio must be above 0 and finite, found nan"),
        ({"hidden": [4]}, r"hidden must be a tuple of sizes, as in \(400, 400\), found \[4\]"),
        ({"hidden": (4, 0)}, r"hidden\[1\] must be a whole number of at least 1, found 0"),
        ({"mlp_dropout": 1.0}, "mlp_dropout must be at least 0 and less than 1, found 1.0"),
        ({"embedding_std": -0.1}, "embedding_std must be above 0 and finite, found -0.1"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            FiBiNET(**settings)


def test_one_field_has_no_pair():
    with pytest.raises(ConfigError, match="FiBiNET multiplies pairs of fields and needs at least 2 fields, found 1"):
        FiBiNET().build(Layout.of_sizes([3]))
