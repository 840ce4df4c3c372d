import math
from typing import get_args

import numpy as np
import pytest
import torch
from parity.reference import afm as reference

from fieldwise import AFM, Layout
from fieldwise.models import parameter_count
from fieldwise.models.afm import Variant

SMALL = {"embedding_dim": 3, "attention_dim": 5}


def test_the_pair_weights_are_the_equations(lab, layout):
    network, batch = lab.randomized(AFM(**SMALL).build(layout)), lab.batch(layout, 7)
    w = lab.weights(network)
    _, weights = reference.attention(lab.fields(layout, batch, w["embedding.weight"]), w)
    np.testing.assert_allclose(
        network.logit_terms(batch)[1]["attention"].detach(), weights, atol=1e-12
    )


# Variants


@pytest.mark.parametrize("variant", get_args(Variant))
def test_dropout_acts_in_the_variants_places_while_training_alone(variant, lab):
    layout = lab.layouts["categorical"]
    network = lab.randomized(AFM(**SMALL, variant=variant, dropout=0.5).build(layout))
    attention, dropped = network.attention, network.pooled_dropout
    assert (attention.pair_dropout > 0, attention.attention_dropout > 0, dropped) == {
        "paper": (True, False, 0.5),
        "authors": (False, False, 0.5),
        "fuxictr": (False, True, 0.5),
        "attention": (False, True, 0.5),
        "pooled": (False, False, 0.5),
    }[variant]
    batch = lab.batch(layout, 64)
    calm, pooled = network(batch), attention(network.embedding(batch))
    network.train()
    torch.manual_seed(0)
    assert not torch.allclose(network(batch), calm)
    alone = variant in ("authors", "pooled")
    assert torch.allclose(attention(network.embedding(batch)), pooled) == alone


def test_starting_values_are_the_variants(subtests):
    for variant, p, h, b in [
        ("paper", None, "xavier", 0.0),
        ("authors", None, "standard_normal", "xavier"),
        ("fuxictr", "xavier", "xavier", 0.0),
        ("attention", None, "xavier", 0.0),
        ("pooled", None, "xavier", 0.0),
    ]:
        with subtests.test(variant=variant):
            torch.manual_seed(0)
            dim, attention = 2000, 3000
            settings = AFM(embedding_dim=dim, attention_dim=attention, variant=variant)
            network = settings.build(Layout.of_sizes([1, 1]))

            def deviation(tensor):
                return pytest.approx(float(tensor.detach().std()), rel=0.1)

            assert math.sqrt(2 / (dim + attention)) == deviation(network.attention.W)
            assert (
                math.sqrt(2 / (dim + 1)) == deviation(network.p)
                if p
                else network.p.unique().tolist() == [1.0]
            )
            assert (1.0 if h == "standard_normal" else math.sqrt(2 / (attention + 1))) == deviation(
                network.attention.h
            )
            assert (math.sqrt(2 / (dim + attention)) if b == "xavier" else 0.0) == deviation(
                network.attention.b
            )


def test_a_rate_or_an_initial_p_that_is_given_takes_the_place_of_the_variants():
    layout = Layout.of_sizes([3, 4])

    def rates(**settings):
        network = AFM(**SMALL, **settings).build(layout)
        return (
            network.attention.pair_dropout,
            network.attention.attention_dropout,
            network.pooled_dropout,
        )

    assert rates(dropout=0.5, pooled_dropout=0.0) == (0.5, 0.0, 0.0)
    assert rates(dropout=0.5, pair_dropout=0.0) == (0.0, 0.0, 0.5)
    assert rates(pair_dropout=0.1, attention_dropout=0.2, pooled_dropout=0.3) == (0.1, 0.2, 0.3)
    assert rates(variant="fuxictr", dropout=0.5, attention_dropout=0.2) == (0.0, 0.2, 0.5)
    torch.manual_seed(0)
    drawn = AFM(embedding_dim=4000, initial_p="standard_normal").build(layout).p.detach()
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.05)
    assert float(drawn.std()) == pytest.approx(1.0, rel=0.05)
    assert AFM(variant="fuxictr", initial_p="ones").build(layout).p.unique().tolist() == [1.0]


@pytest.mark.parametrize(
    ("features", "fields", "attention_dim", "millions"),
    [
        (5_382, 10, 256, 1.45),  # Frappe, the size of the authors' command
        (90_445, 3, 64, 23.26),  # MovieLens-tag; the command's 8 gives 23.25
    ],
)
def test_the_papers_numbers_of_parameters(features, fields, attention_dim, millions):
    layout = Layout.of_sizes([features - fields + 1, *[1] * (fields - 1)])
    assert layout.num_rows == features
    with torch.device("meta"):
        network = AFM(embedding_dim=256, attention_dim=attention_dim).build(layout)
    assert parameter_count(network) == features * 257 + 1 + attention_dim * 258 + 256
    assert round(parameter_count(network) / 1e6, 2) == millions
