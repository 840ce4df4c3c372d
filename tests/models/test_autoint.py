import itertools

import numpy as np
import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import AutoInt, AutoIntPlus, parameter_count

AUTHORS = {"relu_on_projections": True, "projection_bias": True, "scale": True, "norm": "after_relu"}
FUXICTR = {"residual": "where_sizes_differ", "scale": True, "norm": "before_relu", "wide": True}
TRANSFORMER = {
    "residual": "where_sizes_differ",
    "scale": True,
    "norm": "before_relu",
    "output_relu": False,
    "output_projection": True,
    "field_vectors": True,
}
CHOICES = {
    "paper": {},
    "authors": AUTHORS,
    "fuxictr": FUXICTR,
    "transformer": TRANSFORMER,
    "bare": {"residual": "none"},
}


def _relu(x):
    return np.maximum(x, 0)


def _norm(x, w, prefix):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * w[prefix + "norm.weight"] + w[prefix + "norm.bias"]


def _layer(x, w, prefix, s):
    """One interacting layer for one row x [F, D], head by head and field by field (Song et al., Equations 5 to 8)."""
    size = s.attention_dim // s.heads
    projected = s.residual == "projected" or (s.residual == "where_sizes_differ" and x.shape[1] != s.attention_dim)
    parts = np.split(w[prefix + "projection.weight"], 4 if projected else 3)
    biases = np.split(w[prefix + "projection.bias"], len(parts)) if s.projection_bias else [0.0] * len(parts)
    maps = [x @ part.T + bias for part, bias in zip(parts, biases, strict=True)]
    if s.relu_on_projections:
        maps = [_relu(m) for m in maps]
    out = np.zeros((len(x), s.attention_dim))
    for h in range(s.heads):
        q, k, v = (m[:, h * size : (h + 1) * size] for m in maps[:3])
        for m in range(len(x)):
            e = np.array([q[m] @ k[n] for n in range(len(x))]) / (np.sqrt(size) if s.scale else 1.0)
            a = np.exp(e) / np.exp(e).sum()
            out[m, h * size : (h + 1) * size] = sum(a[n] * v[n] for n in range(len(x)))
    if s.output_projection:
        out = out @ w[prefix + "output.weight"].T + (w[prefix + "output.bias"] if s.projection_bias else 0.0)
    out = out + (maps[3] if projected else 0.0 if s.residual == "none" else x)
    if s.norm == "before_relu":
        out = _norm(out, w, prefix)
    if s.output_relu:
        out = _relu(out)
    return _norm(out, w, prefix) if s.norm == "after_relu" else out


def _truth(lab, layout, batch, w, s):
    x = lab.fields(layout, batch, w["embedding.weight"])
    out = np.zeros(len(x))
    for b in range(len(x)):
        y = x[b] + (w["field_vectors"] if s.field_vectors else 0.0)
        for i in range(s.layers):
            y = _layer(y, w, f"layers.{i}.", s)
        out[b] = w["head.weight"][0] @ y.reshape(-1) + w["head.bias"][0]
        if isinstance(s, AutoIntPlus):
            out[b] += _mlp(x[b].reshape(-1), w, s)
    return out + (lab.first_order(layout, batch, w["first_order.embedding.weight"]) if s.wide else 0.0)


def _mlp(z, w, s):
    for i in range(len(s.hidden)):
        p = f"mlp.layers.{i}."
        z = w[p + "0.weight"] @ z + w[p + "0.bias"]
        if s.batch_norm:
            z = (z - w[p + "1.running_mean"]) / np.sqrt(w[p + "1.running_var"] + 1e-5)
            z = z * w[p + "1.weight"] + w[p + "1.bias"]
        z = _relu(z)
    return w["mlp.output.weight"][0] @ z + w["mlp.output.bias"][0]


@pytest.mark.parametrize("choice", list(CHOICES))
def test_forward_is_the_equations(lab, layout, choice):
    settings = AutoInt(
        embedding_dim=6, layers=2, heads=2, attention_dim=6 if choice == "transformer" else 4, **CHOICES[choice]
    )
    network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 5)
    np.testing.assert_allclose(
        network(batch).detach(), _truth(lab, layout, batch, lab.weights(network), settings), atol=1e-10
    )


