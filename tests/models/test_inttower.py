import math

import numpy as np
import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import IntTower
from fieldwise.models.inttower import contrastive_loss

SMALL = {"embedding_dim": 3, "hidden": (6, 5, 4), "user_heads": 3, "item_heads": 2, "head_dim": 4, "dropout": 0.2}


def _tower(x, w, prefix, depth, batch_norm):
    k = w[prefix + "light_se.excite.weight"] @ x.mean(1) + w[prefix + "light_se.excite.bias"]
    k = np.exp(k) / np.exp(k).sum()
    z = np.concatenate([x[f] + k[f] * x[f] for f in range(len(x))])
    levels = []
    for i in range(depth):
        p = f"{prefix}mlp.layers.{i}."
        z = w[p + "0.weight"] @ z + w[p + "0.bias"]
        if batch_norm:
            z = (z - w[p + "1.running_mean"]) / np.sqrt(w[p + "1.running_var"] + 1e-5)
            z = z * w[p + "1.weight"] + w[p + "1.bias"]
        z = np.maximum(z, 0)
        levels.append(z)
    return levels


def _truth(lab, layout, batch, w, s):
    x = lab.fields(layout, batch, w["embedding.weight"])
    item_side = [i for i, f in enumerate(layout.fields) if f.role == "item"]
    user_side = [i for i, f in enumerate(layout.fields) if f.role != "item"]
    out = np.zeros(len(x))
    for b in range(len(x)):
        user = _tower(x[b, user_side], w, "user_tower.", len(s.hidden), s.batch_norm)
        item = _tower(x[b, item_side], w, "item_tower.", len(s.hidden), s.batch_norm)[-1]
        m_v = w["block.item_projection.weight"] @ item + w["block.item_projection.bias"]
        m_v = m_v.reshape(s.item_heads, s.head_dim)
        for i, level in enumerate(user):
            p = f"block.user_projections.{i}."
            m_u = (w[p + "weight"] @ level + w[p + "bias"]).reshape(s.user_heads, s.head_dim)
            out[b] += sum(max(m_u[hu] @ m_v[hv] for hv in range(s.item_heads)) for hu in range(s.user_heads))
    return out


@pytest.mark.parametrize("hidden", [(4,), (5, 4), (6, 5, 4), (4, 6, 3, 5)])
@pytest.mark.parametrize(("user_heads", "item_heads"), [(3, 2), (1, 4), (2, 2)])
def test_forward_is_the_equations_at_any_depth_and_head_counts(lab, layout, hidden, user_heads, item_heads):
    settings = IntTower(**(SMALL | {"hidden": hidden, "user_heads": user_heads, "item_heads": item_heads}))
    network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 4)
    np.testing.assert_allclose(
        network(batch).detach(), _truth(lab, layout, batch, lab.weights(network), settings), atol=1e-10
    )


def test_stored_heads_score_as_the_joint_pass(lab, layout):
    network = IntTower(**SMALL).build(layout).eval()
    batch = lab.batch(layout, 9)
    user, item = network.user_heads(batch), network.item_heads(batch)
    assert (user.shape, item.shape) == ((9, 3, 3, 4), (9, 2, 4))
    torch.testing.assert_close(network.score(user, item), network(batch), atol=1e-6, rtol=0)


def test_each_side_reads_its_own_fields(lab):
    layout = lab.layouts["categorical"]
    network, batch = lab.randomized(IntTower(**SMALL).build(layout)), lab.batch(layout, 8)
    other = lab.batch(layout, 8, seed=1)
    sides = torch.tensor([f.role == "item" for f in layout.fields])
    other_user = batch._replace(ids=torch.where(sides, batch.ids, other.ids))
    other_item = batch._replace(ids=torch.where(sides, other.ids, batch.ids))
    assert torch.equal(network.item_heads(other_user), network.item_heads(batch))
    assert torch.equal(network.user_heads(other_item), network.user_heads(batch))
    assert not torch.equal(network.user_heads(other_user), network.user_heads(batch))
    assert not torch.equal(network.item_heads(other_item), network.item_heads(batch))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_every_level_learns(lab, depth):
    """The last user level too, which gets nothing where levels are taken from the layers' inputs."""
    layout = lab.layouts["categorical"]
    network = IntTower(**(SMALL | {"hidden": (6,) * depth, "dropout": 0.0, "cir_weight": 0.0})).build(layout)
    network.train()(lab.batch(layout, 32)).square().sum().backward()
    for name, parameter in network.named_parameters():
        # A bias before BatchNorm is subtracted again, and a shift of Light-SE's softmax changes little.
        if not name.endswith("0.bias"):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
    assert len(network.block.user_projections) == depth


