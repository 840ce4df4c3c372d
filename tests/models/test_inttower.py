import math

import numpy as np
import pytest
import torch

from fieldwise import IntTower
from fieldwise.models.twotower import contrastive_loss

SMALL = {"embedding_dim": 3, "hidden": (6, 5, 4), "user_heads": 3, "item_heads": 2, "head_dim": 4, "dropout": 0.2}


def test_every_level_learns(subtests, lab):
    """The last user level too, which gets nothing where levels are taken from the layers' inputs."""
    for depth in (1, 3):
        with subtests.test(depth=depth):
            layout = lab.layouts["categorical"]
            network = IntTower(**(SMALL | {"hidden": (6,) * depth, "dropout": 0.0, "cir_weight": 0.0})).build(layout)
            network.train()(lab.batch(layout, 32)).square().sum().backward()
            for name, parameter in network.named_parameters():
                # A bias before BatchNorm is subtracted again, and a shift of Light-SE's softmax changes little.
                if not name.endswith("0.bias"):
                    assert parameter.grad is not None, name
                    assert parameter.grad.abs().max() > 0, name
            assert len(network.block.user_projections) == depth


def test_a_variant_is_a_preset_whose_choices_can_be_overridden():
    paper, authors = IntTower().chosen, IntTower(variant="authors").chosen
    assert (paper.output_bias, paper.cir_weight) == (False, 0.1)
    assert (authors.output_bias, authors.cir_weight) == (True, 0.0)
    given = IntTower(variant="authors", cir_weight=0.2, output_bias=False).chosen
    assert (given.levels, given.output_bias, given.cir_weight) == ("inputs", False, 0.2)


def test_which_biases_a_variant_has(lab):
    paper, authors = (
        {name for name, _ in IntTower(**SMALL, variant=one).build(lab.layouts["categorical"]).named_parameters()}
        for one in ("paper", "authors")
    )
    assert paper - authors == {"user_tower.light_se.excite.bias", "item_tower.light_se.excite.bias"}
    assert authors - paper == {"bias"}


def test_the_contrastive_loss_of_heads_is_that_of_the_last_level(lab):
    layout, label = lab.layouts["categorical"], (torch.arange(12) % 3 == 0).double()
    settings = SMALL | {"item_heads": 3, "variant": "authors", "cir_weight": 0.5}
    network, batch = lab.randomized(IntTower(**settings).build(layout)), lab.batch(layout, 12)
    user, item = network.user(batch)[:, 2].reshape(12, -1), network.item(batch).reshape(12, -1)
    expected = 0.5 * contrastive_loss(user, item, label, temperature=0.07)
    torch.testing.assert_close(network.forward_with_auxiliary(batch, label)[1], expected)


# The contrastive loss


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


def test_a_positives_own_pair_is_the_numerator_however_labels_stand(subtests):
    for seed in range(2):
        with subtests.test(seed=seed):
            rng = np.random.default_rng(seed)
            u, v, label = rng.normal(size=(9, 5)), rng.normal(size=(9, 5)), rng.integers(0, 2, 9)
            label[seed] = 1
            result = contrastive_loss(*map(torch.tensor, (u, v, label)), temperature=0.2)
            assert float(result) == pytest.approx(_info_nce(u, v, label, 0.2), abs=1e-10)
            order = rng.permutation(9)
            shuffled = contrastive_loss(*(torch.tensor(a[order]) for a in (u, v, label)), temperature=0.2)
            torch.testing.assert_close(result, shuffled)


def test_no_positive_costs_nothing_and_stays_finite():
    for rows in (0, 1, 5):
        u, v = torch.zeros(rows, 4, requires_grad=True), torch.zeros(rows, 4, requires_grad=True)
        loss = contrastive_loss(u, v, torch.zeros(rows), temperature=0.07)
        loss.backward()
        assert float(loss.detach()) == 0
        assert torch.isfinite(u.grad).all()
        assert (v.grad == 0).all()


def test_labels_of_any_kind_and_sign():
    u, v, label = torch.randn(6, 3), torch.randn(6, 3), torch.tensor([1, 0, 0, 1, 1, 0])
    reference = contrastive_loss(u, v, label.double(), temperature=0.5)
    for same in (label.bool(), label, label.float(), 2.0 * label - 1):
        torch.testing.assert_close(contrastive_loss(u, v, same, temperature=0.5), reference)


# Settings


def test_a_fresh_network_starts_near_zero(lab):
    """The default 3 x 32 maxima do not add up to a logit that saturates the first steps."""
    layout = lab.layouts["categorical"]
    torch.manual_seed(0)
    batch = lab.batch(layout, 64)
    assert IntTower().build(layout).train()(batch).abs().max() < 6
