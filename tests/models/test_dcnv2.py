import itertools

import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import DCN, DCNv2, parameter_count

SMALL = {"embedding_dim": 3, "layers": 2, "hidden": (5,)}


def crossed(network, batch):
    x0 = x = network.embedding(batch).flatten(1)
    for layer in network.cross:
        x = layer(x0, x)
    return x0, x


def test_one_row_by_hand(lab):
    """Two fields of one category, D = 1, one cross layer: stacked on it, or beside it, an MLP of one unit."""
    layout, values = Layout.of_sizes([1, 1]), {
        "embedding.weight": [[2.0], [-1.0]],
        "cross.0.weight": [[1.0, 3.0], [0.0, 2.0]],
        "cross.0.bias": [0.5, 0.0],
        "mlp.layers.0.0.weight": [[1.0, 2.0]],
        "mlp.layers.0.0.bias": [1.0],
        "head.bias": [7.0],
    }  # fmt: skip
    # W x0 + b = (2 - 3 + 0.5, -2) = (-0.5, -2): x1 = (-1, 2) + (2, -1) = (1, 1).
    # Stacked: relu(1 + 2 + 1) = 4, logit 400 + 7. Parallel: relu(2 - 2 + 1) = 1, logit 1 + 10 + 100 + 7.
    for structure, head, logit in (("stacked", [[100.0]], 407.0), ("parallel", [[1.0, 10.0, 100.0]], 118.0)):
        settings = DCNv2(embedding_dim=1, layers=1, hidden=(1,), structure=structure)
        network = settings.build(layout).double().eval()
        state = network.state_dict()
        for name, value in (values | {"head.weight": head}).items():
            state[name].copy_(torch.tensor(value))
        assert network(lab.batch(layout, 1)).item() == pytest.approx(logit)


def test_with_equal_rows_and_no_biases_it_is_dcn(lab, layout):
    """W = 1 w^T falls back to DCN, as the paper says, where b is 0; see the layers' tests for what a b does."""
    dcn = lab.randomized(DCN(embedding_dim=3, layers=3, hidden=(5,), batch_norm=False).build(layout))
    v2 = DCNv2(embedding_dim=3, layers=3, hidden=(5,), structure="parallel").build(layout).double()
    for layer in dcn.cross:
        torch.nn.init.zeros_(layer.bias)
    state = dcn.state_dict()
    for i in range(3):
        state[f"cross.{i}.weight"] = state[f"cross.{i}.weight"].expand(3 * layout.num_fields, -1)
    v2.load_state_dict(state)
    batch = lab.batch(layout, 6)
    torch.testing.assert_close(v2(batch), dcn(batch), atol=1e-10, rtol=1e-10)


def test_without_an_mlp_both_structures_are_the_cross_network_alone(lab):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 5)
    stacked = lab.randomized(DCNv2(embedding_dim=3, hidden=()).build(layout))
    parallel = lab.randomized(DCNv2(embedding_dim=3, hidden=(), structure="parallel").build(layout))
    parallel.load_state_dict(stacked.state_dict())
    assert torch.equal(stacked(batch), parallel(batch))
    torch.testing.assert_close(stacked(batch), stacked.head(crossed(stacked, batch)[1])[:, 0])


def test_a_cross_is_more_than_a_multiple_of_the_fields(lab):
    """What DCN V2 lifts: without biases DCN's x_L / x_0 is one number a row."""
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 5)
    network = lab.randomized(DCNv2(embedding_dim=3, hidden=()).build(layout))
    for layer in network.cross:
        torch.nn.init.zeros_(layer.bias)
    x0, x = crossed(network, batch)
    assert ((x / x0).std(1) > 0.01).all()


def test_a_number_is_crossed_as_its_value_times_its_vector(lab):
    """NOTE[DIFF]: the paper's x_0 holds the number itself."""
    layout = lab.layouts["numeric"]
    network, batch = lab.randomized(DCNv2(embedding_dim=2, layers=1, hidden=()).build(layout)), lab.batch(layout, 1)
    table, W, b = (p.detach() for p in (network.embedding.weight, network.cross[0].weight, network.cross[0].bias))
    x0 = torch.cat([batch.values[0, f] * table[batch.ids[0, f]] for f in range(3)])
    torch.testing.assert_close(network(batch), network.head(x0 * (W @ x0 + b) + x0))


