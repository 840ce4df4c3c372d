"""Integrated gradients against integrals that can be done by hand, and their sum against the score."""

import dataclasses
import threading

import numpy as np
import pytest
import torch
from explain.conftest import SCHEMA
from torch import nn

from fieldwise import Label
from fieldwise.data.table import EncodedTable
from fieldwise.explain.gradients import has_gradients, integrated_gradients
from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Layout
from fieldwise.models import DAT, LR, MODELS, AutoInt, DeepFM, FinalMLP, IntTower

WITHOUT = {"fm", "din", "dat", "finalmlp"}


def settings_of(name):
    given = {
        "dat": DAT(user_id="user", item_id="item", embedding_dim=3),
        "finalmlp": FinalMLP(stream1_gate_fields=("user",)),
        "inttower": IntTower(embedding_dim=4, hidden=(6, 5), user_heads=2, item_heads=2, head_dim=3, cir_weight=0),
    }
    small = {"embedding_dim": 4, "hidden": (6, 5)}
    known = MODELS[name].__dataclass_fields__
    return given.get(name) or MODELS[name](**{k: v for k, v in small.items() if k in known})


class Product(nn.Module):
    """The product of two fields' numbers, then cubed: its path integral is a polynomial's."""

    def __init__(self, layout, power=1):
        super().__init__()
        self.embedding, self.power = FieldEmbedding(layout, 1, std=1.0), power

    def forward(self, batch):
        x = self.embedding(batch)[:, :, 0]
        return x[:, 0] * x[:, 1] ** self.power


def table_of(ids):
    none = np.empty(0, np.int32)
    ids = np.asarray(ids, np.int32)
    layout = Layout.of_sizes([3, 4])
    return EncodedTable(layout, ids, np.empty((len(ids), 0), np.float32), none, np.zeros(1, np.int64))


@pytest.mark.parametrize("power", [1, 2])
def test_a_product_is_divided_as_the_integral_says(power):
    torch.manual_seed(0)
    rows, background = table_of([[0, 3], [2, 6], [1, 4]]), table_of([[1, 5], [0, 6]])
    network = Product(rows.layout, power)
    v = network.embedding.weight.detach().double().numpy()[:, 0]
    a, b = v[background.ids].mean(0)
    found = integrated_gradients(network, rows, background)
    assert found.base == pytest.approx(a * b**power, rel=1e-5)
    for row, (i, j) in enumerate(rows.ids):
        at = np.linspace(0, 1, 20001)
        first, second = a + at * (v[i] - a), b + at * (v[j] - b)
        expected = [
            np.trapezoid((v[i] - a) * second**power, at),
            np.trapezoid((v[j] - b) * power * first * second ** (power - 1), at),
        ]
        np.testing.assert_allclose(found.contributions[row], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.gap, 0, atol=1e-5)


def test_a_linear_model_gives_each_field_its_distance_from_the_average(make, rows):
    bundle = make(LR())
    table, background = bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)

    def own(t):
        with torch.no_grad():
            return bundle.network.first_order.embedding(t.batch(slice(None))[0])[:, :, 0].double().numpy()

    found = integrated_gradients(bundle.network, table, background)
    np.testing.assert_allclose(found.contributions, own(table) - own(background).mean(0), rtol=1e-4, atol=1e-6)


def test_contributions_add_up_for_every_model(make, rows, subtests):
    for name in sorted(set(MODELS) - WITHOUT):
        with subtests.test(name=name):
            contributions_add_up(make, rows, name)


def contributions_add_up(make, rows, name):
    bundle = make(settings_of(name), std=0.2)
    assert has_gradients(bundle.network)
    few = rows[:4]
    table, background = bundle.encoder.transform(few), bundle.encoder.transform(bundle.samples[:3])
    # A gap much smaller than the way shows that every path from values to score is followed.
    found = integrated_gradients(bundle.network, table, background)
    score = bundle.score(few)
    np.testing.assert_allclose(found.base + found.contributions.sum(1) + found.gap, score, rtol=1e-5, atol=1e-5)
    assert np.abs(found.gap).max() < 0.02 * max(1, np.abs(score - found.base).max())


def test_models_with_other_paths_have_none(subtests, make):
    for name in sorted(WITHOUT):
        with subtests.test(name=name):
            assert not has_gradients(make(settings_of(name)).network)


def test_many_rows_are_those_of_few_and_weights_and_mode_stay(make, rows, monkeypatch):
    bundle = make(DeepFM(embedding_dim=3, hidden=(4,)))
    table, background = bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)
    whole = integrated_gradients(bundle.network, table, background)
    monkeypatch.setattr("fieldwise.explain.gradients.ROWS", 5)
    bundle.network.train()
    parts = integrated_gradients(bundle.network, table, background)
    assert bundle.network.training
    np.testing.assert_allclose(parts.contributions, whole.contributions, rtol=1e-4, atol=1e-5)
    assert all(p.grad is None for p in bundle.network.parameters())
    assert not any(m._forward_hooks for m in bundle.network.modules())


def test_who_scores_meanwhile_is_not_disturbed(make, rows):
    bundle = make(DeepFM(embedding_dim=3, hidden=(4,)))
    table, background = bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)
    expected = bundle.score(rows)
    stop, wrong = threading.Event(), []

    def score():
        while not stop.is_set():
            if not np.array_equal(bundle.score(rows), expected):
                wrong.append(1)

    scoring = threading.Thread(target=score)
    scoring.start()
    try:
        found = [integrated_gradients(bundle.network, table, background).contributions for _ in range(5)]
    finally:
        stop.set()
        scoring.join()
    assert not wrong
    assert all(np.array_equal(one, found[0]) for one in found)


def test_a_table_that_labels_share_is_followed(make, rows):
    schema = dataclasses.replace(SCHEMA, more_labels=(Label("stars", task="regression"),))
    bundle = make(AutoInt(embedding_dim=4, layers=1, attention_dim=4), schema=schema)
    table, background = bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)
    for head, score in zip(bundle.network.heads, bundle.score(rows).T, strict=True):
        assert has_gradients(head)
        found = integrated_gradients(head, table, background, steps=512)
        np.testing.assert_allclose(found.base + found.contributions.sum(1), score, atol=0.02 * np.abs(score).max())


def test_no_rows(make, rows):
    bundle = make(LR())
    none, background = bundle.encoder.transform(rows.head(0)), bundle.encoder.transform(bundle.samples)
    found = integrated_gradients(bundle.network, none, background)
    assert found.contributions.shape == (0, 6)
