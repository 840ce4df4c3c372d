"""Integrated gradients against integrals done by hand; mixed rows and occlusion against tables mixed cell by cell."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch
from explain.conftest import SCHEMA
from torch import nn

from fieldwise import DAT, FM, LR, AutoInt, AutoIntPlus, DeepFM, FinalMLP, IntTower, Label, Layout
from fieldwise.data.table import EncodedTable
from fieldwise.explain.attribution import (
    Mixer,
    has_gradients,
    integrated_gradients,
    occlusion,
    pair_interactions,
)
from fieldwise.layers import FieldEmbedding
from fieldwise.models import NETWORKS

WITHOUT = {"fm", "din", "dat", "finalmlp"}


def settings_of(name):
    given = {
        "dat": DAT(user_id="user", item_id="item", embedding_dim=3),
        "finalmlp": FinalMLP(stream1_gate_fields=("user",)),
        "inttower": IntTower(
            embedding_dim=4, hidden=(6, 5), user_heads=2, item_heads=2, head_dim=3, cir_weight=0
        ),
    }
    small = {"embedding_dim": 4, "hidden": (6, 5)}
    known = NETWORKS[name].__dataclass_fields__
    return given.get(name) or NETWORKS[name](**{k: v for k, v in small.items() if k in known})


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
    return EncodedTable(
        layout, ids, np.empty((len(ids), 0), np.float32), none, np.zeros(1, np.int64)
    )


@pytest.mark.parametrize("power", [1, 2])
def test_a_product_is_divided_as_the_integral_says(power):
    torch.manual_seed(0)
    rows, background = table_of([[0, 3], [2, 6], [1, 4]]), table_of([[1, 5], [0, 6]])
    network = Product(rows.layout, power)
    v = network.embedding.weight.detach().double().numpy()[:, 0]
    a, b = v[background.ids].mean(0)
    result, base = integrated_gradients(network, rows, background)
    assert base == pytest.approx(a * b**power, rel=1e-5)
    for row, (i, j) in enumerate(rows.ids):
        at = np.linspace(0, 1, 20001)
        first, second = a + at * (v[i] - a), b + at * (v[j] - b)
        expected = [
            np.trapezoid((v[i] - a) * second**power, at),
            np.trapezoid((v[j] - b) * power * first * second ** (power - 1), at),
        ]
        np.testing.assert_allclose(result[row], expected, rtol=1e-4, atol=1e-6)
        assert v[i] * v[j] ** power - base - result[row].sum() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    "names", [("afm", "autoint+", "inttower"), pytest.param(NETWORKS, marks=pytest.mark.slow)]
)
def test_contributions_add_up_for_every_model(make, rows, subtests, names):
    for name in sorted(set(names) - WITHOUT):
        with subtests.test(name=name):
            contributions_add_up(make, rows, name)


def contributions_add_up(make, rows, name):
    bundle = make(settings_of(name), std=0.2)
    assert has_gradients(bundle.network)
    few = rows[:4]
    table, background = bundle.encoder.transform(few), bundle.encoder.transform(bundle.samples[:3])
    # A gap much smaller than the way shows that every path from values to score is followed.
    result, base = integrated_gradients(bundle.network, table, background, steps=32)
    score = bundle.score(few)
    assert np.abs(score - base - result.sum(1)).max() < 0.02 * max(1, np.abs(score - base).max())


def test_models_with_other_paths_have_none(subtests, make):
    for name in sorted(WITHOUT):
        with subtests.test(name=name):
            assert not has_gradients(make(settings_of(name)).network)


def test_many_rows_are_those_of_few_and_weights_and_mode_stay(make, rows, monkeypatch):
    bundle = make(DeepFM(embedding_dim=3, hidden=(4,)))
    table, background = bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)
    whole, _ = integrated_gradients(bundle.network, table, background)
    monkeypatch.setattr("fieldwise.explain.attribution.ROWS_PER_BATCH", 5)
    bundle.network.train()
    parts, _ = integrated_gradients(bundle.network, table, background)
    assert bundle.network.training
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-5)
    assert all(p.grad is None for p in bundle.network.parameters())
    assert not any(m._forward_hooks for m in bundle.network.modules())


def test_a_table_that_labels_share_is_followed(make, rows):
    schema = dataclasses.replace(SCHEMA, more_labels=(Label("stars", task="regression"),))
    bundle = make(AutoInt(embedding_dim=4, layers=1, attention_dim=4), schema=schema)
    table, background = bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)
    for head, score in zip(bundle.network.heads, bundle.score(rows).T, strict=True):
        assert has_gradients(head)
        result, base = integrated_gradients(head, table, background, steps=128)
        np.testing.assert_allclose(base + result.sum(1), score, atol=0.02 * np.abs(score).max())


def mixed_by_hand(rows, background, number, other, taken):
    """A table of one row: each cell from the one or the other."""
    one, two = rows.row(number, named=True), background.row(other, named=True)
    cells = {name: (two if t else one)[name] for name, t in zip(rows.columns, taken, strict=True)}
    return pl.DataFrame({name: [value] for name, value in cells.items()}, schema=rows.schema)


@pytest.mark.parametrize("block", [1000, 5])
def test_mixed_rows_score_as_rows_mixed_by_hand(make, rows, monkeypatch, block):
    monkeypatch.setattr("fieldwise.explain.attribution.MIXED_ROWS_IN_MEMORY", block)
    bundle = make(AutoIntPlus(embedding_dim=4, layers=1, attention_dim=4, hidden=(5,)))
    rows = rows.select(f.column for f in bundle.schema.fields)
    mixer = Mixer(
        bundle.network, bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)
    )
    rng = np.random.default_rng(0)
    number, other = rng.integers(0, len(rows), 60), rng.integers(0, bundle.samples.height, 60)
    taken = rng.random((60, 6)) < 0.5
    by_hand = [
        mixed_by_hand(rows, bundle.samples, *which)
        for which in zip(number, other, taken, strict=True)
    ]
    np.testing.assert_allclose(
        mixer.score(number, other, taken), bundle.score(pl.concat(by_hand)), rtol=1e-5, atol=1e-5
    )


def test_tables_with_some_kinds_of_fields_alone(subtests, make, rows):
    for kept in [["item", "user"], ["genres", "price"], ["history", "item"], ["price", "hour"]]:
        with subtests.test(kept=kept):
            schema = dataclasses.replace(
                SCHEMA, fields=tuple(f for f in SCHEMA.fields if f.name in kept)
            )
            bundle = make(LR(), schema=schema)
            mixer = Mixer(
                bundle.network,
                bundle.encoder.transform(rows),
                bundle.encoder.transform(bundle.samples),
            )
            every, first = np.arange(len(rows)), np.zeros(len(rows), int)
            none, both = np.zeros((len(rows), 2), bool), np.ones((len(rows), 2), bool)
            np.testing.assert_allclose(
                mixer.score(every, first, none), bundle.score(rows), rtol=1e-6
            )
            np.testing.assert_allclose(
                mixer.score(every, first, both), bundle.score(bundle.samples)[first], rtol=1e-6
            )


def vectors(bundle, frame, embedding):
    with torch.no_grad():
        return embedding(bundle.encoder.transform(frame).batch(slice(None))[0]).double().numpy()


def test_a_linear_model_loses_a_fields_own_weight_less_the_others(make, rows):
    bundle = make(LR())
    mixer = Mixer(
        bundle.network, bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)
    )
    others = np.random.default_rng(0).integers(0, bundle.samples.height, (len(rows), 3))
    own, theirs = (
        vectors(bundle, frame, bundle.network.first_order.embedding)[:, :, 0]
        for frame in (rows, bundle.samples)
    )
    result = occlusion(mixer, bundle.score(rows), others)
    np.testing.assert_allclose(result, own - theirs[others].mean(1), rtol=1e-4, atol=1e-5)
    none = pair_interactions(mixer, bundle.score(rows), others, np.arange(len(rows)))
    np.testing.assert_allclose(none, 0, atol=1e-5)


def test_fms_pairs_give_together_the_product_of_their_distances(make, rows):
    bundle = make(FM(embedding_dim=3))
    mixer = Mixer(
        bundle.network, bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples)
    )
    some = np.array([1, 4, 5])
    others = np.random.default_rng(0).integers(0, bundle.samples.height, (len(some), 4))
    own, theirs = (
        vectors(bundle, frame, bundle.network.embedding) for frame in (rows, bundle.samples)
    )
    result = pair_interactions(mixer, bundle.score(rows), others, some)
    distance = own[some][:, None] - theirs[others]  # [3, 4, F, D]
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    expected = np.stack([(distance[:, :, i] * distance[:, :, j]).sum(2) for i, j in pairs], 2)
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)