def test_every_layer_has_gates_of_its_own(lab):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 5)
    network = lab.randomized(DCNv2(**SMALL, rank=2, experts=3).build(layout))
    gates = [layer.gates(network.embedding(batch).flatten(1)) for layer in network.cross]
    assert not torch.allclose(*gates)
    for share in gates:
        torch.testing.assert_close(share.sum(1), torch.ones(5, dtype=torch.float64))


def test_every_choice_changes_the_function(lab):
    """No option is accepted and then ignored."""
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 5)
    low = {"rank": 2, "experts": 2}
    options = [
        {},
        {"structure": "parallel"},
        {"rank": 2, "experts": 1},
        low,
        low | {"gate": "sigmoid"},
        low | {"gate": "constant"},
        low | {"expert_activation": "identity"},
        low | {"expert_activation": "hard_tanh"},
        low | {"expert_activation": "relu"},
        low | {"rank": 3},
        {"batch_norm": True},
    ]
    logits = [lab.randomized(DCNv2(**SMALL, **option).build(layout))(batch) for option in options]
    for first, second in itertools.combinations(logits, 2):
        assert not torch.allclose(first, second)


def test_the_defaults_are_the_papers():
    s = DCNv2()
    assert (s.layers, s.structure, s.hidden, s.rank, s.experts, s.batch_norm) == (
        2,
        "stacked",
        (768, 768),
        None,
        4,
        False,
    )


def test_parameter_count_is_the_formula(subtests):
    """NOTE[DIFF]: the last 1 is the bias that the paper's last unit has not."""
    for low, layer in [
        ({}, 10 * 10 + 10),
        ({"rank": 3, "experts": 4}, 4 * (2 * 10 * 3 + 3 * 3) + 10 + 4 * 10),
        ({"rank": 3, "experts": 4, "gate": "constant"}, 4 * (2 * 10 * 3 + 3 * 3) + 10),
        ({"rank": 3, "experts": 4, "expert_activation": "identity"}, 4 * 2 * 10 * 3 + 10 + 4 * 10),
        ({"rank": 3, "experts": 1}, 2 * 10 * 3 + 3 * 3 + 10),
    ]:
        for structure in ["stacked", "parallel"]:
            with subtests.test(low=low, layer=layer, structure=structure):
                mlp, head = (10 * 7 + 7) + (7 * 4 + 4), 4 + (10 if structure == "parallel" else 0) + 1
                settings = DCNv2(embedding_dim=5, layers=3, hidden=(7, 4), structure=structure, **low)
                assert parameter_count(settings.build(Layout.of_sizes([30, 12]))) == 42 * 5 + 3 * layer + mlp + head


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"layers": 0}, "layers must be a whole number of at least 1, found 0"),
        ({"structure": "serial"}, "structure must be one of 'stacked', 'parallel', found 'serial'"),
        ({"rank": 0}, "rank must be a whole number of at least 1, found 0"),
        ({"rank": 4, "experts": 0}, "experts must be a whole number of at least 1, found 0"),
        ({"gate": "none"}, "gate must be one of 'softmax', 'sigmoid', 'constant', found 'none'"),
        ({"expert_activation": "gelu"}, "expert_activation must be one of 'identity', 'tanh', 'hard_tanh', 'relu'"),
        ({"hidden": (8, 0)}, r"hidden\[1\] must be a whole number of at least 1, found 0"),
        ({"mlp_dropout": -0.1}, "mlp_dropout must be at least 0 and less than 1, found -0.1"),
        ({"embedding_std": 0.0}, "embedding_std must be above 0 and finite, found 0.0"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            DCNv2(**settings)


def test_no_field_is_refused():
    with pytest.raises(ConfigError, match="DCNv2 crosses fields and needs at least 1 field, found none: add fields"):
        DCNv2().build(Layout(()))
