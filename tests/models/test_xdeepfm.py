import itertools

import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FM, DeepFM, XDeepFM, parameter_count

SMALL = {"embedding_dim": 3, "hidden": (6, 5)}


def pairs_alone(network):
    """Makes the CIN's first map the sum of x_i * x_j over i < j, with weight 1 in the logit."""
    weight = network.cin.layers[0].weight
    with torch.no_grad():
        weight.copy_(torch.ones_like(weight[:, :, 0]).triu(1).unsqueeze(2))
        network.head.weight.fill_(1.0)
    return network


def test_one_row_by_hand(lab):
    layout = Layout.of_sizes([1, 1])
    network = XDeepFM(embedding_dim=2, cin_layers=(1,), hidden=(1,)).build(layout).double().eval()
    state = network.state_dict()
    for name, value in {
        "embedding.weight": [[1.0, 2.0], [3.0, -1.0]],
        "first_order.embedding.weight": [[0.1], [0.2]],
        "cin.layers.0.weight": [[[1.0], [0.0]], [[2.0], [-1.0]]],
        "head.weight": [[10.0]],
        "mlp.layers.0.0.weight": [[1.0, 1.0, 1.0, 1.0]],
        "mlp.layers.0.0.bias": [-1.0],
        "mlp.output.weight": [[100.0]],
        "mlp.output.bias": [0.5],
    }.items():
        state[name].copy_(torch.tensor(value))
    # x1 x1 + 2 x1 x2 - x2 x2 = (1, 4) + (6, -4) - (9, 1) = (-2, -1): -3. MLP: relu(5 - 1) = 4.
    assert network(lab.batch(layout, 1)).item() == pytest.approx(0.3 - 30.0 + 400.5)


def test_a_constant_filter_over_pairs_is_fm_and_with_an_mlp_deepfm(lab, layout):
    """Section 3.3.1 of the paper: one layer of one map."""
    batch = lab.batch(layout, 6)
    cin = pairs_alone(lab.randomized(XDeepFM(embedding_dim=3, cin_layers=(1,), hidden=()).build(layout)))
    fm = FM(embedding_dim=3).build(layout).double()
    shared = {n: p for n, p in cin.state_dict().items() if n in fm.state_dict()}
    fm.load_state_dict(shared | {"first_order.bias": cin.head.bias.detach()[0]})
    torch.testing.assert_close(cin(batch), fm(batch), atol=1e-10, rtol=1e-10)

    network = pairs_alone(lab.randomized(XDeepFM(**SMALL, cin_layers=(1,)).build(layout)))
    deepfm = DeepFM(**SMALL, mlp_dropout=0.0).build(layout).double().eval()
    deepfm.load_state_dict({n: p for n, p in network.state_dict().items() if n in deepfm.state_dict()})
    torch.testing.assert_close(network(batch), deepfm(batch), atol=1e-10, rtol=1e-10)


def test_the_cin_alone_is_one_unit_on_its_sums(lab, layout):
    """Equation 8. NOTE[DIFF]: with a bias."""
    network = lab.randomized(XDeepFM(embedding_dim=3, cin_layers=(4, 3), hidden=(), wide=False).build(layout))
    batch = lab.batch(layout, 4)
    sums = network.cin(network.embedding(batch))
    torch.testing.assert_close(network(batch), sums @ network.head.weight[0] + network.head.bias)
    assert {n.split(".")[0] for n, _ in network.named_parameters()} == {"embedding", "cin", "head"}


def test_a_field_is_multiplied_with_itself_in_every_variant(subtests, lab):
    """NOTE[DIFF]: the authors' later code takes these products out of the first layer."""
    for variant in ["paper", "authors", "deepctr", "fuxictr"]:
        with subtests.test(variant=variant):
            layout = Layout.of_sizes([4])
            network = lab.randomized(
                XDeepFM(embedding_dim=3, cin_layers=(4,), variant=variant, hidden=(), wide=False).build(layout)
            )
            assert network(lab.batch(layout, 8)).std() > 1e-3