@pytest.mark.parametrize("batch_norm", [False, True])
def test_plus_adds_the_mlps_logit(lab, layout, batch_norm):
    settings = AutoIntPlus(
        embedding_dim=3,
        layers=2,
        heads=2,
        attention_dim=4,
        hidden=(5, 4),
        batch_norm=batch_norm,
        mlp_dropout=0.2,
        wide=True,
    )
    network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 5)
    np.testing.assert_allclose(
        network(batch).detach(), _truth(lab, layout, batch, lab.weights(network), settings), atol=1e-10
    )


def test_every_choice_changes_the_function(lab):
    """No option is accepted and then ignored: from one state, each choice gives another logit."""
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 5)
    base = {"embedding_dim": 4, "layers": 2, "heads": 2, "attention_dim": 4}
    options = [
        {},
        {"scale": True},
        {"relu_on_projections": True},
        {"projection_bias": True},
        {"residual": "where_sizes_differ"},
        {"residual": "none"},
        {"norm": "before_relu"},
        {"norm": "after_relu"},
        {"output_relu": False},
        {"output_projection": True},
        {"field_vectors": True},
        {"wide": True},
        {"heads": 4},
    ]
    logits = [lab.randomized(AutoInt(**(base | option)).build(layout))(batch) for option in options]
    for first, second in itertools.combinations(logits, 2):
        assert not torch.allclose(first, second)


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


@pytest.mark.parametrize("place", ["embedding_dropout", "attention_dropout", "mlp_dropout"])
def test_dropout_acts_while_training_alone(lab, place):
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 16)
    settings = AutoIntPlus(embedding_dim=4, layers=1, heads=2, attention_dim=6, hidden=(8,), **{place: 0.5})
    network = lab.randomized(settings.build(layout))
    calm = network(batch)
    assert torch.equal(calm, network(batch))
    assert not torch.allclose(network.train()(batch), calm)


BARS = {"embedding_dim": 10, "heads": 4, "attention_dim": 128, "residual": "where_sizes_differ"}
NORMED = BARS | {"norm": "before_relu", "scale": True}
DEEP = NORMED | {"hidden": (400, 400, 400), "batch_norm": True}
FRAPPE, TAG = [5389, *[0] * 9], [90_239, 0, 0]


@pytest.mark.parametrize(
    ("settings", "sizes", "count"),
    [
        (AutoInt(layers=6, **BARS), FRAPPE, 306_051),
        (AutoInt(layers=2, wide=True, **NORMED), TAG, 1_047_798),
        (AutoIntPlus(layers=5, **DEEP), FRAPPE, 622_180),
        (AutoIntPlus(layers=2, wide=True, **DEEP), TAG, 1_383_799),
    ],
)
def test_parameter_counts_are_the_published_ones(settings, sizes, count):
    assert parameter_count(settings.build(Layout.of_sizes(sizes))) == count


def test_the_defaults_are_the_papers():
    s = AutoInt()
    assert (s.embedding_dim, s.layers, s.heads, s.attention_dim) == (16, 3, 2, 64)
    assert (s.scale, s.residual, s.norm, s.relu_on_projections, s.projection_bias) == (
        False,
        "projected",
        "none",
        False,
        False,
    )


@pytest.mark.parametrize("cls", [AutoInt, AutoIntPlus])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
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
    ],
)
def test_bad_settings_name_themselves(cls, settings, message):
    with pytest.raises(ConfigError, match=message):
        cls(**settings)


@pytest.mark.parametrize("hidden", [(), (8, 0), [8]])
def test_the_mlp_needs_sizes(hidden):
    with pytest.raises(ConfigError, match="hidden"):
        AutoIntPlus(hidden=hidden)


def test_no_field_is_refused():
    with pytest.raises(ConfigError, match="at least 1 field, found none"):
        AutoInt().build(Layout(()))
