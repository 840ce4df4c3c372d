import math

import pytest
import torch
from parity.reference import autoint as reference

from fieldwise import AutoInt, AutoIntPlus, ConfigError, Layout
from fieldwise.layers import InteractingLayer, InteractingOptions

SMALL = {"embedding_dim": 4, "layers": 2, "heads": 2, "attention_dim": 6}


def test_the_authors_norm_adds_1e_8_to_the_variance(lab):
    """A ReLU output of (0.002, 0) has mean 0.001 and variance 1e-6: 1e-5 would leave 0.3 of the normed 1."""
    for epsilon in (1e-8, 1e-5):
        options = InteractingOptions(residual="identity", norm="after_relu", norm_epsilon=epsilon)
        layer = InteractingLayer(2, 2, 1, options)
        # the heads give nothing: the sum is the input
        torch.nn.init.zeros_(layer.projection.weight)
        expected = 0.001 / math.sqrt(1e-6 + epsilon)
        for result in (
            layer(torch.tensor([[[0.002, -1.0]]])),
            layer.attend(torch.tensor([[[0.002, -1.0]]]))[0],
        ):
            torch.testing.assert_close(
                result, torch.tensor([[[expected, -expected]]]), atol=1e-5, rtol=0
            )
    layout = Layout.of_sizes([2, 2])
    default = {"paper": 1e-5, "authors": 1e-8, "fuxictr": 1e-5, "transformer": 1e-5}
    for variant, epsilon in default.items():
        layers = (
            AutoInt(**SMALL | {"attention_dim": 4}, variant=variant, norm="before_relu")
            .build(layout)
            .layers
        )
        assert [layer.norm.eps for layer in layers] == [epsilon] * 2


def test_attention_weights_are_shares_of_fields(lab):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 5)
    network = lab.randomized(
        AutoInt(embedding_dim=4, layers=3, heads=2, attention_dim=6).build(layout)
    )
    weights = network.attention_weights(batch)
    assert [w.shape for w in weights] == [(5, 2, 7, 7)] * 3
    for w in weights:
        torch.testing.assert_close(w.sum(3), torch.ones(5, 2, 7, dtype=torch.float64))


# Variants


@pytest.mark.parametrize(
    ("attention_dim", "residuals"), [(4, ["identity", "identity"]), (6, ["projected", "identity"])]
)
def test_a_transformers_residual_is_projected_only_where_it_must_be(attention_dim, residuals):
    """NOTE[DIFF]: a transformer would refuse sizes that differ."""
    settings = AutoInt(**(SMALL | {"attention_dim": attention_dim}), variant="transformer")
    network = settings.build(Layout.of_sizes([3, 4]))
    assert [layer.residual for layer in network.layers] == residuals


def test_positions_start_from_their_own_deviation():
    layout = Layout.of_sizes([2] * 300)
    for std, expected in ((1.0, 1.0), (None, 0.01)):
        torch.manual_seed(0)
        settings = AutoInt(variant="transformer", position_std=std, layers=1)
        assert float(settings.build(layout).field_vectors.detach().std()) == pytest.approx(
            expected, rel=0.05
        )
    with pytest.raises(
        ConfigError,
        match=r"^position_std needs a variant with position vectors \(transformer\), found",
    ):
        AutoInt(variant="fuxictr", position_std=1.0)


def test_linear_units_start_from_xavier_with_biases_of_zero(subtests):
    """NOTE[DIFF]: whatever the authors' code draws."""
    for variant in list(reference.VARIANTS):
        with subtests.test(variant=variant):
            torch.manual_seed(0)
            settings = AutoIntPlus(
                variant=variant, attention_dim=300, hidden=(500,), layers=1, embedding_dim=200
            )
            network = settings.build(Layout.of_sizes([1, 1]))
            for name, p in network.named_parameters():
                if name.endswith("bias"):
                    assert p.abs().max() == 0, name
            parts = network.layers[0].projection.weight.detach().split(300)
            for weight in (
                *parts,
                network.mlp.layers[0][0].weight.detach(),
                network.head.weight.detach(),
            ):
                assert float(weight.std()) == pytest.approx(
                    math.sqrt(2 / sum(weight.shape)), rel=0.1
                )
