import math
from typing import get_args

import numpy as np
import pytest
import torch
from parity.reference import afm as reference

from fieldwise import load_recipe
from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import AFM, FM, parameter_count
from fieldwise.models.afm import Variant
from fieldwise.models.build import model_from_dict

SMALL = {"embedding_dim": 3, "attention_dim": 5}


def fill(network, **values):
    """Set parameters by name, dots as two underscores."""
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[name.replace("__", ".")].copy_(torch.as_tensor(value, dtype=torch.float64))


def test_a_row_by_hand(lab):
    """Vectors 1, 2, 3 have products 2, 3, 6; with h = log 2 these weigh as 2^2 : 2^3 : 2^6, that is 4, 8, 64 of 76."""
    layout = Layout.of_sizes([1, 1, 1])
    network = AFM(embedding_dim=1, attention_dim=1).build(layout).double()
    fill(
        network, embedding__weight=[[1], [2], [3]], first_order__embedding__weight=[[10], [20], [30]],
        first_order__bias=0.5, attention__W=[[1]], attention__b=[0], attention__h=[math.log(2)], p=[19],
    )  # fmt: skip
    batch = lab.batch(layout, 1)
    torch.testing.assert_close(network.pair_weights(batch), torch.tensor([[4, 8, 64]], dtype=torch.float64) / 76)
    # 19 * (4 * 2 + 8 * 3 + 64 * 6) / 76 = 104, and 60.5 of the first order.
    assert network(batch).item() == pytest.approx(164.5, abs=1e-12)


def test_the_pair_weights_are_the_equations(lab, layout):
    network, batch = lab.randomized(AFM(**SMALL).build(layout)), lab.batch(layout, 7)
    w = lab.weights(network)
    _, weights = reference.attention(lab.fields(layout, batch, w["embedding.weight"]), w)
    np.testing.assert_allclose(network.pair_weights(batch).detach(), weights, atol=1e-12)


def test_without_attention_it_is_an_fm_of_averaged_pairs(lab, layout):
    network, fm = lab.randomized(AFM(**SMALL).build(layout)), FM(embedding_dim=3).build(layout).double()
    fill(network, attention__h=[0.0] * 5, p=[1.0] * 3)
    fm.load_state_dict({name: p for name, p in network.state_dict().items() if name in fm.state_dict()})
    batch, pairs = lab.batch(layout, 6), layout.num_fields * (layout.num_fields - 1) / 2
    first = fm.first_order(batch)
    torch.testing.assert_close(network(batch) - first, (fm(batch) - first) / pairs)


def test_a_fresh_network_of_the_paper_starts_as_that_fm():
    network = AFM().build(Layout.of_sizes([3, 4, 5]))
    assert network.p.tolist() == [1.0] * 16
    assert network.first_order.embedding.weight.abs().max() == 0


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
            assert math.sqrt(2 / (dim + 1)) == deviation(network.p) if p else network.p.unique().tolist() == [1.0]
            assert (1.0 if h == "standard_normal" else math.sqrt(2 / (attention + 1))) == deviation(network.attention.h)
            assert (math.sqrt(2 / (dim + attention)) if b == "xavier" else 0.0) == deviation(network.attention.b)


def test_the_settings_that_variants_replaced_are_one_sentence():
    with pytest.raises(ConfigError, match=r"^model.pooled_dropout was removed; leave it out: AFM's `dropout` acts"):
        model_from_dict({"name": "afm", "pooled_dropout": 0.1})
    with pytest.raises(ConfigError, match=r"model.start_of_p was removed; leave it out: AFM's `variant` chooses"):
        load_recipe("simulated/afm", ["model.start_of_p=ones"])


# Size, and what is refused


def test_parameter_count_is_the_formula(subtests):
    for fields in [2, 3, 7]:
        with subtests.test(fields=fields):
            rows, dim, attention = 4 * fields, 5, 6
            network = AFM(embedding_dim=dim, attention_dim=attention).build(Layout.of_sizes([4] * fields))
            assert parameter_count(network) == rows * (dim + 1) + 1 + attention * (dim + 2) + dim


def test_the_papers_model_has_the_papers_size():
    """Table 2 gives 1.45 million for Frappe's 5,382 features; size 256 and attention 256 are the authors' command."""
    network = AFM(embedding_dim=256, attention_dim=256).build(Layout.of_sizes([5382, *[0] * 9]))
    assert round(parameter_count(network) / 1e6, 2) == 1.45


@pytest.mark.parametrize(("fields", "found"), [(0, "none"), (1, "1")])
def test_pairs_need_two_fields(fields, found):
    with pytest.raises(ConfigError, match=f"AFM attends to pairs of fields and needs at least 2 fields, found {found}"):
        AFM().build(Layout.of_sizes([3] * fields))


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"variant": "keras"}, "variant must be one of 'paper', 'authors', 'fuxictr', .*, found 'keras'"),
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"attention_dim": True}, "attention_dim must be a whole number"),
        ({"dropout": 1.0}, "^dropout must be at least 0 and less than 1, found 1.0"),
        ({"dropout": float("nan")}, "^dropout must be at least 0"),
        ({"embedding_std": 0.0}, "embedding_std must be above 0 and finite, found 0.0"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            AFM(**settings)