def test_the_contrastive_loss_is_part_of_the_loss(lab):
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 32)
    label = (torch.arange(32) % 3 == 0).double()
    network = lab.randomized(IntTower(**(SMALL | {"cir_weight": 0.5, "batch_norm": False})).build(layout))
    logit, auxiliary = network.forward_with_auxiliary(batch, label)
    torch.testing.assert_close(logit, network(batch))
    assert auxiliary > 0
    auxiliary.backward()
    for tower in (network.user_tower, network.item_tower):
        assert max(p.grad.abs().max() for p in tower.parameters()) > 1e-6
    assert network.embedding.weight.grad.abs().max() > 1e-6
    weights = {0.5: auxiliary.detach()}
    for alpha in (0.0, 1.0):
        network.cir_weight = alpha
        weights[alpha] = network.forward_with_auxiliary(batch, label)[1].detach()
    assert weights[0.0] == 0
    torch.testing.assert_close(weights[1.0], 2 * weights[0.5])


def _info_nce(u, v, label, tau):
    def cosine(a, b):
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

    terms = []
    for r in range(len(u)):
        if label[r] == 1:
            scores = [math.exp(cosine(u[r], v[s]) / tau) for s in range(len(v))]
            terms.append(-math.log(scores[r] / sum(scores)))
    return sum(terms) / len(terms) if terms else 0.0


@pytest.mark.parametrize("seed", range(4))
def test_a_positives_own_pair_is_the_numerator_however_labels_stand(seed):
    rng = np.random.default_rng(seed)
    u, v, label = rng.normal(size=(9, 5)), rng.normal(size=(9, 5)), rng.integers(0, 2, 9)
    label[seed] = 1
    found = contrastive_loss(*map(torch.tensor, (u, v, label)), temperature=0.2)
    assert float(found) == pytest.approx(_info_nce(u, v, label, 0.2), abs=1e-10)
    order = rng.permutation(9)
    shuffled = contrastive_loss(*(torch.tensor(a[order]) for a in (u, v, label)), temperature=0.2)
    torch.testing.assert_close(found, shuffled)


def test_aligned_positives_cost_less_than_crossed_ones():
    u = torch.eye(3)
    label = torch.tensor([0.0, 1.0, 1.0])
    aligned = contrastive_loss(u, u, label, temperature=0.1)
    crossed = contrastive_loss(u, u[[0, 2, 1]], label, temperature=0.1)
    assert aligned < 0.01 < 9 < crossed


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_no_positive_costs_nothing_and_stays_finite(rows):
    u, v = torch.zeros(rows, 4, requires_grad=True), torch.zeros(rows, 4, requires_grad=True)
    loss = contrastive_loss(u, v, torch.zeros(rows), temperature=0.07)
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.isfinite(u.grad).all()
    assert (v.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_labels_of_any_kind_and_sign(dtype):
    u, v = torch.randn(6, 3), torch.randn(6, 3)
    label = torch.tensor([1, 0, 0, 1, 1, 0])
    truth = contrastive_loss(u, v, label.double(), temperature=0.5)
    torch.testing.assert_close(contrastive_loss(u, v, label.to(dtype), temperature=0.5), truth)
    torch.testing.assert_close(contrastive_loss(u, v, 2.0 * label - 1, temperature=0.5), truth)


def test_a_fresh_network_starts_near_zero(lab):
    """The default 3 x 32 maxima do not add up to a logit that saturates the first steps."""
    layout = lab.layouts["categorical"]
    torch.manual_seed(0)
    batch = lab.batch(layout, 64)
    assert IntTower().build(layout).train()(batch).abs().max() < 6


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["user", "context"], "item tower needs a field of role item, found none"),
        (["item", "item"], "user tower needs a field of role user or context, found none"),
    ],
)
def test_both_sides_need_a_field(roles, message):
    with pytest.raises(ConfigError, match=message):
        IntTower().build(Layout.of_sizes([3, 4], roles))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": ()}, "hidden must name the size of at least one layer"),
        ({"hidden": (3, 0)}, r"hidden\[1\] must be a whole number of at least 1, found 0"),
        ({"user_heads": 0}, "user_heads"),
        ({"item_heads": 0}, "item_heads"),
        ({"head_dim": -1}, "head_dim"),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, found 0.0"),
        ({"cir_weight": -0.5}, "cir_weight must be 0 or more and finite, found -0.5"),
        ({"dropout": 1.5}, "dropout"),
    ],
)
def test_bad_settings_name_themselves(settings, message):
    with pytest.raises(ConfigError, match=message):
        IntTower(**settings)
