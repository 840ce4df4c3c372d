import math

import numpy as np
import polars as pl
import pytest
import torch

from fieldwise import Categorical, ConfigError, Encoder, IntTower, Label, Numeric, Schema
from fieldwise.models.twotower import contrastive_loss

SMALL = {
    "embedding_dim": 3,
    "hidden": (6, 5, 4),
    "user_heads": 3,
    "item_heads": 2,
    "head_dim": 4,
    "dropout": 0.2,
}


def test_every_level_learns(subtests, lab):
    """The last user level too, which gets nothing where levels are taken from the layers' inputs."""
    for depth in (1, 3):
        with subtests.test(depth=depth):
            layout = lab.layouts["categorical"]
            network = IntTower(
                **(SMALL | {"hidden": (6,) * depth, "dropout": 0.0, "cir_weight": 0.0})
            ).build(layout)
            network.train()(lab.batch(layout, 32)).square().sum().backward()
            for name, parameter in network.named_parameters():
                # A bias before BatchNorm is subtracted again, and a shift of Light-SE's softmax
                # changes little.
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
        {
            name
            for name, _ in IntTower(**SMALL, variant=one)
            .build(lab.layouts["categorical"])
            .named_parameters()
        }
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
    network = lab.randomized(
        IntTower(**(SMALL | {"cir_weight": 0.5, "batch_norm": False})).build(layout)
    )
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
            shuffled = contrastive_loss(
                *(torch.tensor(a[order]) for a in (u, v, label)), temperature=0.2
            )
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


def test_init_std_is_the_deviation_of_the_towers_hidden_layers_alone(lab):
    torch.manual_seed(0)
    settings = IntTower(embedding_dim=40, hidden=(90, 80), init_std=1e-4, embedding_std=0.02)
    network = settings.build(lab.layouts["categorical"])
    weights = {
        name: float(p.detach().std())
        for name, p in network.named_parameters()
        if name.endswith("weight")
    }
    for name, deviation in weights.items():
        if ".mlp.layers." in name and name.endswith(".0.weight"):
            assert deviation == pytest.approx(1e-4, rel=0.1), name
        elif "projection" in name:
            assert deviation > 1e-3, name
    assert weights["embedding.weight"] == pytest.approx(0.02, rel=0.1)


# Raw numbers


def rated(missing):
    """Rows with a user's and an item's number, an encoder of them, and raw numbers' network with random weights."""
    schema = Schema(
        fields=(
            Numeric("mean", role="user", missing=missing),
            Categorical("user", role="user"),
            Categorical("item", role="item"),
            Numeric("price", role="item", missing=missing),
        ),
        label=Label("liked"),
    )
    rows = pl.DataFrame(
        {
            "mean": [1.0, 2.0, 3.0],
            "user": ["a", "b", "a"],
            "item": ["x", "x", "y"],
            "price": [4.0, 6.0, 8.0],
        }
    )
    encoder = Encoder.fit(rows.with_columns(liked=pl.Series([0, 1, 1])), schema)
    torch.manual_seed(1)
    network = IntTower(**SMALL, dense_inputs="raw").build(encoder.layout).eval()
    return rows, encoder, network


@pytest.mark.parametrize("missing", ["zero", "vector"])
def test_a_missing_raw_number_is_the_training_mean(missing):
    rows, encoder, network = rated(missing)

    def logits(frame):
        return network(encoder.transform(frame).batch(slice(None))[0]).detach()

    absent = pl.lit(None, pl.Float64)
    for column, mean in (("mean", 2.0), ("price", 6.0)):
        at_the_mean = logits(rows.with_columns(pl.lit(mean).alias(column)))
        assert torch.equal(logits(rows.with_columns(absent.alias(column))), at_the_mean)
        assert not torch.equal(logits(rows), at_the_mean)


def test_raw_numbers_are_the_encoded_ones_of_their_side():
    rows, encoder, network = rated("zero")
    batch = encoder.transform(rows).batch(slice(None))[0]
    scaled = math.sqrt(1.5)  # (3 - 2) over the deviation of 1, 2, 3
    for tower in (network.user_tower, network.item_tower):
        first = tower(network.embedding(batch), batch)[0]
        assert first.shape == (3, 3 + 1)  # one field's vector and one number
        torch.testing.assert_close(first[:, 3], torch.tensor([-scaled, 0.0, scaled]))


def test_a_tower_of_raw_numbers_alone_is_refused(lab):
    with pytest.raises(
        ConfigError,
        match=r"^IntTower's user tower weights fields' vectors and needs a field that is no",
    ):
        IntTower(dense_inputs="raw").build(lab.layouts["numeric"])
