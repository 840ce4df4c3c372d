import math

import pytest
import torch
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import DSSM, parameter_count

PAIR = Layout.of_sizes([2, 2], ["user", "item"])


def by_hand(lab, **settings):
    """One hidden unit a side: user 1 has e = 2 and item 1 has e = 1; outputs (1.5, 2) and (4, 3) times the unit."""
    network = DSSM(embedding_dim=1, hidden=(1,), output_dim=2, temperature=0.5, **settings).build(PAIR).double().eval()
    with torch.no_grad():
        network.embedding.weight.copy_(torch.tensor([[0.0], [2.0], [0.0], [1.0]]))
        for tower, output in ((network.user_tower, [[1.5], [2.0]]), (network.item_tower, [[4.0], [3.0]])):
            tower.layers[0][0].weight.fill_(1.0)
            tower.output.weight.copy_(torch.tensor(output))
        network.similarity.bias.fill_(0.08)
    return float(network(lab.batch(PAIR, 1)._replace(ids=torch.tensor([[1, 3]]))).detach())


def test_worked_by_hand(lab):
    plain = {"activation": "relu", "output_activation": False}
    # Outputs (3, 4) and (4, 3): inner product 24, cosine 24 / 25, over a temperature of .5.
    assert by_hand(lab, similarity="dot", **plain) == pytest.approx(24 + 0.08)
    assert by_hand(lab, **plain) == pytest.approx(0.96 / 0.5 + 0.08, rel=1e-6)
    # tanh of every layer, the last one too.
    u = [math.tanh(1.5 * math.tanh(2)), math.tanh(2 * math.tanh(2))]
    v = [math.tanh(4 * math.tanh(1)), math.tanh(3 * math.tanh(1))]
    dot = u[0] * v[0] + u[1] * v[1]
    assert by_hand(lab, similarity="dot") == pytest.approx(dot + 0.08)
    assert by_hand(lab) == pytest.approx(dot / math.hypot(*u) / math.hypot(*v) / 0.5 + 0.08, rel=1e-6)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_probabilities_leave_the_band_of_the_bare_cosine(lab, similarity):
    """Two users of opposite taste: a cosine into a sigmoid ends at .73 and .27, whatever it is trained on."""
    torch.manual_seed(0)
    network = DSSM(embedding_dim=4, hidden=(8,), output_dim=4, similarity=similarity, embedding_std=0.3).build(PAIR)
    batch = lab.batch(PAIR, 4)._replace(ids=torch.tensor([[0, 2], [0, 3], [1, 2], [1, 3]]))
    label = torch.tensor([1.0, 0.0, 0.0, 1.0])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(network(batch), label).backward()
        optimizer.step()
    probability = torch.sigmoid(network(batch)).tolist()
    assert min(probability[0], probability[3]) > 0.95
    assert max(probability[1], probability[2]) < 0.05


def test_the_base_rate_is_learned_apart_from_the_angles(lab):
    """Labels that are all 0 need no opposite vectors: b says it."""
    layout = lab.layouts["categorical"]
    network, batch = (
        lab.randomized(DSSM(embedding_dim=4, hidden=(6,), output_dim=4).build(layout)),
        lab.batch(layout, 8),
    )
    before = network(batch)
    with torch.no_grad():
        network.similarity.bias -= 3.0
    torch.testing.assert_close(network(batch), before - 3.0)
    assert torch.linalg.vector_norm(network.user(batch), dim=1).tolist() == pytest.approx([1.0] * 8)


def test_the_cosine_forgets_lengths_and_the_dot_does_not(lab):
    layout = lab.layouts["categorical"]
    for similarity, same in (("cosine", True), ("dot", False)):
        settings = DSSM(embedding_dim=4, hidden=(6,), output_dim=4, output_activation=False, similarity=similarity)
        network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 8)
        before = network(batch)
        with torch.no_grad():
            network.user_tower.output.weight *= 10
            network.user_tower.output.bias *= 10
        assert torch.allclose(network(batch), before) == same


def test_empty_bags_on_a_fresh_network_do_not_explode(lab):
    """All biases are 0 then, so that both towers give zeros, of which no direction can be known."""
    layout = lab.layouts["bags"]
    network = DSSM(embedding_dim=4, hidden=(6,), output_dim=4).build(layout)
    empty = torch.empty(0)
    batch = lab.batch(layout, 3)._replace(bag_ids=empty.long(), bag_segments=empty.long(), bag_weights=empty)
    F.binary_cross_entropy_with_logits(network(batch), torch.ones(3)).backward()
    assert max(float(p.grad.abs().max()) for p in network.parameters()) < 1.0


def test_parameter_count_is_the_formula():
    layout = Layout.of_sizes([30, 12, 7, 5], ["user", "item", "context", "item"])
    rows, dim, first, second, output = 54, 10, 8, 6, 5
    tower = (2 * dim + 1) * first + (first + 1) * second + (second + 1) * output  # two fields on each side
    network = DSSM(embedding_dim=dim, hidden=(first, second), output_dim=output).build(layout)
    assert parameter_count(network) == rows * dim + 2 * tower + 2  # temperature and b
    network = DSSM(embedding_dim=dim, hidden=(first, second), output_dim=output, similarity="dot").build(layout)
    assert parameter_count(network) == rows * dim + 2 * tower + 1


@pytest.mark.parametrize(("roles", "side"), [(["user", "context"], "item"), (["item", "item"], "user")])
def test_both_sides_need_a_field(roles, side):
    with pytest.raises(ConfigError, match=f"DSSM's {side} tower needs a field of role .*, found none"):
        DSSM().build(Layout.of_sizes([3, 4], roles))


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"hidden": ()}, "hidden must name the size of at least one layer"),
        ({"hidden": (3, 0)}, r"hidden\[1\]"),
        ({"output_dim": 0}, "output_dim"),
        ({"output_dim": 1}, "output_dim must be at least 2 for similarity 'cosine', found 1"),
        ({"activation": "gelu"}, "activation must be one of 'tanh', 'relu', found 'gelu'"),
        ({"similarity": "euclid"}, "similarity must be one of 'dot', 'cosine', found 'euclid'"),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, found 0.0"),
        ({"temperature": float("nan")}, "temperature must be above 0 and finite, found nan"),
        ({"mlp_dropout": 1.0}, "mlp_dropout must be at least 0 and less than 1, found 1.0"),
        ({"embedding_std": -0.1}, "embedding_std"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            DSSM(**settings)
