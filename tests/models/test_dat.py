import dataclasses

import numpy as np
import pytest
import torch

from fieldwise import DAT, Categorical, ConfigError, Label, Recipe, Schema
from fieldwise.config import given
from fieldwise.models.twotower import category_alignment_loss, mimic_loss
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.pipeline import resolve_defaults

SMALL = {"embedding_dim": 4, "hidden": (7, 6), "output_dim": 5}


@pytest.fixture
def categorical(lab):
    """f0 is the user's field, f1 and f3 are the item's, with 4 and 6 rows."""
    return lab.layouts["categorical"]


# The score


# Which field is the id


def test_ids_are_the_first_categorical_fields_or_those_named(categorical):
    results = {}
    for item_id in (None, "f1", "f3"):
        network = DAT(**SMALL, item_id=item_id).build(categorical)
        results[item_id] = (
            tuple(network.user_augmented.weight.shape),
            tuple(network.item_augmented.weight.shape),
        )
    assert results == {None: ((5, 5), (4, 5)), "f1": ((5, 5), (4, 5)), "f3": ((5, 5), (6, 5))}


@pytest.mark.parametrize(
    ("layout", "settings", "message"),
    [
        (
            "numeric",
            {},
            "user_id must be a categorical field of role user, but the layout has none: .* or use DSSM",
        ),
        (
            "mixed",
            {},
            "item_id must be a categorical field of role item, but the layout has none: .* or use DSSM",
        ),
        (
            "categorical",
            {"user_id": "F0"},
            "user_id must be .* of role user, found 'F0': did you mean 'f0'",
        ),
        (
            "categorical",
            {"user_id": "f1"},
            "user_id must be a categorical field of role user, found 'f1'",
        ),
        (
            "categorical",
            {"category": "f0"},
            "category must be a categorical field of role item, found 'f0'",
        ),
    ],
)
def test_a_layout_without_such_a_field_is_one_sentence(lab, layout, settings, message):
    with pytest.raises(ConfigError, match=f"DAT's {message}"):
        DAT(**SMALL, **settings).build(lab.layouts[layout])


# The adaptive-mimic mechanism


def test_the_mimic_loss_is_the_papers_expression():
    rng = np.random.default_rng(0)
    a, p, y = rng.normal(size=(9, 4)), rng.normal(size=(9, 4)), rng.integers(0, 2, 9)
    expected = np.mean([((y[r] * a[r] + (1 - y[r]) * p[r] - p[r]) ** 2).sum() for r in range(9)])
    assert float(mimic_loss(*map(torch.tensor, (a, p, y)))) == pytest.approx(expected, rel=1e-12)
    # By hand: |(1, 2) - (0, 4)|^2 = 5 of the one positive row, over two rows.
    a, p = torch.tensor([[1.0, 2.0], [9.0, 9.0]]), torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    assert mimic_loss(a, p, torch.tensor([1, 0])) == 2.5


def test_the_mimic_loss_moves_the_augmented_vectors_of_positive_rows_alone():
    a, p = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    mimic_loss(a, p, torch.tensor([1.0, 0.0, -1.0, 1.0])).backward()
    assert p.grad is None
    assert a.grad.abs().sum(1).gt(0).tolist() == [True, False, False, True]


def test_few_rows_cost_a_finite_loss():
    for rows in (0, 1):
        vectors, label = torch.ones(rows, 4), torch.zeros(rows)
        assert (
            mimic_loss(vectors, vectors, label)
            == category_alignment_loss(vectors, label.long(), 3)
            == 0
        )


def test_the_auxiliary_loss_is_the_weighted_sum(lab, categorical):
    batch, label = lab.batch(categorical, 24), (torch.arange(24) % 3 == 0).double()
    weights = {
        "mimic_user_weight": 0.3,
        "mimic_item_weight": 0.7,
        "category": "f1",
        "category_weight": 0.2,
    }
    network = lab.randomized(DAT(**SMALL, **weights).build(categorical))
    logit, auxiliary = network.forward_with_auxiliary(batch, label)
    torch.testing.assert_close(logit, network(batch))
    user, item = network.user(batch), network.item(batch)
    loss_u = mimic_loss(network.user_augmented(batch), item, label)
    loss_v = mimic_loss(network.item_augmented(batch), user, label)
    loss_ca = category_alignment_loss(item, batch.ids[:, 1] - categorical.fields[1].offset, 4)
    torch.testing.assert_close(auxiliary, 0.3 * loss_u + 0.7 * loss_v + 0.2 * loss_ca)
    assert loss_ca > 0


# The category alignment loss


def test_the_alignment_loss_is_the_distance_of_covariances():
    rng = np.random.default_rng(1)
    item, category = rng.normal(size=(30, 4)), rng.choice(5, 30, p=[0.2, 0.5, 0.1, 0.2, 0.0])
    c = {k: np.cov(item[category == k].T) for k in range(4)}
    expected = sum(np.sum((c[1] - c[k]) ** 2) for k in (0, 2, 3))
    result = category_alignment_loss(torch.tensor(item), torch.tensor(category), 5)
    assert float(result) == pytest.approx(expected, rel=1e-10)


def test_a_category_of_one_row_has_no_covariance_to_align():
    item = torch.tensor([[0.0], [2.0], [4.0], [7.0]])
    assert category_alignment_loss(item, torch.tensor([0, 0, 0, 1]), 2) == 0
    # Variances 4 of (0, 2, 4) and 2 of (5, 7): (4 - 2)^2.
    item = torch.tensor([[0.0], [2.0], [4.0], [5.0], [7.0]])
    assert category_alignment_loss(item, torch.tensor([0, 0, 0, 1, 1]), 2) == 4


def test_the_schema_says_which_fields_have_vectors():
    """What is left out is filled with the fields that read the schema's columns; what was not given stays so."""
    age, who = Categorical("age", role="user"), Categorical("reader", role="user", column="user_id")
    genre, book = Categorical("genre", role="item"), Categorical("isbn", role="item")
    schema = Schema(
        fields=(age, who, genre, book), label=Label("liked"), user="user_id", item="isbn"
    )
    model = DAT(embedding_dim=4)
    result = model.of_schema(schema)
    assert (result.user_id, result.item_id) == ("reader", "isbn")
    assert given(result) == {"embedding_dim", "user_id", "item_id"}
    assert DAT(item_id="genre").of_schema(schema).item_id == "genre"
    # the rule: the names of ids before others
    silent = dataclasses.replace(schema, user=None, item=None)
    assert (model.of_schema(silent).user_id, model.of_schema(silent).item_id) == ("reader", "isbn")
    recipe = Recipe(
        name="dat",
        data=DataSettings(name="simulated"),
        schema=schema,
        model=model,
        defaults="fixed",
    )
    assert resolve_defaults(recipe, None)[0].model == result
    with pytest.raises(
        ConfigError, match=r"no categorical field reads 'email', the schema's user column: add"
    ):
        model.of_schema(dataclasses.replace(schema, user="email"))
