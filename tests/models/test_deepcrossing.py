import pytest
import torch
from parity import lab as laboratory

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import DeepCrossing, parameter_count
from fieldwise.models.deepcrossing import ResidualUnit

SMALL = {"embedding_dim": 3, "hidden": (6, 5)}


def test_one_row_by_hand_with_a_number(lab):
    """NOTE[DIFF]: a number is embedded too: its value times its field's vector, then the bias and ReLU of its field."""
    layout = laboratory.make_layout(("id", "user", 1), ("value", "item", 1))
    network = DeepCrossing(embedding_dim=1, hidden=(1,)).build(layout).double()
    state = network.state_dict()
    for name, value in {
        "embedding.weight": [[2.0], [-1.0]],
        "embedding_bias": [[-0.5], [4.0]],
        "units.0.inner.weight": [[2.0, 1.0]],
        "units.0.inner.bias": [-1.0],
        "units.0.outer.weight": [[-1.0], [0.5]],
        "units.0.outer.bias": [0.0, -0.25],
        "head.weight": [[4.0, 2.0]],
        "head.bias": [0.1],
    }.items():
        state[name].copy_(torch.tensor(value))
    batch = lab.batch(layout, 1)
    # Stacked relu(2 - 0.5, 3 * -1 + 4) = (1.5, 1); inner relu(3 + 1 - 1) = 3; sum (1.5 - 3, 1 + 1.5 - 0.25), whose ReLU
    # comes after: (0, 2.25); score 4.5 + 0.1.
    assert network(batch._replace(values=torch.tensor([[3.0]]).double())).item() == pytest.approx(4.6)
    # With 5 the number's entry is relu(-5 + 4) = 0: inner relu(3 - 1) = 2; relu(-0.5, 0.75) = (0, 0.75).
    assert network(batch._replace(values=torch.tensor([[5.0]]).double())).item() == pytest.approx(1.6)


def test_a_unit_whose_second_layer_is_zero_passes_its_input_on(lab, layout):
    """The residual is added before the ReLU, and the stacked vector is not negative: any depth scores alike."""
    network = lab.randomized(DeepCrossing(**SMALL).build(layout))
    for unit in network.units:
        torch.nn.init.zeros_(unit.outer.weight)
        torch.nn.init.zeros_(unit.outer.bias)
    batch = lab.batch(layout, 5)
    w = lab.weights(network)
    stacked = (lab.fields(layout, batch, w["embedding.weight"]) + w["embedding_bias"]).clip(min=0).reshape(5, -1)
    expected = torch.from_numpy(stacked @ w["head.weight"][0] + w["head.bias"][0])
    torch.testing.assert_close(network(batch), expected, atol=1e-10, rtol=1e-10)


def test_batch_norm_is_between_the_sum_and_its_relu():
    torch.manual_seed(0)
    unit = ResidualUnit(4, 3, batch_norm=True).double().train()
    x = torch.randn(16, 4, dtype=torch.float64)
    total = x + unit.outer(torch.relu(unit.inner(x)))
    expected = torch.relu((total - total.mean(0)) / (total.var(0, unbiased=False) + 1e-5).sqrt())
    torch.testing.assert_close(unit(x), expected)


def test_dropout_falls_on_the_outputs_of_units():
    unit = ResidualUnit(4, 3, dropout=0.5).double()
    x = torch.rand(64, 4, dtype=torch.float64) + 0.5
    for layer in (unit.inner, unit.outer):
        torch.nn.init.zeros_(layer.weight)
    torch.manual_seed(0)
    assert set((unit.train()(x) / x).round(decimals=6).flatten().tolist()) == {0.0, 2.0}
    assert torch.equal(unit.eval()(x), x)


def test_without_embedding_relu_negative_entries_reach_the_first_unit(lab):
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 5)
    network = lab.randomized(DeepCrossing(**SMALL, embedding_relu=False).build(layout))
    assert network.embedding_bias is None
    seen = []
    network.units[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(batch)
    assert torch.equal(seen[0], network.embedding(batch).flatten(1))
    assert (seen[0] < 0).any()


def test_the_defaults_are_the_authors():
    s = DeepCrossing()
    assert (s.embedding_dim, s.hidden, s.embedding_relu) == (128, (512, 512, 256, 128, 64), True)
    assert (s.unit_dropout, s.batch_norm) == (0.0, False)


def test_parameter_count_is_the_formula(subtests):
    for batch_norm in [False, True]:
        for relu in [False, True]:
            with subtests.test(batch_norm=batch_norm, relu=relu):
                rows, stacked = 42, 2 * 5
                units = sum(2 * stacked * h + h + stacked + (2 * stacked if batch_norm else 0) for h in (7, 4))
                settings = DeepCrossing(embedding_dim=5, hidden=(7, 4), embedding_relu=relu, batch_norm=batch_norm)
                count = parameter_count(settings.build(Layout.of_sizes([30, 12])))
                assert count == rows * 5 + (stacked if relu else 0) + units + stacked + 1


def test_parameter_counts_are_those_of_the_nfm_papers_table_3(subtests):
    for features, fields, dim, millions in [
        (5_382, 10, 128, 4.47),
        (5_382, 10, 256, 8.93),
        (90_445, 3, 128, 12.71),
        (90_445, 3, 256, 25.42),
    ]:
        with subtests.test(features=features, fields=fields, dim=dim, millions=millions), torch.device("meta"):
            network = DeepCrossing(embedding_dim=dim).build(Layout.of_sizes([features, *[0] * (fields - 1)]))
            assert round(parameter_count(network) / 1e6, 2) == millions


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": True}, "embedding_dim must be a whole number of at least 1, found True"),
        ({"hidden": ()}, "hidden must name the size of at least one layer"),
        ({"hidden": (8, 2.0)}, r"hidden\[1\] must be a whole number of at least 1, found 2.0"),
        ({"unit_dropout": 1.0}, "unit_dropout must be at least 0 and less than 1, found 1.0"),
        ({"embedding_std": float("nan")}, "embedding_std must be above 0 and finite, found nan"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            DeepCrossing(**settings)
