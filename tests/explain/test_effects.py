"""The mean prediction by value of each field, against formulas of LR and FM in NumPy."""

import numpy as np
import polars as pl
import pytest
from explain.conftest import SCHEMA, log

from fieldwise import DIN, FM, LR, ConfigError, DataError, Label, Schema
from fieldwise.evaluation import sigmoid
from fieldwise.explain import effects
from fieldwise.explain.effects import effect

FIELDS = {field.name: field for field in SCHEMA.fields}


def logit(made, row):
    """LR's or FM's logit of a row, field by field: w0 + sum of w x + sum of products of pairs."""
    weight = made.network.first_order.embedding.weight.detach().numpy()[:, 0]
    vectors = getattr(made.network, "embedding", None)
    first, v = made.network.first_order.bias.item(), []
    for layout, field, fitted in zip(
        made.encoder.layout.fields, made.encoder.fields, made.encoder.fitted, strict=True
    ):
        cell = row[field.name]
        if field.name == "price":
            ids, shares = np.array([1]), (cell - fitted.shift) / fitted.scale
        elif field.name == "hour":
            ids, shares = np.array([1 + np.searchsorted(fitted.edges, cell, side="right")]), 1.0
        else:
            texts = (
                cell.split("|")[-3:]
                if field.name == "history"
                else cell
                if field.name == "genres"
                else [cell]
            )
            places = {value: k + 2 for k, value in enumerate(fitted.values)}
            ids = np.array([places.get(text, 1) for text in texts if text] or [0])
            shares = 1 / len(ids)
        first += float(weight[layout.offset + ids].sum() * shares)
        if vectors is not None:
            v.append(vectors.weight.detach().numpy()[layout.offset + ids].sum(0) * shares)
    return first + sum(float(v[i] @ v[j]) for i in range(len(v)) for j in range(i))


@pytest.mark.parametrize("settings", [LR(), FM(embedding_dim=3)], ids=["lr", "fm"])
@pytest.mark.parametrize("name", ["price", "hour", "genres", "item"])
def test_a_curve_is_the_mean_over_rows_that_have_the_value(make, settings, name):
    made = make(settings)
    result = effect(made, FIELDS[name])
    assert len(result["values"]) > 2
    cells = result.get(
        "numbers", [[value] if name == "genres" else value for value in result["values"]]
    )
    for cell, prediction in zip(cells, result["predictions"], strict=True):
        rows = [row | {name: cell} for row in made.samples.to_dicts()]
        expected = np.mean([sigmoid(np.array(logit(made, row))) for row in rows])
        assert prediction == pytest.approx(expected, rel=1e-5)


def test_values_are_quantiles_or_the_most_frequent(make):
    made = make(LR())
    rows = log(400, seed=3)
    price = effect(made, FIELDS["price"], rows)
    assert (
        price["numbers"]
        == rows["price"].sort()[np.linspace(0, 399, 8).round().astype(int).tolist()].to_list()
    )
    item = effect(made, FIELDS["item"], rows)
    counts = log()["item"].value_counts(name="n").sort("n", descending=True)["n"].to_list()
    own = [log().filter(pl.col("item") == value).height for value in item["values"]]
    assert own == counts[:10]
    missing = effect(made, FIELDS["price"], rows.with_columns(price=pl.lit(None, pl.Float64)))
    assert (missing["numbers"], missing["predictions"]) == ([], [])


def test_the_widest_come_first_and_ids_are_left_out(make):
    result = effects(make(DIN(embedding_dim=4, hidden=(4,))), log(20, seed=2))
    ranges = [np.ptp(one["predictions"]) for one in result]
    assert ranges == sorted(ranges, reverse=True)
    assert {one["field"] for one in result} == {"genres", "price", "hour"}


def test_labels_and_bundles_without_rows(make):
    schema = Schema(
        fields=SCHEMA.fields,
        label=Label("click"),
        more_labels=(Label("stars", task="regression", scale=2.0),),
    )
    made = make(LR(), schema=schema)
    rows = made.samples.with_columns(price=pl.lit(0.5))
    with pytest.raises(ConfigError, match="a label must be one of the bundle's, found 'star'"):
        effect(made, FIELDS["price"], rows, label="star")
    result = effect(made, FIELDS["price"], rows, label="stars")
    assert result["predictions"] == pytest.approx([made.predict(rows)[:, 1].mean()], rel=1e-6)
    with pytest.raises(DataError, match="a mean over rows"):
        effects(made, log(0))
