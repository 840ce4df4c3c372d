import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import DCN, parameter_count


def test_one_row_by_hand(lab):
    """Two fields of one category, D = 1, one cross layer and an MLP of one unit."""
    layout = Layout.of_sizes([1, 1])
    network = DCN(embedding_dim=1, layers=1, hidden=(1,), batch_norm=False).build(layout).double().eval()
    state = network.state_dict()
    for name, value in {
        "embedding.weight": [[2.0], [-1.0]],
        "cross.0.weight": [1.0, 3.0],
        "cross.0.bias": [0.5, 0.0],
        "mlp.layers.0.0.weight": [[1.0, -1.0]],
        "mlp.layers.0.0.bias": [1.0],
        "head.weight": [[1.0, 10.0, 100.0]],
        "head.bias": [7.0],
    }.items():
        state[name].copy_(torch.tensor(value))
    # x0 . w = 2 - 3 = -1: x1 = (-2, 1) + (0.5, 0) + (2, -1) = (0.5, 0). MLP: relu(2 + 1 + 1) = 4. Head: 0.5 + 400 + 7.
    assert network(lab.batch(layout, 1)).item() == pytest.approx(407.5)


def test_a_number_is_crossed_as_its_value_times_its_vector(lab):
    """NOTE[DIFF]: the paper's x_0 holds the number itself."""
    layout = lab.layouts["numeric"]
    network, batch = lab.randomized(DCN(embedding_dim=2, layers=1, hidden=()).build(layout)), lab.batch(layout, 1)
    table, w, b = (p.detach() for p in (network.embedding.weight, network.cross[0].weight, network.cross[0].bias))
    x0 = torch.cat([batch.values[0, f] * table[batch.ids[0, f]] for f in range(3)])
    expected = network.head(x0 * (x0 @ w) + b + x0)
    torch.testing.assert_close(network(batch), expected)


def test_less_its_biases_the_cross_is_a_multiple_of_the_fields(lab):
    """What xDeepFM's authors hold against DCN (KDD 2018, Theorem 2.1): x_L is x_0 times one number."""
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 5)
    network = lab.randomized(DCN(embedding_dim=3, layers=4, hidden=()).build(layout))
    x0 = x = network.embedding(batch).flatten(1)
    for layer in network.cross:
        x = layer(x0, x)
    ratio = (x - sum(layer.bias for layer in network.cross)) / x0
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
    assert ratio[:, 0].std() > 0


def test_with_a_silent_cross_it_is_an_mlp_beside_a_linear_unit(lab, layout):
    network, batch = lab.randomized(DCN(embedding_dim=3, layers=2, hidden=(5,)).build(layout)), lab.batch(layout, 4)
    for layer in network.cross:
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    x0 = network.embedding(batch).flatten(1)
    torch.testing.assert_close(network(batch), network.head(torch.cat([x0, network.mlp(x0)], 1))[:, 0])


def test_the_defaults_are_the_papers():
    s = DCN()
    assert (s.layers, s.hidden, s.batch_norm, s.mlp_dropout) == (6, (1024, 1024), True, 0.0)


def test_parameter_count_is_the_formula(subtests):
    """NOTE[DIFF]: the last 1 is the bias that the paper's Equation 5 has not."""
    for hidden in [(), (7, 4)]:
        for batch_norm in [False, True]:
            with subtests.test(hidden=hidden, batch_norm=batch_norm):
                rows, inputs, layers = 42, 2 * 5, 3
                mlp = (inputs * 7 + 7) + (7 * 4 + 4) + (2 * (7 + 4) if batch_norm else 0) if hidden else 0
                settings = DCN(embedding_dim=5, layers=layers, hidden=hidden, batch_norm=batch_norm)
                count = parameter_count(settings.build(Layout.of_sizes([30, 12])))
                assert count == rows * 5 + layers * 2 * inputs + mlp + inputs + (4 if hidden else 0) + 1


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"layers": 0}, "layers must be a whole number of at least 1, found 0"),
        ({"hidden": []}, r"hidden must be a tuple of sizes, as in \(400, 400\), found \[\]"),
        ({"hidden": (8, 0)}, r"hidden\[1\] must be a whole number of at least 1, found 0"),
        ({"mlp_dropout": 1.0}, "mlp_dropout must be at least 0 and less than 1, found 1.0"),
        ({"embedding_std": float("nan")}, "embedding_std must be above 0 and finite, found nan"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            DCN(**settings)


def test_no_field_is_refused():
    with pytest.raises(ConfigError, match="DCN crosses fields and needs at least 1 field, found none: add fields"):
        DCN().build(Layout(()))