def test_variants(subtests):
    for variant, split_half, activation, biases, output_bias in [
        ("paper", False, "identity", False, False),
        ("authors", True, "identity", False, True),
        ("deepctr", True, "relu", True, False),
        ("fuxictr", False, "identity", True, True),
    ]:
        with subtests.test(
            variant=variant, split_half=split_half, activation=activation, biases=biases, output_bias=output_bias
        ):

            def build(**settings):
                return XDeepFM(**SMALL, cin_layers=(4, 4), **settings).build(Layout.of_sizes([3, 4]))

            def choices(network):
                cin = network.cin
                return cin.split_half, cin.activation, cin.layers[0].bias is not None, network.head.bias is not None

            assert choices(build(variant=variant)) == (split_half, activation, biases, output_bias)
            other = "relu" if activation == "identity" else "identity"
            given = {"split_half": not split_half, "cin_activation": other, "cin_bias": not biases}
            overridden = build(variant=variant, **given, cin_output_bias=not output_bias)
            assert choices(overridden) == (not split_half, other, not biases, not output_bias)


def test_every_choice_changes_the_function(lab):
    """No option is accepted and then ignored."""
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 5)
    options = [
        {},
        {"split_half": True},
        {"cin_activation": "relu"},
        {"cin_bias": True},
        {"cin_output_bias": True},
        {"wide": False},
        {"hidden": ()},
        {"batch_norm": True},
        {"cin_layers": (4,)},
    ]
    base = SMALL | {"cin_layers": (4, 4)}
    logits = [lab.randomized(XDeepFM(**(base | option)).build(layout))(batch) for option in options]
    for first, second in itertools.combinations(logits, 2):
        assert not torch.allclose(first, second)


def test_the_defaults_are_the_papers():
    s = XDeepFM()
    assert (s.embedding_dim, s.cin_layers, s.hidden, s.wide) == (10, (200, 200, 200), (400, 400), True)
    assert (s.variant, s.mlp_dropout, s.batch_norm) == ("paper", 0.0, False)


def test_parameter_count_is_the_formula(subtests):
    """H_k (1 + H_{k-1} F) for every layer of the CIN, as the paper's section 3.2.1 counts, and what a variant adds."""
    for settings, cin in [
        ({}, 4 * (2 * 2) + 6 * (4 * 2) + (4 + 6)),
        ({"variant": "authors"}, 4 * (2 * 2) + 6 * (2 * 2) + (2 + 6) + 1),
        ({"variant": "deepctr"}, 4 * (2 * 2 + 1) + 6 * (2 * 2 + 1) + (2 + 6)),
        ({"variant": "fuxictr"}, 4 * (2 * 2 + 1) + 6 * (4 * 2 + 1) + (4 + 6) + 1),
    ]:
        with subtests.test(settings=settings, cin=cin):
            rows, fields, d = 42, 2, 5
            mlp = (fields * d * 7 + 7) + (7 * 3 + 3) + (3 + 1)
            network = XDeepFM(embedding_dim=d, cin_layers=(4, 6), hidden=(7, 3), **settings).build(
                Layout.of_sizes([30, 12])
            )
            assert parameter_count(network) == rows * (d + 1) + cin + mlp


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        (
            {"variant": "microsoft"},
            "variant must be one of 'paper', 'authors', 'deepctr', 'fuxictr', found 'microsoft'",
        ),
        ({"cin_layers": ()}, "cin_layers must name the size of at least one layer"),
        ({"cin_layers": (8, 0)}, r"cin_layers\[1\] must be a whole number of at least 1, found 0"),
        (
            {"cin_layers": (8, 7, 5), "split_half": True},
            r"cin_layers\[1\] must be even where split_half is on, found 7",
        ),
        ({"cin_layers": (7, 5), "variant": "deepctr"}, r"cin_layers\[0\] must be even where split_half is on, found 7"),
        ({"cin_activation": "tanh"}, "cin_activation must be one of 'identity', 'relu', found 'tanh'"),
        ({"hidden": (8, 0)}, r"hidden\[1\] must be a whole number of at least 1, found 0"),
        ({"mlp_dropout": float("nan")}, "mlp_dropout must be at least 0 and less than 1, found nan"),
        ({"embedding_std": -1.0}, "embedding_std must be above 0 and finite, found -1.0"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            XDeepFM(**settings)


def test_no_field_is_refused():
    with pytest.raises(ConfigError, match="XDeepFM multiplies fields and needs at least 1 field, found none"):
        XDeepFM().build(Layout(()))
