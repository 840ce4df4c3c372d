import numpy as np
import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layers import PairAttention
from fieldwise.layout import Layout
from fieldwise.models import AFM, parameter_count


def _pairs(x):
    return [x[i] * x[j] for i in range(len(x)) for j in range(i + 1, len(x))]


def _truth(lab, layout, batch, w):
    """Xiao et al., Equations 2 to 6, row by row: logits and weights."""
    x = lab.fields(layout, batch, w["embedding.weight"])
    logits = lab.first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
    weights = []
    for b in range(len(x)):
        q = _pairs(x[b])
        e = np.array([w["attention.h"] @ np.maximum(w["attention.W"] @ v + w["attention.b"], 0) for v in q])
        a = np.exp(e) / np.exp(e).sum()
        logits[b] += w["p"] @ sum(a_n * q_n for a_n, q_n in zip(a, q, strict=True))
        weights.append(a)
    return logits, np.array(weights)


def test_forward_and_weights_are_the_equations(lab, layout):
    network, batch = lab.randomized(AFM(embedding_dim=3, attention_dim=5).build(layout)), lab.batch(layout, 7)
    logits, weights = _truth(lab, layout, batch, lab.weights(network))
    np.testing.assert_allclose(network(batch).detach(), logits, atol=1e-10)
    np.testing.assert_allclose(network.pair_weights(batch).detach(), weights, atol=1e-10)


def test_the_softmax_is_over_the_pairs(lab):
    """Not over an axis of one, where every weight would be 1 and W, b, h would learn nothing."""
    layout = lab.layouts["categorical"]
    network, batch = lab.randomized(AFM(embedding_dim=3, attention_dim=5).build(layout)), lab.batch(layout, 6)
    # b learns where a unit is on for some pairs and off for others: the products must be large enough for that.
    network.embedding.weight.data.mul_(4)
    weights = network.pair_weights(batch)
    assert weights.shape == (6, 6)
    torch.testing.assert_close(weights.sum(1), torch.ones(6, dtype=torch.float64))
    assert (weights.std(1) > 1e-3).all()
    network(batch).square().sum().backward()
    for parameter in (network.attention.W, network.attention.b, network.attention.h, network.p):
        assert parameter.grad.abs().max() > 1e-6


def test_the_attention_sees_pairs_not_their_sum():
    """Two rows whose products have one sum, but are split otherwise, get other weights and another pooled vector."""
    attention = PairAttention(3, 2, 4).double()
    # Products of row one: (2, 0), (0, 2), (0, 0); of row two: (1, 1), (1, 1), (0, 0).
    rows = torch.tensor([[[1.0, 1], [2, 0], [0, 2]], [[1, 1], [1, 1], [1, 1]]], dtype=torch.float64)
    q = torch.stack([torch.stack(_pairs(x)) for x in rows])
    rows[1] *= (q[0].sum() / q[1].sum()).sqrt()
    q = torch.stack([torch.stack(_pairs(x)) for x in rows])
    torch.testing.assert_close(q[0].sum(0), q[1].sum(0))
    pooled, weights = attention(rows)
    assert not torch.allclose(weights[0], weights[1])
    torch.testing.assert_close(weights[1], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert not torch.allclose(pooled[0], pooled[1])


def test_the_gradient_of_an_embedding_has_both_terms(lab):
    """d logit / d x_i is a term through the products and a term through the weights, worked out by hand."""
    layout = Layout.of_sizes([2, 2, 2])
    network = lab.randomized(AFM(embedding_dim=3, attention_dim=4).build(layout))
    batch = lab.batch(layout, 1)
    w = lab.weights(network)
    x, p = lab.fields(layout, batch, w["embedding.weight"])[0], w["p"]
    pairs = [(0, 1), (0, 2), (1, 2)]
    q = [x[i] * x[j] for i, j in pairs]
    hidden = [w["attention.W"] @ v + w["attention.b"] for v in q]
    e = np.array([w["attention.h"] @ np.maximum(z, 0) for z in hidden])
    a = np.exp(e) / np.exp(e).sum()
    pooled = sum(a_n * q_n for a_n, q_n in zip(a, q, strict=True))
    truth = np.zeros_like(x)
    for (i, j), a_n, q_n, z in zip(pairs, a, q, hidden, strict=True):
        d_e = w["attention.W"].T @ (w["attention.h"] * (z > 0))
        d_q = a_n * p + a_n * (p @ (q_n - pooled)) * d_e
        truth[i] += d_q * x[j]
        truth[j] += d_q * x[i]
    network(batch).sum().backward()
    np.testing.assert_allclose(network.embedding.weight.grad[batch.ids[0]], truth, atol=1e-10)


def test_the_order_of_fields_does_not_matter(lab):
    layout, order = Layout.of_sizes([4, 4, 4, 4]), [2, 0, 3, 1]
    network, batch = lab.randomized(AFM(embedding_dim=3, attention_dim=5).build(layout)), lab.batch(layout, 5)
    torch.testing.assert_close(network(batch), network(batch._replace(ids=batch.ids[:, order])))


@pytest.mark.parametrize("place", ["pair_dropout", "attention_dropout", "pooled_dropout"])
def test_dropout_acts_in_its_place_while_training_alone(lab, place):
    layout = lab.layouts["categorical"]
    network = lab.randomized(AFM(embedding_dim=3, attention_dim=5, **{place: 0.5}).build(layout))
    batch = lab.batch(layout, 64)
    calm = network(batch)
    assert torch.equal(calm, network(batch))
    network.train()
    torch.manual_seed(0)
    assert not torch.allclose(network(batch), calm)
    torch.manual_seed(0)
    pooled, weights = network.attention(network.embedding(batch))
    torch.testing.assert_close(weights.sum(1), torch.ones(64, dtype=torch.float64))
    network.eval()
    same_pooled, same_weights = network.attention(network.embedding(batch))
    assert torch.allclose(weights, same_weights) == (place != "pair_dropout")
    assert torch.allclose(pooled, same_pooled) == (place == "pooled_dropout")


def test_p_starts_as_asked():
    layout = Layout.of_sizes([3, 4])
    assert AFM().build(layout).p.unique().tolist() == [1.0]
    assert AFM(start_of_p="xavier").build(layout).p.std() > 0


@pytest.mark.parametrize(
    ("sizes", "attention", "count"), [([5389, *[0] * 9], 128, 60_826), ([90_239, 0, 0], 16, 992_832)]
)
def test_parameter_counts_are_the_published_ones(sizes, attention, count):
    network = AFM(embedding_dim=10, attention_dim=attention).build(Layout.of_sizes(sizes))
    assert parameter_count(network) == count
    assert {"attention.W", "attention.b", "attention.h", "p"} <= set(dict(network.named_parameters()))


@pytest.mark.parametrize("fields", [0, 1])
def test_pairs_need_two_fields(fields):
    with pytest.raises(ConfigError, match=f"at least 2 fields, found {fields}"):
        AFM().build(Layout.of_sizes([3] * fields))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"attention_dim": True}, "attention_dim must be a whole number"),
        ({"attention_dropout": 1.0}, "attention_dropout must be at least 0 and less than 1, found 1.0"),
        ({"pooled_dropout": float("nan")}, "pooled_dropout"),
        ({"pair_dropout": -0.1}, "pair_dropout"),
        ({"start_of_p": "zeros"}, "start_of_p must be one of 'ones', 'xavier', found 'zeros'"),
    ],
)
def test_bad_settings_name_themselves(settings, message):
    with pytest.raises(ConfigError, match=message):
        AFM(**settings)
