"""The sentence of an explained row, against sums of weights written by hand."""

import numpy as np
import polars as pl
import pytest
import torch
from random_bundle import random_bundle

from fieldwise import FM, LR, AutoInt, Bag, Bundle, Categorical, Encoder, Label, Numeric, Schema
from fieldwise.explain import explain
from fieldwise.explain.explanation import sentence
from fieldwise.models.build import build_network

LOG = pl.DataFrame(
    {
        "user_id": ["u1", "u1", "u2", "u2"] * 2,
        "item_id": ["a", "b", "c", "d"] * 2,
        "category": ["Home > Garden", "Toys"] * 4,
        "price": [0.39, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0],
    }
)
FIELDS = (
    Categorical("user_id", role="user"),
    Categorical("item_id", role="item"),
    Categorical("category", role="item"),
    Numeric("price", role="item", transform="none"),
)


def bundle(settings, label=None):
    """A bundle whose weights are all 0."""
    schema = Schema(fields=FIELDS, label=label or Label("bought"))
    encoder = Encoder.fit(LOG, schema)
    network = build_network(settings, encoder.layout, 0).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    return Bundle(schema, encoder, settings, network, LOG)


def place(made, field, value):
    """The row of a value in the shared tables."""
    layout = made.encoder.layout.fields[[f.name for f in FIELDS].index(field)]
    fitted = made.encoder.fitted[[f.name for f in FIELDS].index(field)]
    return layout.offset + (1 if field == "price" else 2 + fitted.values.index(value))


def first_order(made, **weights):
    """Set weights of the first order: `category={"Toys": 1.0}, price=-0.2, bias=0.5`."""
    table = made.network.first_order.embedding.weight
    with torch.no_grad():
        made.network.first_order.bias.fill_(weights.pop("bias", 0.0))
        for field, values in weights.items():
            for value, weight in (values if isinstance(values, dict) else {"": values}).items():
                table[place(made, field, value)] = weight
    return made


def said(made, row, **changed):
    return explain(made, LOG[row : row + 1].with_columns(**changed)).row(0)["sentence"]


def test_the_main_reasons_are_the_parts_that_differ_most_from_the_sample_rows():
    """Logit 1.561 of Garden at .39: the category gives 1 more than the mean of sample rows, the price 0.87 more."""
    made = first_order(bundle(LR()), bias=-0.35, category={"Home > Garden": 2.0}, price=-0.23)
    logit = -0.35 + 2.0 - 0.23 * 0.39
    assert round(100 / (1 + np.exp(-logit))) == 83
    assert (
        said(made, 0)
        == "83 %, mainly because the category is Home > Garden, and the price is low (0.39)"
    )


def test_a_pair_of_the_user_and_a_field_of_the_item_is_a_liking():
    """Garden costs .39 where it is cheap: the pair's product is 4 for u1 with Garden alone, 0 for all others."""
    made = first_order(bundle(FM(embedding_dim=1)), bias=-1.0, price=-0.3)
    with torch.no_grad():
        for field, value in (("user_id", "u1"), ("category", "Home > Garden")):
            made.network.embedding.weight[place(made, field, value)] = 2.0
    assert said(made, 0) == "94.7 %, mainly because this user likes the category Home > Garden"
    made.network.embedding.weight.data.neg_()
    made.network.embedding.weight.data[place(made, "user_id", "u1")] = 2.0
    assert said(made, 0).endswith(
        "mainly because this user does not like the category Home > Garden"
    )


def test_a_measured_pair_that_is_stronger_than_the_fields_is_the_reason():
    made = first_order(bundle(LR()), bias=-0.35, category={"Home > Garden": 2.0}, price=-0.23)
    explanation = explain(made, LOG[:1])
    fields = ["user_id", "category"]
    # the category's part is 1
    strong = {"fields": fields, "values": ["u1", "Home > Garden"], "effect": 3.0}
    weak = strong | {"effect": 0.4}
    alone = "mainly because the category is Home > Garden, and the price is low (0.39)"
    assert sentence(explanation, 0).endswith(alone)
    assert sentence(explanation, 0, [weak]).endswith(alone)
    assert sentence(explanation, 0, [strong]).endswith(
        "mainly because this user likes the category Home > Garden"
    )
    against = strong | {"effect": -3.0}
    assert sentence(explanation, 0, [against]).endswith(
        "although this user does not like the category Home > Garden"
    )


