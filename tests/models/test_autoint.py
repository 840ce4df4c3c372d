import math

import pytest
import torch
from parity.reference import autoint as reference

from fieldwise.errors import ConfigError
from fieldwise.layers import InteractingLayer
from fieldwise.layout import Layout
from fieldwise.models import AutoInt, AutoIntPlus, parameter_count

SMALL = {"embedding_dim": 4, "layers": 2, "heads": 2, "attention_dim": 6}


def test_a_row_by_hand(lab):
    """Vectors 1 and 2; Wq = 1, Wk = log 2, Wv = 1, Wres = -1, so that a score is a power of 2.

    Field 1 scores 2^1 : 2^2, takes 1/3 * 1 + 2/3 * 2 = 5/3, less its own 1 leaves 2/3.
    Field 2 scores 2^2 : 2^4, takes 1/5 * 1 + 4/5 * 2 = 9/5, less its own 2 leaves -1/5, and ReLU 0.
    """
    layout = Layout.of_sizes([1, 1])
    network = AutoInt(embedding_dim=1, layers=1, heads=1, attention_dim=1).build(layout).double()
    with torch.no_grad():
        network.embedding.weight.copy_(torch.tensor([[1.0], [2.0]]))
        network.layers[0].projection.weight.copy_(torch.tensor([[1.0], [math.log(2)], [1.0], [-1.0]]))
        network.head.weight.copy_(torch.tensor([[3.0, 5.0]]))
        network.head.bias.fill_(1.0)
    batch = lab.batch(layout, 1)
    assert network(batch).item() == pytest.approx(3 * 2 / 3 + 0 + 1, abs=1e-6)  # log 2 is set as float32
    expected = torch.tensor([[1 / 3, 2 / 3], [1 / 5, 4 / 5]], dtype=torch.float64)
    torch.testing.assert_close(network.attention_weights(batch)[0][0, 0], expected, atol=1e-6, rtol=0)


def identity_layer(size=2, **choices):
    """A layer whose heads give nothing, so that the sum is the input itself."""
    layer = InteractingLayer(size, size, 1, residual="where_sizes_differ", **choices)
    torch.nn.init.zeros_(layer.projection.weight)
    return layer


def test_norm_is_before_or_after_the_relu(subtests):
    for norm, output_relu, expected in [
        ("none", True, [2.0, 0.0]),
        ("before_relu", True, [1.0, 0.0]),  # 2 and -4 have mean -1 and deviation 3
        ("after_relu", True, [1.0, -1.0]),  # 2 and 0 have mean 1 and deviation 1
        ("before_relu", False, [1.0, -1.0]),
    ]:
        with subtests.test(norm=norm, output_relu=output_relu, expected=expected):
            found = identity_layer(norm=norm, output_relu=output_relu)(torch.tensor([[[2.0, -4.0]]]))
            torch.testing.assert_close(found, torch.tensor([[expected]]), atol=1e-4, rtol=0)


def test_the_authors_norm_adds_1e_8_to_the_variance(lab):
    """A ReLU output of (0.002, 0) has mean 0.001 and variance 1e-6: 1e-5 would leave 0.3 of the normed 1."""
    for epsilon in (1e-8, 1e-5):
        layer = identity_layer(norm="after_relu", norm_epsilon=epsilon)
        expected = 0.001 / math.sqrt(1e-6 + epsilon)
        for found in (layer(torch.tensor([[[0.002, -1.0]]])), layer.attend(torch.tensor([[[0.002, -1.0]]]))[0]):
            torch.testing.assert_close(found, torch.tensor([[[expected, -expected]]]), atol=1e-5, rtol=0)
    layout = Layout.of_sizes([2, 2])
    default = {"paper": 1e-5, "authors": 1e-8, "fuxictr": 1e-5, "transformer": 1e-5}
    for variant, epsilon in default.items():
        layers = AutoInt(**SMALL | {"attention_dim": 4}, variant=variant, norm="before_relu").build(layout).layers
        assert [layer.norm.eps for layer in layers] == [epsilon] * 2
    assert AutoIntPlus(**SMALL, variant="authors", norm_epsilon=0.1).build(layout).layers[0].norm.eps == 0.1
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(ConfigError, match="norm_epsilon must be above 0"):
            AutoInt(norm_epsilon=wrong)


def test_scale_divides_scores_by_the_root_of_a_heads_size(lab):
    """Queries twice as large with heads of size 4 and scale score as plain ones."""
    plain, scaled = InteractingLayer(4, 8, 2), InteractingLayer(4, 8, 2, scale=True)
    scaled.load_state_dict(plain.state_dict())
    scaled.projection.weight.data[:8] *= 2
    x = torch.randn(3, 5, 4)
    torch.testing.assert_close(scaled(x), plain(x))


def test_attention_weights_are_shares_of_fields(lab):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 5)
    network = lab.randomized(AutoInt(embedding_dim=4, layers=3, heads=2, attention_dim=6).build(layout))
    weights = network.attention_weights(batch)
    assert [w.shape for w in weights] == [(5, 2, 7, 7)] * 3
    for w in weights:
        torch.testing.assert_close(w.sum(3), torch.ones(5, 2, 7, dtype=torch.float64))


def test_permuting_fields_permutes_the_layers_only(lab):
    layout, order = lab.layouts["categorical"], [2, 0, 3, 1]
    network = lab.randomized(AutoInt(embedding_dim=4, layers=1, heads=2, attention_dim=6).build(layout))
    x = torch.randn(3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(network.layers[0](x)[:, order], network.layers[0](x[:, order]))


def test_dropout_acts_while_training_alone(subtests, lab):
    for place in ["embedding_dropout", "attention_dropout", "mlp_dropout"]:
        with subtests.test(place=place):
            layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 16)
            settings = AutoIntPlus(embedding_dim=4, layers=1, heads=2, attention_dim=6, hidden=(8,), **{place: 0.5})
            network = lab.randomized(settings.build(layout))
            calm = network(batch)
            assert torch.equal(calm, network(batch))
            assert not torch.allclose(network.train()(batch), calm)


def test_plus_without_its_mlps_last_unit_is_autoint(lab, layout):
    plus = lab.randomized(AutoIntPlus(**SMALL, hidden=(5,), wide=True).build(layout))
    torch.nn.init.zeros_(plus.mlp.output.weight)
    torch.nn.init.zeros_(plus.mlp.output.bias)
    plain = AutoInt(**SMALL, wide=True).build(layout).double().eval()
    plain.load_state_dict({name: p for name, p in plus.state_dict().items() if not name.startswith("mlp.")})
    batch = lab.batch(layout, 4)
    assert torch.equal(plus(batch), plain(batch))


# Variants


def test_a_variant_is_its_row_of_choices(subtests, lab):
    """By name and choice by choice, one network: the same parameters from the same seed, and the same logits."""
    for variant in list(reference.VARIANTS):
        with subtests.test(variant=variant):
            layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 5)
            networks = [
                lab.randomized(AutoInt(**SMALL, **settings).build(layout))
                for settings in ({"variant": variant}, reference.VARIANTS[variant])
            ]
            names = [list(network.state_dict()) for network in networks]
            assert names[0] == names[1]
            assert torch.equal(networks[0](batch), networks[1](batch))


def test_the_variants_are_four_functions(lab):
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 5)
    equal_sizes = SMALL | {"attention_dim": 4}  # where FuxiCTR's residual, too, is the input itself
    found = [lab.randomized(AutoInt(**equal_sizes, variant=v).build(layout))(batch) for v in reference.VARIANTS]
    for i, first in enumerate(found):
        assert not any(torch.allclose(first, other) for other in found[:i])


def test_the_default_is_the_papers():
    s = AutoInt()
    assert (s.variant, s.embedding_dim, s.layers, s.heads, s.attention_dim, s.wide) == ("paper", 16, 3, 2, 64, False)
    assert AutoIntPlus().variant == "paper"
    assert AutoIntPlus().hidden == (400, 400)


@pytest.mark.parametrize(("attention_dim", "projected"), [(4, [False, False]), (6, [True, False])])
def test_a_transformers_residual_is_projected_only_where_it_must_be(attention_dim, projected):
    """NOTE[DIFF]: a transformer would refuse sizes that differ."""
    settings = AutoInt(**(SMALL | {"attention_dim": attention_dim}), variant="transformer")
    network = settings.build(Layout.of_sizes([3, 4]))
    assert [layer.projects_residual for layer in network.layers] == projected