def test_the_sentence_begins_with_the_longest_bar_of_fields_and_measured_pairs():
    """AutoInt with random weights, so that some rows have a pair as the strongest reason and some a field."""
    schema = Schema(fields=FIELDS, label=Label("bought"))
    made = random_bundle(AutoInt(embedding_dim=4), schema, LOG, std=1.0)
    explanation = explain(made, LOG)
    strongest = set()
    for number in range(LOG.height):
        plain = explanation.row(number, pairs=True)
        assert plain["measured_pairs"] == explanation.measured_pairs(number)
        sign = 1 if sum(one["contribution"] for one in plain["fields"]) >= 0 else -1
        by_field = max(sign * one["contribution"] for one in plain["fields"])
        by_pair = max(sign * one["effect"] for one in plain["measured_pairs"])
        first_reason = plain["sentence"].partition("mainly because ")[2].partition(", and ")[0]
        is_pair = " goes " in first_reason or " like" in first_reason
        assert is_pair == (by_pair > by_field)
        strongest.add(is_pair)
    assert strongest == {True, False}


def test_a_reason_against_is_named_if_it_is_half_as_strong():
    made = first_order(bundle(LR()), category={"Home > Garden": 2.0}, price=-0.23, bias=0.3)
    against = said(made, 6)  # of Garden, at 7
    assert (
        against
        == "67 %, mainly because the category is Home > Garden, although the price is high (7)"
    )
    made = first_order(bundle(LR()), category={"Home > Garden": 8.0}, price=-0.23, bias=-2.0)
    assert "although" not in said(made, 6)


def test_a_prediction_beyond_one_half_against_its_reasons_is_compared_with_the_usual_one():
    made = first_order(bundle(LR()), bias=-3.0, category={"Home > Garden": 1.0})
    assert said(made, 0) == "12 %, more than usual, mainly because the category is Home > Garden"
    assert said(made, 1) == "4.7 %, mainly because the category is Toys"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"category": pl.lit(None, pl.String)}, "the category is missing"),
        ({"category": pl.lit("Cars")}, "the category is Cars, which is new to the model"),
    ],
)
def test_missing_and_unknown_values_are_named(changed, words):
    made = first_order(bundle(LR()), bias=1.0, category={"Home > Garden": 2.0, "Toys": 2.0})
    assert said(made, 0, **changed) == f"73 %, less than usual, mainly because {words}"
    assert said(made, 0).endswith("no value changes it")


def test_a_list_in_the_plural_are_its_values():
    log = pl.DataFrame({"genres": ["Drama|Noir", "Comedy"] * 4})
    schema = Schema(fields=(Bag("genres", role="item"),), label=Label("bought"))
    encoder = Encoder.fit(log, schema)
    network = build_network(LR(), encoder.layout, 0).eval()
    with torch.no_grad():
        network.first_order.bias.zero_()
        network.first_order.embedding.weight.zero_()[
            2 + encoder.fitted[0].values.index("Drama")
        ] = 4.0
    made = Bundle(schema, encoder, LR(), network, log)
    assert (
        explain(made, log[:1])
        .row(0)["sentence"]
        .endswith("mainly because the genres are Drama, Noir")
    )


def test_ids_are_this_user_and_this_item():
    made = first_order(bundle(LR()), item_id={"a": 2.0}, user_id={"u1": 1.5})
    expected = "this item’s scores are high in general, and this user’s scores are high in general"
    assert said(made, 0) == f"97.1 %, mainly because {expected}"


def test_numbers_of_a_regression_and_other_methods():
    made = first_order(bundle(LR(), Label("stars", task="regression")), bias=3.0, price=0.5)
    assert said(made, 7) == "7.5, more than usual, mainly because the price is high (9)"
    assert said(bundle(AutoInt(embedding_dim=2)), 0).startswith("50 %")