def test_norm_adds_pytorchs_constant_to_the_variance():
    """NOTE[DIFF]: the authors' code adds 1e-8, with which this would be 0.995."""
    found = identity_layer(norm="after_relu")(torch.tensor([[[2e-3, 0.0]]]))
    torch.testing.assert_close(found, torch.tensor([[[1.0, -1.0]]]) * 1e-3 / math.sqrt(1e-6 + 1e-5))


def test_linear_units_start_from_xavier_with_biases_of_zero(subtests):
    """NOTE[DIFF]: whatever the authors' code draws."""
    for variant in list(reference.VARIANTS):
        with subtests.test(variant=variant):
            torch.manual_seed(0)
            settings = AutoIntPlus(variant=variant, attention_dim=300, hidden=(500,), layers=1, embedding_dim=200)
            network = settings.build(Layout.of_sizes([1, 1]))
            for name, p in network.named_parameters():
                if name.endswith("bias"):
                    assert p.abs().max() == 0, name
            parts = network.layers[0].projection.weight.detach().split(300)
            for weight in (*parts, network.mlp.layers[0][0].weight.detach(), network.head.weight.detach()):
                assert float(weight.std()) == pytest.approx(math.sqrt(2 / sum(weight.shape)), rel=0.1)


# Size, and what is refused


def test_parameter_count_is_the_formula(subtests):
    for case in list(reference.CASES):
        with subtests.test(case=case):
            settings = reference.CASES[case]
            choice, fields, rows = reference.chosen(settings), 3, 12
            dim, size, inputs = settings.embedding_dim, settings.attention_dim, settings.embedding_dim
            expected = rows * dim + fields * size + 1 + rows * settings.wide + fields * dim * choice["field_vectors"]
            for _ in range(settings.layers):
                projects = choice["residual"] == "projected" or (
                    choice["residual"] == "where_sizes_differ" and inputs != size
                )
                expected += (3 + projects) * size * (inputs + choice["projection_bias"])
                expected += size * (size + choice["projection_bias"]) * choice["output_projection"]
                expected += 2 * size * (choice["norm"] != "none")
                inputs = size
            assert parameter_count(settings.build(Layout.of_sizes([4] * fields))) == expected


def test_plus_has_its_mlp_more():
    layout = Layout.of_sizes([4, 4, 4])
    plain, plus = AutoInt(**SMALL), AutoIntPlus(**SMALL, hidden=(7, 5), batch_norm=True)
    mlp = (3 * 4 * 7 + 7) + 2 * 7 + (7 * 5 + 5) + 2 * 5 + (5 + 1)
    assert parameter_count(plus.build(layout)) - parameter_count(plain.build(layout)) == mlp


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"variant": "bars"}, "variant must be one of 'paper', 'authors', 'fuxictr', 'transformer', found 'bars'"),
        (
            {"attention_dim": 6, "heads": 4},
            "attention_dim must be divisible by heads, found attention_dim 6 and heads 4",
        ),
        ({"layers": 0}, "layers must be a whole number of at least 1, found 0"),
        (
            {"residual": "identity"},
            "residual must be one of 'projected', 'where_sizes_differ', 'none', found 'identity'",
        ),
        ({"norm": "after"}, "norm must be one of"),
        ({"attention_dropout": 1}, "attention_dropout"),
        ({"embedding_dropout": -1}, "embedding_dropout"),
        ({"embedding_std": float("inf")}, "embedding_std must be above 0 and finite"),
    ]:
        for cls in [AutoInt, AutoIntPlus]:
            with subtests.test(settings=settings, message=message, cls=cls), pytest.raises(ConfigError, match=message):
                cls(**settings)


def test_the_mlp_needs_sizes(subtests):
    for hidden in [(), (8, 0), [8]]:
        with subtests.test(hidden=hidden), pytest.raises(ConfigError, match="hidden"):
            AutoIntPlus(hidden=hidden)


def test_no_field_is_refused(subtests):
    for cls, name in [(AutoInt, "AutoInt"), (AutoIntPlus, r"AutoInt\+")]:
        with (
            subtests.test(cls=cls, name=name),
            pytest.raises(ConfigError, match=f"^{name} attends to fields and needs at least 1 field, found none"),
        ):
            cls().build(Layout(()))
